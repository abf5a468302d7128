"""The figures of a report: one SVG with a viewBox each, by matplotlib.

Each is drawn twice from the same data, for a wide page and for a phone, so that its letters keep their size. Every run
is visible; means and intervals lie on top. Nothing is smoothed. No text lies inside a strip, so no line crosses one;
names are wrapped, never cut. A prefix keeps the figures of several rounds apart.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

from studies.report.figure_data import (
    ArmCurves,
    ArmShift,
    ClaimEffect,
    Curves,
    Effects,
    Forecast,
    Forecasts,
    LevelBars,
    ScreenedCandidate,
    Screening,
    Shifts,
)
from studies.report.theme import LIGHT, arm_paint, canvas, marker, paint, render_svg, style, use_palette
from studies.report.wording import MINUS, fine_percent, format_signed, number, percent, plural, span

WIDE: Final = 860.0
NARROW: Final = 350.0
STEPS: Final = (1, 2, 5, 10)
"""What ticks may be multiples of."""
_LINE: Final = 17.0
"""Height of a line of text, in CSS pixels, as all lengths here."""
_GAP: Final = 16.0
_FOOT: Final = 46.0
"""Room for ticks and the name of the axis."""
_NAMES: Final = 236.0
_NOTES: Final = 196.0
_PART: Final = "\x00"
"""Stands where a name may be broken, in no name itself."""
_WIDE_CHARS: Final = 29
_NARROW_CHARS: Final = 42

Legend = Sequence[tuple[Artist, str]]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One row of a figure. `note` says its numbers, a line each."""

    name: str
    note: tuple[str, ...]
    height: float
    color: str


class _Thousands(ScalarFormatter):
    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:,.0f}".replace("-", MINUS) if abs(x) >= _THOUSAND else str(super().__call__(x, pos))


def layout_rows(width: float, items: Sequence[FigureRow], legend: Legend, measured: str) -> tuple[Any, list[Axes]]:
    """Return a figure and an axes for each strip, from top to bottom; y runs from 0 to 1 in each."""
    narrow = width < WIDE
    names = [wrap_name(item.name, _NARROW_CHARS if narrow else _WIDE_CHARS) for item in items]
    columns = 1 if narrow else max(1, len(legend))
    top = _LINE * 1.25 * -(-len(legend) // columns) + (10 if legend else 4)
    heights = [_height(item, lines, narrow) for item, lines in zip(items, names, strict=True)]
    whole = top + sum(heights) + _FOOT
    figure = canvas(width, whole)
    if legend:
        handles, labels = zip(*legend, strict=True)
        figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(0.0, 1.0), ncols=columns, frameon=False,
                      borderaxespad=0, borderpad=0.1, handlelength=1.8, columnspacing=2.2, fontsize=12)  # fmt: skip
    left, right = (12.0, width - 14) if narrow else (_NAMES, width - _NOTES)
    drawn: list[Axes] = []
    for item, lines, height in zip(items, names, heights, strict=True):
        _write(figure, item, lines, top, width, whole, narrow)
        above = _LINE * (len(lines) + len(item.note)) + 2 if narrow else 0.0
        place = (left / width, 1 - (top + above + item.height) / whole, (right - left) / width, item.height / whole)
        drawn.append(_axes(figure, place, drawn))
        top += height
    last = drawn[-1]
    last.tick_params(labelbottom=True, pad=7)
    last.set_xlabel(measured)
    last.xaxis.set_major_locator(MaxNLocator(4 if narrow else 6, steps=STEPS))
    last.xaxis.set_major_formatter(_Thousands())
    return figure, drawn


def wrap_name(name: str, most: int) -> list[str]:
    """Return a name in lines of about so many letters, broken between its parts where it has some (`a=1+b=2`)."""
    lines = textwrap.wrap(name.replace("+", f"+{_PART} "), most)
    return [line.replace(f"{_PART} ", "").replace(_PART, "") for line in lines] or [""]


