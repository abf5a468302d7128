"""Curves of several runs: means with intervals over the runs, and a plain drawing of them for the repository."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

LEVEL = 0.95
COLORS = ("#0067a8", "#c4500c", "#007a5a", "#93458a")
"""Kept apart under the common colour blindnesses (after Okabe and Ito); dashes differ as well."""
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over runs with its 95 % t-interval; the interval of one run is as wide as can be."""

    mean: float
    low: float
    high: float

    def shown(self, digits: int = 3) -> str:
        """Return `0.512 [0.490, 0.534]`."""
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def figures(self) -> dict[str, float | None]:
        """Return it as JSON values; an end that is not finite is null."""
        ends = {"mean": self.mean, "low": self.low, "high": self.high}
        return {name: round(value, 5) if math.isfinite(value) else None for name, value in ends.items()}


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values, one a run, with its t-interval."""
    from scipy.stats import t

    mean, count = fmean(values), len(values)
    if count < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def band(runs: Sequence[Sequence[float]]) -> list[Interval]:
    """Return mean and interval over runs at each step."""
    return [interval(values) for values in zip(*runs, strict=True)]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line with a band around it."""

    x: Sequence[float]
    y: Sequence[Interval]


def draw(panels: Mapping[str, Mapping[str, Curve]], path: Path, *, x: str, y: str, note: str) -> None:
    """Draw a panel for each environment, with a line for each name, as an SVG that is the same for the same values."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.6 * len(panels), 3.5), layout="constrained")
        for place, (title, curves) in enumerate(panels.items()):
            axes = figure.add_subplot(1, len(panels), place + 1)
            for number, (name, curve) in enumerate(curves.items()):
                color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
                axes.plot(curve.x, [one.mean for one in curve.y], dash, color=color, label=name, linewidth=1.6)
                lows, highs = [one.low for one in curve.y], [one.high for one in curve.y]
                if all(map(math.isfinite, lows)):
                    axes.fill_between(curve.x, lows, highs, color=color, alpha=0.16, linewidth=0)
            axes.set(title=title, xlabel=x, ylabel=y if place == 0 else "")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#e3e0d8", linewidth=0.8)
            axes.legend(frameon=False, fontsize=9)
        figure.supxlabel(note, fontsize=8, color="#646c75")
        figure.patch.set_facecolor("white")
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(path, metadata={"Date": None})
