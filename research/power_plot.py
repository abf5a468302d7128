"""The power curve of a plan as a picture: what each number of seeds sees of the smallest effect, and of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _MUTED, _RULE, _PAGE = "#1d2329", "#646c75", "#e3e0d8", "#fbfaf7"
_LINES: Final = (("#0067a8", "-", 2.4), ("#93458a", "--", 1.6), ("#007a5a", ":", 1.8))


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


def draw(curve: PowerCurve, svg: Path, png: Path) -> None:
    """Write the picture in both formats; raises OSError."""
    from matplotlib.figure import Figure  # takes a second, which a plan in JSON need not wait for
    from matplotlib.style import context

    style = {"font.family": "sans-serif", "font.size": 11, "svg.fonttype": "none", "svg.hashsalt": "power"}
    with context(["default", style]):
        figure = Figure(figsize=(7.6, 4.6), facecolor=_PAGE, layout="constrained")
        _fill(figure.subplots(), curve)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, labelcolor=_INK)
        svg.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(svg, metadata={"Date": None})
        figure.savefig(png, dpi=130)


def _fill(axes: Axes, curve: PowerCurve) -> None:
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