def _height(item: FigureRow, lines: list[str], narrow: bool) -> float:
    if narrow:
        return _LINE * (len(lines) + len(item.note)) + 2 + item.height + _GAP
    return max(item.height, _LINE * max(len(lines), len(item.note))) + _GAP


def _write(
    figure: Any, item: FigureRow, lines: list[str], top: float, width: float, whole: float, narrow: bool
) -> None:  # fmt: skip
    look: dict[str, Any] = {"va": "top", "ha": "left", "linespacing": 1.3}
    note_at = (0.0, top + _LINE * len(lines)) if narrow else (width - _NOTES + 18, top)
    figure.text(0.0, 1 - top / whole, "\n".join(lines), color=item.color, weight="bold", **look)
    x, y = note_at
    figure.text(x / width, 1 - y / whole, "\n".join(item.note), color=paint("ink"), fontsize=12, **look)


def _axes(figure: Any, place: tuple[float, float, float, float], before: list[Axes]) -> Axes:
    axes: Axes = figure.add_axes(place, sharex=before[0] if before else None)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="x", linewidth=1)
    axes.tick_params(labelbottom=False)
    return axes


@dataclass(frozen=True, slots=True)
class Figure:
    """A finished figure: inline SVG in two widths, a title, and a caption that says what is drawn."""

    name: str
    title: str
    caption: str
    wide: str
    narrow: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure before it is written; `tips` maps the gid of an artist to what is shown on hover."""

    canvas: Any
    label: str
    tips: Mapping[str, str]


Draw = Callable[[Any, str, float], Drawing]
"""Draws its first argument at a width; the second one keeps the ids of drawings on one page apart."""


def learning_curves(data: Curves, prefix: str = "") -> Figure:
    caption = (
        f"{_capital(data.measured)}, by {data.unit}. Thin: one run; thick: an arm's mean; nothing is smoothed. These "
        "episodes are the training's own and decide nothing."
    )
    return make_figure(f"{prefix}learning-curves", "Learning curves", caption, draw_curves, data)


def hidden_curves(data: Curves, prefix: str = "") -> Figure:
    goal = "" if data.threshold is None else f" Dashed: the threshold of {data.threshold:g}, which a time is read off."
    end = "" if data.horizon is None else " The vertical line is the horizon, which is the same for all runs."
    caption = (
        f"{_capital(data.measured)} of evaluations before, during and after training, by {data.unit}. Thin: one run; "
        f"thick: an arm's mean; nothing is smoothed.{goal}{end}"
    )
    return make_figure(f"{prefix}hidden-curves", "Hidden success", caption, draw_curves, data)


def training_reward(data: Curves, number: int, prefix: str = "") -> Figure:
    caption = (
        f"{_capital(data.measured)}, by {data.unit}. Its axis is its own: a reward's height says nothing beside "
        "another's. A thin line is one run, a thick one the mean of an arm's runs."
    )
    name = f"{prefix}training-reward-{number}"
    return make_figure(name, "Training reward", caption, draw_curves, data)


def training(data: Sequence[Curves], prefix: str = "") -> Figure:
    caption = (
        f"Logged metrics by {data[0].unit}: {', '.join(panel.measured for panel in data)}. A thin line is one run, a "
        "thick one the mean of an arm's runs."
    )
    return make_figure(f"{prefix}training", "How training went", caption, draw_panels, tuple(data))


def before_after(data: Shifts, prefix: str = "") -> Figure:
    if data.both:
        caption = (
            f"{_capital(data.measured)}: a thin line is one run, from before training (hollow) to after it (filled); "
            "the large mark is the arm's mean after training with its 95 % t-interval."
        )
    else:
        caption = (
            f"{_capital(data.measured)}: a small mark is one run, the large one the arm's mean with its "
            f"{'exact 95 % limits' if data.rates else '95 % t-interval'}."
        )
    if any(arm.collapsed for arm in data.arms):
        caption += " A cross is a training that collapsed, no part of the mean."
    if any(arm.missed for arm in data.arms):
        caption += " A hollow mark is a run that never reached the threshold: it stands at the horizon."
    name = f"{prefix}before-after"
    title = "Before and after training" if data.both else "Run by run"
    return make_figure(name, title, caption, draw_shifts, data)


def predictions(data: Forecasts, prefix: str = "") -> Figure:
    margin = " Shaded: differences too small to matter." if data.margin is not None else ""
    caption = (
        f"Difference in {data.measured}, treatment minus control. Bar: predicted before any run; mark and line: "
        f"observed, with the interval that decides.{margin}"
    )
    name = f"{prefix}predictions"
    return make_figure(name, "Predicted and observed", caption, draw_forecasts, data)


def screen(data: Screening, prefix: str = "") -> Figure:
    caption = (
        f"{_capital(data.measured)} of the screen's candidates, one seed each: a faint mark is a shorter run, the full "
        "one the longest. Coloured candidates were confirmed. No claim rests on a screen."
    )
    return make_figure(f"{prefix}screen", "The screen", caption, draw_screen, data)


_ALONE = 640.0
"""Width of a picture of one metric, which names it above."""


def picture(data: Curves) -> tuple[str, bytes]:
    with style("metric"):
        drawing = draw_panels([data], "metric", _ALONE)
        svg = render_svg(drawing.canvas, drawing.label, drawing.tips)
    return svg, _png(lambda: draw_panels([data], "metric", _ALONE), dpi=144)


def curves_picture(data: Curves) -> bytes:
    return _png(lambda: draw_curves(data, "curves", WIDE), dpi=72)


def screen_picture(data: Screening) -> bytes:
    return _png(lambda: draw_screen(data, "screen", WIDE), dpi=72)


def _png(draw: Callable[[], Drawing], dpi: int) -> bytes:
    buffer = io.BytesIO()
    with use_palette(LIGHT), style("png"):
        draw().canvas.savefig(buffer, format="png", dpi=dpi, facecolor=LIGHT["page"], metadata={"Software": None})
    return buffer.getvalue()


def make_figure(name: str, title: str, caption: str, draw: Draw, data: Hashable) -> Figure:
    wide = render_cached(draw, data, f"{name}-wide", WIDE)
    return Figure(name, title, caption, wide, render_cached(draw, data, f"{name}-narrow", NARROW))


@lru_cache(maxsize=64)  # a controller of many days holds them: as many as a report of four rounds has
def render_cached(draw: Draw, data: Hashable, salt: str, width: float) -> str:
    """Return a drawing as SVG. It takes most of a report's time, and the proof and later rounds draw the same again."""
    with style(salt):
        drawing = draw(data, salt, width)
        return render_svg(drawing.canvas, drawing.label, drawing.tips)


