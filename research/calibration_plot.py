"""The reliability plot: what was predicted against how often it came true, as SVG for a page and PNG for a screen.

A mark on the diagonal is a probability that means what it says. The bar is the Wilson interval of the share, the number
beside a mark its predictions: with few of them a mark far off the diagonal is no surprise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from research.calibration import Forecaster

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DRAWN = 6
"""Planners in one plot: more colours are told apart by nobody."""
_SHIFT = 0.014
"""How far planners are moved apart sideways, so that marks at one place can be told."""
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def draw(forecasters: Sequence[Forecaster], folder: Path) -> tuple[Path, Path]:
    """Write `reliability.svg` and `reliability.png` of the first planners into a folder; return both paths."""
    from matplotlib.style import context  # a second, which no other command should wait for

    from studies.report.theme import LIGHT, canvas

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

    from studies.report.theme import LIGHT

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
    from studies.report.theme import LIGHT, marker

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
