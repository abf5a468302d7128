"""The plots of two commands, each as SVG for a page and PNG for a screen.

`draw_power` is the power curve of `ajet study plan`: what each number of seeds sees of the smallest effect, and of
others. `draw_reliability` is that of `ajet planner`: what was predicted against how often it came true. A mark on the
diagonal is a probability that means what it says; the bar is the Wilson interval of the share, the number beside a mark
its predictions: with few of them a mark far off the diagonal is no surprise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from research.planners.track_record import Forecaster

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _MUTED, _RULE, _PAGE = "#1d2329", "#646c75", "#e3e0d8", "#fbfaf7"
_LINES: Final = (("#0067a8", "-", 2.4), ("#93458a", "--", 1.6), ("#007a5a", ":", 1.8))
MOST_DRAWN = 6
"""Planners in one plot: more colours are told apart by nobody."""
_SHIFT = 0.014
"""How far planners are moved apart sideways, so that marks at one place can be told."""
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """What is drawn."""

    title: str
    promised: float
    series: Mapping[float, Sequence[tuple[int, float]]]
    """Power by number of seeds, for each effect; the smallest effect of interest first."""
    chosen: int | None
    """The seeds of the design; None where it was refused."""
    affordable: int
    """Most seeds that the budget affords."""


def draw_power(curve: PowerCurve, svg: Path, png: Path) -> None:
    """Write the picture in both formats; raises OSError."""
    from matplotlib.figure import Figure  # takes a second, which a plan in JSON need not wait for
    from matplotlib.style import context

    style = {"font.family": "sans-serif", "font.size": 11, "svg.fonttype": "none", "svg.hashsalt": "power"}
    with context(["default", style]):
        figure = Figure(figsize=(7.6, 4.6), facecolor=_PAGE, layout="constrained")
        _power(figure.subplots(), curve)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, labelcolor=_INK)
        svg.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(svg, metadata={"Date": None})
        figure.savefig(png, dpi=130)


def _power(axes: Axes, curve: PowerCurve) -> None:
    seeds = sorted({count for points in curve.series.values() for count, _ in points})
    if curve.affordable < seeds[-1]:
        axes.axvspan(curve.affordable + 0.5, seeds[-1] + 0.5, color=_RULE, lw=0, zorder=0)
        axes.text(seeds[-1] + 0.35, 1.05, "not affordable", ha="right", va="center", color=_MUTED, fontsize=10)
    axes.axhline(curve.promised, color=_MUTED, lw=1, ls=(0, (4, 3)))
    axes.annotate(
        f"promised\n{curve.promised:g}", (1.0, curve.promised), (5, 0), color=_MUTED, fontsize=10,
        xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
    )  # fmt: skip
    for (color, dash, width), (effect, points) in zip(_LINES, curve.series.items(), strict=False):
        label = f"of {effect:g}"
        axes.plot(*zip(*points, strict=True), color=color, ls=dash, lw=width, marker="o", ms=4, label=label)
    if curve.chosen is not None:
        power = dict(next(iter(curve.series.values())))[curve.chosen]
        label = f"the design: {curve.chosen} seeds"
        axes.plot([curve.chosen], [power], "o", ms=13, mfc="none", mec=_INK, mew=1.6, label=label)
    axes.set(
        xlim=(seeds[0] - 0.5, seeds[-1] + 0.5),
        ylim=(0, 1.1),
        yticks=[0, 0.2, 0.4, 0.6, 0.8, 1],
        xticks=seeds[:: max(1, len(seeds) // 12)],
    )
    axes.set_xlabel("seeds of each arm", color=_MUTED)
    axes.set_ylabel("probability of seeing a difference", color=_MUTED)
    axes.set_title(curve.title, loc="left", color=_INK, fontsize=12)
    axes.set_facecolor(_PAGE)
    axes.grid(axis="y", color=_RULE, lw=0.8)
    axes.tick_params(colors=_MUTED, length=0)
    axes.spines[:].set_visible(False)


def draw_reliability(forecasters: Sequence[Forecaster], folder: Path) -> tuple[Path, Path]:
    """Write `reliability.svg` and `reliability.png` of the first planners into a folder; return both paths."""
    from matplotlib.style import context  # a second, which no other command should wait for

    from studies.report.parts.theme import LIGHT, canvas

    colours = {
        "text.color": LIGHT["ink"], "axes.labelcolor": LIGHT["ink"], "xtick.color": LIGHT["muted"],
        "ytick.color": LIGHT["muted"], "axes.edgecolor": LIGHT["rule"], "grid.color": LIGHT["rule"],
        "axes.facecolor": LIGHT["page"], "figure.facecolor": LIGHT["page"], "savefig.facecolor": LIGHT["page"],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / "reliability.svg", folder / "reliability.png"
    with context(["default", {"font.size": 12, "svg.fonttype": "none", "svg.hashsalt": "reliability", **colours}]):
        figure = canvas(500, 520)
        axes = figure.add_axes((0.12, 0.11, 0.84, 0.77))
        _frame(axes)
        for index, entry in enumerate(forecasters[:MOST_DRAWN]):
            _marks(axes, entry, index, (index - (min(len(forecasters), MOST_DRAWN) - 1) / 2) * _SHIFT)
        figure.legend(loc="upper left", bbox_to_anchor=(0.1, 1.0), ncols=2, frameon=False, handlelength=1.2)
        figure.savefig(svg, metadata={"Date": None})
        figure.savefig(png, dpi=144)
    return svg, png


def _frame(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    from studies.report.parts.theme import LIGHT

    axes.plot((0, 1), (0, 1), color=LIGHT["muted"], linewidth=1, linestyle=(0, (4, 4)), zorder=1)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=_SHARES, yticks=_SHARES, aspect="equal")
    axes.set_xlabel("predicted probability of being supported")
    axes.set_ylabel("share that was supported")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _marks(axes: Axes, entry: Forecaster, index: int, shift: float) -> None:
    from studies.report.parts.theme import LIGHT, marker

    colour = LIGHT[f"arm-{index}"]
    for number, held in enumerate(entry.bins):
        x, share = held.predicted + shift, held.supported
        axes.plot((x, x), (share.low, share.high), color=colour, linewidth=2.2, alpha=0.55, zorder=2)
        axes.plot(
            x, share.mean, marker(index), color=colour, markersize=8.5, markeredgecolor=LIGHT["page"], zorder=3,
            label=f"{entry.title} ({entry.valid})" if number == 0 else None,
        )  # fmt: skip
        side = -1 if index % 2 == 0 else 1
        axes.annotate(
            str(held.n), (x, share.mean), xytext=(7 * side, 4), textcoords="offset points", color=colour, fontsize=10,
            ha="right" if side < 0 else "left",
        )  # fmt: skip