def draw_curves(data: Curves, salt: str, width: float) -> Drawing:
    tips: dict[str, str] = {}
    narrow = width < WIDE
    above = narrow or len(data.arms) > _MOST_BESIDE or any(len(arm.arm) > _BESIDE_CHARS for arm in data.arms)
    top = _LEGEND_LINE * _legend_lines(data.arms, width) + 12 if above else 12.0
    height = top + (280 if narrow else 330)
    figure = canvas(width, height)
    left, right = (0.13, 0.97) if narrow else (0.065, 0.97 if above else 0.8)
    axes = figure.add_axes((left, 52 / height, right - left, 1 - (52 + top) / height))
    _plot(axes, data, salt, tips, narrow)
    axes.set_xlabel(data.unit)
    if above:
        _legend(figure, data.arms, width)
    else:
        _label_lines(axes, data.arms)
    return Drawing(figure, f"Curves: {data.measured}", tips)


def draw_panels(data: Sequence[Curves], salt: str, width: float) -> Drawing:
    tips: dict[str, str] = {}
    narrow = width < WIDE
    columns = 1 if narrow else 2
    rows = -(-len(data) // columns)
    top, panel = _LEGEND_LINE * _legend_lines(data[0].arms, width) + 12, 206.0
    height = top + rows * panel + 14
    figure = canvas(width, height)
    for place, curves in enumerate(data):
        row, column = divmod(place, columns)
        left, share = (0.15 if narrow else 0.07) + column * 0.5, 0.81 if narrow else 0.4
        base = height - top - (row + 1) * panel + 44
        axes = figure.add_axes((left, base / height, share, (panel - 74) / height))
        _plot(axes, curves, f"{salt}-{place}", tips, narrow=True)
        figure.text(left, (base + panel - 66) / height, curves.measured, color=paint("ink"), weight="bold", va="bottom")
        if row == rows - 1 or place + columns >= len(data):
            axes.set_xlabel(curves.unit)
    _legend(figure, data[0].arms, width)
    return Drawing(figure, "How training went", tips)


def draw_shifts(data: Shifts, salt: str, width: float) -> Drawing:
    tips: dict[str, str] = {}
    items = [
        FigureRow(arm.arm, _shift_note(arm, data), _PER_RUN * len(arm.pairs) + 26, arm_paint(arm.index))
        for arm in data.arms
    ]
    figure, drawn = layout_rows(width, items, (), data.measured)
    for axes, arm, item in zip(drawn, data.arms, items, strict=True):
        _draw_shift(axes, arm, item.height, salt, tips, data.unit)
    said = f"{data.measured} before and after training" if data.both else data.measured
    return Drawing(figure, said, tips)


def draw_forecasts(data: Forecasts, salt: str, width: float) -> Drawing:
    items = [
        FigureRow(f"{item.hypothesis}: {item.compared}", _forecast_note(item, data.unit), 50, paint("ink"))
        for item in data.items
    ]
    figure, drawn = layout_rows(width, items, _forecast_legend(data), f"difference in {data.measured}")
    for axes, item in zip(drawn, data.items, strict=True):
        _draw_forecast(axes, item, data.margin)
    drawn[-1].set_xlim(*_around_zero(data))
    drawn[-1].xaxis.set_major_formatter(FuncFormatter(format_tick))
    return Drawing(figure, f"Predicted and observed difference in {data.measured}", {})


def draw_screen(data: Screening, salt: str, width: float) -> Drawing:
    tips: dict[str, str] = {}
    shown = data.candidates[:_MOST_CANDIDATES]
    items = [
        FigureRow(found.sets, (_after(*found.points[-1], data.unit),), 17,
              arm_paint(1) if found.kept else paint("muted"))
        for found in shown
    ]  # fmt: skip
    figure, drawn = layout_rows(width, items, (), data.measured)
    for place, (axes, found) in enumerate(zip(drawn, shown, strict=True)):
        _draw_candidate(axes, found, data.lengths, f"{salt}-{place}", tips, data.unit)
    return Drawing(figure, f"The screen: {data.measured}", tips)


def _plot(axes: Axes, data: Curves, salt: str, tips: dict[str, str], narrow: bool) -> None:
    for arm in data.arms:
        for seed in arm.seeds:
            gid = f"{salt}-{seed.run_id}"
            tips[gid] = f"{arm.arm}, seed {seed.seed}, run {seed.run_id}"
            axes.plot(*_columns(seed.points), color=arm_paint(arm.index), linewidth=1, alpha=0.38, gid=gid)
        axes.plot(*_columns(arm.mean), color=paint("page"), linewidth=5, alpha=0.85)
        axes.plot(*_columns(arm.mean), color=arm_paint(arm.index), linewidth=2.6)
    if data.threshold is not None:
        axes.axhline(data.threshold, color=paint("ink"), linewidth=1.2, linestyle=(0, (5, 3)))
    if data.horizon is not None:
        axes.axvline(data.horizon, color=paint("muted"), linewidth=1.2)
    axes.grid(axis="y", linewidth=1)
    axes.tick_params(pad=6)
    axes.yaxis.set_major_locator(MaxNLocator(4 if narrow else 6, steps=STEPS))
    axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 7, steps=STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.margins(x=0.01)


def _label_lines(axes: Axes, arms: Sequence[ArmCurves]) -> None:
    ends = sorted((arm for arm in arms if arm.mean), key=lambda arm: arm.mean[-1][1])
    low, high = axes.get_ylim()
    for y, arm in zip(_spread_apart([arm.mean[-1][1] for arm in ends], (high - low) * 0.14), ends, strict=True):
        axes.annotate(f"{arm.arm}\nmean of {plural(len(arm.seeds), 'run')}", (1.0, y), va="center",
                      xycoords=("axes fraction", "data"), xytext=(12, 0), textcoords="offset points",
                      color=arm_paint(arm.index), linespacing=1.35)  # fmt: skip


def _legend(figure: Any, arms: Sequence[ArmCurves], width: float) -> None:
    lines: list[Artist] = [Line2D([], [], color=arm_paint(arm.index), linewidth=2.6) for arm in arms]
    names = ["\n".join(_wrap_to_width(arm.arm, width)) for arm in arms]
    figure.legend(lines, names, loc="upper left", bbox_to_anchor=(0.0, 1.0), ncols=_legend_columns(arms, width),
                  frameon=False, borderaxespad=0, borderpad=0.1, handlelength=1.4, fontsize=12)  # fmt: skip


def _legend_lines(arms: Sequence[ArmCurves], width: float) -> float:
    columns = _legend_columns(arms, width)
    rows = -(-len(arms) // columns)
    return max(1.0, rows) * max(len(_wrap_to_width(arm.arm, width)) for arm in arms)


def _legend_columns(arms: Sequence[ArmCurves], width: float) -> int:
    longest = max(len(line) for arm in arms for line in _wrap_to_width(arm.arm, width))
    return max(1, min(len(arms), int(width // (longest * 8 + 50))))


def _wrap_to_width(name: str, width: float) -> list[str]:
    return wrap_name(name, int(width // 8.6) - 4)


def _draw_shift(
    axes: Axes, arm: ArmShift, height: float, salt: str, tips: dict[str, str], unit: str
) -> None:  # fmt: skip
    color, shape = arm_paint(arm.index), marker(arm.index)
    for place, (label, before, after) in enumerate(arm.pairs):
        gid, y = f"{salt}-{arm.index}-{place}", 1 - _PER_RUN * (place + 0.5) / height
        begun = f"{number(before, unit=unit)} before, " if before is not None else ""
        tips[gid] = f"{arm.arm}, {label}: {begun}{number(after, unit=unit)} after"
        if before is not None:
            axes.plot([before, after], [y, y], color=color, linewidth=1, alpha=0.6, gid=gid)
            axes.plot([before], [y], color=color, marker=shape, markersize=5, markerfacecolor=paint("page"))
        if label in arm.collapsed:
            axes.plot([after], [y], color=color, marker="x", markersize=5.5, markeredgewidth=1.6)
        elif label in arm.missed:
            axes.plot([after], [y], color=color, marker=shape, markersize=5.5, markerfacecolor=paint("page"))
        else:
            axes.plot([after], [y], color=color, marker=shape, markersize=5.5, markeredgewidth=0, alpha=0.8)
    if arm.interval is not None:
        y, found = 10 / height, arm.interval
        axes.plot([found.low, found.high], [y, y], color=color, linewidth=2.4)
        axes.plot([found.mean], [y], color=color, marker=shape, markersize=10, markeredgecolor=paint("page"))


def _shift_note(arm: ArmShift, data: Shifts) -> tuple[str, ...]:
    kept = [(before, value) for label, before, value in arm.pairs if label not in arm.collapsed]
    collapsed = (f"{len(arm.collapsed)} collapsed",) if arm.collapsed else ()
    missed = (f"{len(arm.missed)} of {len(arm.pairs)} never reached it",) if arm.missed else ()
    if not kept or 2 * len(arm.missed) > len(kept):
        return (*missed, *collapsed)
    known, after = [before for before, _ in kept if before is not None], [value for _, value in kept]
    if data.rates:
        return (f"{round(sum(after))} of {plural(len(after), 'run')}",)
    mean = number(sum(after) / len(after), unit=data.unit)
    said = f"{number(sum(known) / len(known), unit=data.unit)} → {mean}" if len(known) == len(after) else mean
    return (said, f"mean of {plural(len(after), 'run')}" if len(after) > 1 else "1 run", *missed, *collapsed)


def _draw_forecast(axes: Axes, item: Forecast, margin: float | None) -> None:
    low, high = item.predicted
    if margin is not None:
        axes.axvspan(-margin, margin, color=paint("rule"), linewidth=0, zorder=0.5)
    axes.axvline(0, color=paint("ink"), linewidth=1.2)
    axes.barh(0.74, high - low, left=low, height=0.3, color=paint("band"), edgecolor=paint("muted"), linewidth=0.8)
    if item.estimate is None:
        return
    if item.observed is not None:
        axes.plot([item.observed.low, item.observed.high], [0.28, 0.28], color=paint("ink"), linewidth=2.4)
    axes.plot([item.estimate], [0.28], color=paint("ink"), marker="o", markersize=9)


def _forecast_note(item: Forecast, unit: str) -> tuple[str, ...]:
    predicted = f"predicted {span(*item.predicted, unit=unit)}"
    if item.estimate is None:
        return predicted, "not observed yet" if item.verdict == "none" else "no number observed"
    ends = "no interval" if item.observed is None else span(item.observed.low, item.observed.high, unit=unit)
    return predicted, f"observed {format_signed(item.estimate, unit=unit)}", f"({ends})"


def _forecast_legend(data: Forecasts) -> list[tuple[Artist, str]]:
    levels = {item.observed.level for item in data.items if item.observed is not None}
    observed = f"observed, {percent(levels.pop())} interval" if len(levels) == 1 else "observed, with its interval"
    asked = {item.level for item in data.items}
    predicted = f"predicted, {percent(asked.pop())}" if len(asked) == 1 else "predicted"
    found: list[tuple[Artist, str]] = [
        (Patch(facecolor=paint("band"), edgecolor=paint("muted"), linewidth=0.8), predicted),
        (Line2D([], [], color=paint("ink"), linewidth=2.4, marker="o", markersize=7), observed),
    ]
    if data.margin is not None:
        margin = number(data.margin, unit=data.unit) if data.unit else f"{data.margin:g}"
        found.append((Patch(facecolor=paint("rule")), f"too small to matter (±{margin})"))
    return found


def _draw_candidate(
    axes: Axes, candidate: ScreenedCandidate, lengths: Sequence[int], gid: str, tips: dict[str, str], unit: str
) -> None:  # fmt: skip
    said = ", ".join(_after(steps, value, unit) for steps, value in candidate.points)
    tips[gid] = f"{candidate.sets}: {said}"
    color = arm_paint(1) if candidate.kept else paint("muted")
    values = [value for _, value in candidate.points]
    axes.plot(values, [0.5] * len(values), color=color, linewidth=1, alpha=0.5, gid=gid)
    for steps, value in candidate.points:
        faint = 0.35 if steps < lengths[-1] else 1.0
        axes.plot([value], [0.5], color=color, marker="o", markersize=8, alpha=faint, markeredgewidth=0)


def _after(steps: int, value: float, unit: str) -> str:
    return f"{number(value, unit=unit)} after {plural(steps, 'step')}"


_MOST_CANDIDATES: Final = 24
"""Candidates drawn; the table lists all."""
_PER_RUN: Final = 9.0
"""Height that a run takes of its arm's strip, in CSS pixels."""
_MOST_BESIDE: Final = 5
_BESIDE_CHARS: Final = 20
"""Arms, and letters of their names, that find room beside their curves."""
_LEGEND_LINE: Final = 20.0
_THOUSAND: Final = 1000


def _around_zero(data: Forecasts) -> tuple[float, float]:
    """Return x limits that hold every interval, the margin and zero, with room at both sides."""
    ends = [0.0, *(end for item in data.items for end in (*item.predicted, item.estimate or 0.0))]
    ends += [end for item in data.items if item.observed for end in (item.observed.low, item.observed.high)]
    ends += [-data.margin, data.margin] if data.margin is not None else []
    return _with_room(ends)


def _with_room(ends: Sequence[float]) -> tuple[float, float]:
    low, high = min(ends), max(ends)
    room = 0.06 * ((high - low) or 1.0)
    return low - room, high + room


def _spread_apart(values: Sequence[float], gap: float) -> list[float]:
    """Return ascending values moved up just enough to stand `gap` apart, kept centred on where they were."""
    placed: list[float] = []
    for value in values:
        placed.append(max(value, placed[-1] + gap) if placed else value)
    moved = sum(placed) - sum(values)
    return [value - moved / len(values) for value in placed]


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def format_tick(value: float, _position: Any) -> str:
    if abs(value) < 1e-12:
        return "0"
    return (f"{value:+,.0f}" if abs(value) >= _THOUSAND else f"{value:+g}").replace("-", MINUS)


def effects(data: Effects, number: int) -> Figure:
    shaded = " Shaded: differences too small to matter." if any(item.margin for item in data.items) else ""
    caption = (
        f"Difference in {data.measured}, treatment minus control, of each claim with the interval that decided it, at "
        f"the level of its round.{shaded} Each round has fresh seeds."
    )
    name = "effects" if number == 1 else f"effects-{number}"
    return make_figure(name, "Claims by round", caption, draw_effects, data)


def levels(data: Sequence[LevelBars]) -> Figure:
    caption = (
        "The level of each round, by kind of claim. Dark: its own part; light: what the round before handed on. An "
        "outline is a round that was not locked, as it would be if nothing more were handed on."
    )
    return make_figure("levels", "The error ledgers", caption, draw_levels, tuple(data))


def draw_effects(data: Effects, _salt: str, width: float) -> Drawing:
    items = [FigureRow(item.name, _note(item, data.unit), 34, paint("ink")) for item in data.items]
    figure, drawn = layout_rows(width, items, (), f"difference in {data.measured}")
    for axes, item in zip(drawn, data.items, strict=True):
        _draw_effect(axes, item)
    drawn[-1].set_xlim(*_effect_limits(data.items))
    drawn[-1].xaxis.set_major_formatter(FuncFormatter(format_tick))
    return Drawing(figure, f"Difference in {data.measured} of each claim, by round", {})


def draw_levels(data: Sequence[LevelBars], _salt: str, width: float) -> Drawing:
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
    _spending_legend(figure)
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
    size, found = format_signed(item.estimate, unit=unit), item.observed
    if found is None:
        return item.label, size
    return item.label, size, f"{span(found.low, found.high, unit=unit)} ({percent(found.level)})"


def _effect_limits(items: Sequence[ClaimEffect]) -> tuple[float, float]:
    ends = [0.0, *(item.estimate or 0.0 for item in items)]
    ends += [end for item in items if item.observed for end in (item.observed.low, item.observed.high)]
    return _with_room(ends + [end for item in items if item.margin is not None for end in (-item.margin, item.margin)])


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


def _spending_legend(figure: Any) -> None:
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
