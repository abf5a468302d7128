"""The figures of an inquiry: what each round's claims came to, and what each round's tests might spend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from studies.report.figures.drawing import Drawing, Figure, both, signed_tick
from studies.report.figures.round_series import ClaimEffect, Effects, LevelBars
from studies.report.figures.strips import STEPS, WIDE, Strip, strips
from studies.report.parts.theme import canvas, paint
from studies.report.parts.wording import fine_percent, percent, signed, span


def effects(data: Effects, number: int) -> Figure:
    """Draw each claim's difference with the interval that decided it, round by round."""
    shaded = " Shaded: differences too small to matter." if any(item.margin for item in data.items) else ""
    caption = (
        f"Difference in {data.measured}, treatment minus control, of each claim with the interval that decided it, at "
        f"the level of its round.{shaded} Each round has fresh seeds."
    )
    name = "effects" if number == 1 else f"effects-{number}"
    return both(name, "Claims by round", caption, draw_effects, data)


def levels(data: Sequence[LevelBars]) -> Figure:
    """Draw what the tests of each round might spend, by kind of claim."""
    caption = (
        "The level of each round, by kind of claim. Dark: its own part; light: what the round before handed on. An "
        "outline is a round that was not locked, as it would be if nothing more were handed on."
    )
    return both("levels", "The error ledgers", caption, draw_levels, tuple(data))


def draw_effects(data: Effects, _salt: str, width: float) -> Drawing:
    """Draw each claim as a strip: the difference, its interval, the margin and the line of no difference."""
    items = [Strip(item.name, _note(item, data.unit), 34, paint("ink")) for item in data.items]
    figure, drawn = strips(width, items, (), f"difference in {data.measured}")
    for axes, item in zip(drawn, data.items, strict=True):
        _draw_effect(axes, item)
    drawn[-1].set_xlim(*_around_zero(data.items))
    drawn[-1].xaxis.set_major_formatter(FuncFormatter(signed_tick))
    return Drawing(figure, f"Difference in {data.measured} of each claim, by round", {})


def draw_levels(data: Sequence[LevelBars], _salt: str, width: float) -> Drawing:
    """Draw a panel for each ledger, beside each other where there is room."""
    columns = 1 if width < WIDE else len(data)
    panel, top = 214.0, 34.0
    height = top + panel * (len(data) // columns) + 8
    figure = canvas(width, height)
    highest = max(bar.own + bar.received for panel_data in data for bar in panel_data.bars)
    for place, found in enumerate(data):
        row, column = divmod(place, columns)
        base = height - top - (row + 1) * panel + 48
        left, share = (0.12, 0.84) if columns == 1 else (0.07 + column * 0.5, 0.4)
        axes = figure.add_axes((left, base / height, share, (panel - 78) / height))
        _draw_bars(axes, found, highest)
        figure.text(left, (base + panel - 70) / height, f"Level of {found.kind}", color=paint("ink"), weight="bold")
    _legend(figure)
    return Drawing(figure, "The level of each round, by kind of claim", {})


def _draw_effect(axes: Axes, item: ClaimEffect) -> None:
    if item.margin is not None:
        axes.axvspan(-item.margin, item.margin, color=paint("rule"), linewidth=0, zorder=0.5)
    axes.axvline(0, color=paint("ink"), linewidth=1.2)
    if item.observed is not None:
        axes.plot([item.observed.low, item.observed.high], [0.5, 0.5], color=paint("ink"), linewidth=2.4)
    if item.estimate is not None:
        axes.plot([item.estimate], [0.5], color=paint("ink"), marker="o", markersize=9)


def _note(item: ClaimEffect, unit: str) -> tuple[str, ...]:
    if item.estimate is None:
        return item.label, "no number observed"
    if item.observed is None:
        return item.label, signed(item.estimate, unit=unit)
    low, high = item.observed.low, item.observed.high
    return (
        item.label,
        signed(item.estimate, unit=unit),
        f"{span(low, high, unit=unit)} ({percent(item.observed.level)})",
    )


def _around_zero(items: Sequence[ClaimEffect]) -> tuple[float, float]:
    ends = [0.0, *(item.estimate or 0.0 for item in items)]
    ends += [end for item in items if item.observed for end in (item.observed.low, item.observed.high)]
    ends += [end for item in items if item.margin is not None for end in (-item.margin, item.margin)]
    low, high = min(ends), max(ends)
    room = 0.06 * ((high - low) or 1.0)
    return low - room, high + room


def _draw_bars(axes: Axes, data: LevelBars, highest: float) -> None:
    for bar in data.bars:
        look: dict[str, Any] = {"width": _BAR, "linewidth": 1.2}
        if not bar.asked:
            axes.bar(
                bar.round, bar.own + bar.received, fill=False, edgecolor=paint("muted"), linestyle=(0, (3, 2)), **look
            )
            continue
        axes.bar(bar.round, bar.own, color=paint(_OWN), edgecolor=paint(_OWN), **look)
        axes.bar(bar.round, bar.received, bottom=bar.own, color=paint("band"), edgecolor=paint(_OWN), **look)
    for bar in data.bars:
        axes.annotate(fine_percent(bar.own + bar.received), (bar.round, bar.own + bar.received), xytext=(0, 4),
                      textcoords="offset points", ha="center", color=paint("ink"), fontsize=11)  # fmt: skip
    axes.set_ylim(0, highest * 1.18)
    axes.set_xlim(0.4, len(data.bars) + 0.6)
    axes.set_xticks([bar.round for bar in data.bars])
    axes.grid(axis="y", linewidth=1)
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(round(share, 4))))
    axes.set_xlabel("round")


def _legend(figure: Any) -> None:
    handles: list[Artist] = [
        Patch(facecolor=paint(_OWN)), Patch(facecolor=paint("band"), edgecolor=paint(_OWN)),
        Patch(fill=False, edgecolor=paint("muted"), linestyle=(0, (3, 2))),
    ]  # fmt: skip
    names = ("own part", "handed on", "not locked")
    figure.legend(handles, names, loc="upper left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False,
                  borderaxespad=0, borderpad=0.1, handlelength=1.4, fontsize=12)  # fmt: skip


_BAR: Final = 0.55
"""Width of a bar, in rounds."""
_OWN: Final = "arm-0"
