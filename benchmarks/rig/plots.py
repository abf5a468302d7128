"""Plots of benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from studies.report.plots import arm_paint, canvas, paint, render_svg, standalone, style
from studies.statistics.comparison import Interval, mean_interval

COLORS = ("#0067a8", "#c4500c", "#007a5a", "#93458a")
"""Kept apart under the common colour blindnesses (after Okabe and Ito); dashes differ as well."""
DASHES = ("-", "--", "-.", ":")


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values, one a run, with its 95 % t-interval; that of one run is as wide as can be."""
    return mean_interval(values) or Interval(values[0], -math.inf, math.inf)


def figures(values: Sequence[float]) -> dict[str, float | None]:
    """Return the interval of values as JSON values; an end that is not finite is null."""
    ends = asdict(interval(values))
    return {name: round(value, 5) if math.isfinite(value) else None for name, value in ends.items()}


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


WIDTH = 640
LINE = 44
"""Longest line of a name beside an axis."""
VERDICTS = ("supported", "refuted", "equivalent", "inconclusive", "invalid")
_PAINTS = ("arm-1", "arm-3", "arm-2", "band", "muted")


def drawings(suites: Mapping[str, Any]) -> dict[str, str]:
    """Return the plots of the suites that were run, by file name, as SVG files."""
    made: dict[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {
        "null": ("null.svg", _null),
        "effects": ("power.svg", _power),
        "equivalence": ("equivalence.svg", _equivalence),
    }
    drawn = {name: _drawn(name, draw, suites[suite]) for suite, (name, draw) in made.items() if suite in suites}
    return {**drawn, "bars.svg": _drawn("bars.svg", _bars, suites)}


def _drawn(name: str, draw: Callable[[Any], tuple[Any, str]], values: Any) -> str:
    with style(name):
        figure, label = draw(values)
        figure.tight_layout()
        return standalone(render_svg(figure, label, {}))


def _bars(suites: Mapping[str, Any]) -> tuple[Any, str]:
    """Draw every share that keeps or misses its bar, with its interval, and the bar as a tick."""
    found = [
        (f"{figure['name']}", figure)
        for suite in suites.values()
        for figure in suite["figures"]
        if figure["kept"] is not None and figure["percent"] and figure["count"] is not None and figure["of"]
    ]
    names = [fill(name, LINE) for name, _ in reversed(found)]
    figure = canvas(WIDTH, 60 + 18 * sum(name.count("\n") + 1.5 for name in names))
    axes = figure.add_subplot()
    for place, (_, entry) in enumerate(reversed(found)):
        color = arm_paint(2) if entry["kept"] else arm_paint(1)
        axes.plot([100 * entry["low"], 100 * entry["high"]], [place, place], color=color, linewidth=2.5)
        axes.plot([100 * entry["value"]], [place], "X" if entry["kept"] is False else "o", color=color, markersize=7)
        words = entry["bar"].replace("%", " ").split()
        for end in [float(word) for word in words if word.replace(".", "").isdigit()]:
            axes.plot([end, end], [place - 0.35, place + 0.35], color=paint("ink"), linewidth=1.2)
    axes.set_yticks(range(len(found)), names, fontsize=10.5)
    axes.set(xlim=(-2, 102), ylim=(-0.7, len(found) - 0.3), xlabel="%")
    axes.grid(axis="x", linewidth=0.8)
    return figure, "Every share that keeps or misses its bar, with its interval"


def _null(suite: Mapping[str, Any]) -> tuple[Any, str]:
    """Draw every interval under the null, in the order of the estimates."""
    entries = sorted((entry for entry in suite["series"]["estimates"] if entry[1] is not None), key=lambda e: e[0])
    figure = canvas(WIDTH, 300)
    axes = figure.add_subplot()
    for place, (estimate, low, high, verdict) in enumerate(entries):
        wrong = verdict in ("supported", "refuted")
        color = arm_paint(1) if wrong else arm_paint(0)
        axes.plot([place, place], [low, high], color=color, linewidth=1.6 if wrong else 0.7, zorder=3 if wrong else 2)
        axes.plot([place], [estimate], "X" if wrong else ".", color=color, markersize=6 if wrong else 2, zorder=3)
    axes.axhline(0, color=paint("ink"), linewidth=1)
    axes.set_xlabel(f"{len(entries)} claims about knobs that do nothing, by estimate (crosses: false claims)")
    axes.set_ylabel("hidden success, difference")
    axes.grid(axis="y", linewidth=0.8)
    axes.set_xticks([])
    return figure, "Intervals of claims about knobs that do nothing"


def _power(suite: Mapping[str, Any]) -> tuple[Any, str]:
    """Draw power by size, with the promise."""
    sizes = sorted(suite["series"]["power"], key=float)
    points = [suite["series"]["power"][size] for size in sizes]
    promise = suite["series"]["promise"]
    figure = canvas(WIDTH, 300)
    axes = figure.add_subplot()
    x = [float(size) for size in sizes]
    axes.plot(x, [100 * value for value, _, _ in points], "o-", color=arm_paint(0), markersize=7)
    for size, (_, low, high) in zip(x, points, strict=True):
        axes.plot([size, size], [100 * low, 100 * high], color=arm_paint(0), linewidth=2)
    axes.plot([promise["size"]], [100 * promise["power"]], "_", color=arm_paint(1), markersize=26, markeredgewidth=2.5)
    axes.annotate("promised", (promise["size"], 100 * promise["power"]), (14, -4), textcoords="offset points",
                  color=arm_paint(1))  # fmt: skip
    axes.set(ylim=(-3, 103), xlabel="true difference (standard deviations between seeds)", ylabel="found (%)")
    axes.set_xticks(x)
    axes.grid(axis="y", linewidth=0.8)
    return figure, "Power by the size of the true difference"


def _equivalence(suite: Mapping[str, Any]) -> tuple[Any, str]:
    """Draw the verdicts by the true difference, stacked."""
    found = suite["series"]["verdicts"]
    sizes = sorted(found, key=float)
    figure = canvas(WIDTH, 60 + 44 * len(sizes))
    axes = figure.add_subplot()
    for place, size in enumerate(reversed(sizes)):
        total, left = sum(found[size].values()), 0.0
        for name, color in zip(VERDICTS, _PAINTS, strict=True):
            if width := 100 * found[size].get(name, 0) / max(1, total):
                axes.barh([place], [width], left=left, color=paint(color), height=0.7)
                left += width
    axes.set_yticks(range(len(sizes)), [f"{float(size):g}" for size in reversed(sizes)])
    axes.set(xlim=(0, 100), xlabel="verdicts (%)", ylabel="true difference")
    for name, color in zip(VERDICTS, _PAINTS, strict=True):
        axes.barh([0], [0], color=paint(color), label=name)
    axes.legend(frameon=False, ncols=len(VERDICTS), loc="lower center", bbox_to_anchor=(0.45, 1.0), fontsize=10,
                handlelength=1, columnspacing=1.2)  # fmt: skip
    return figure, "Verdicts by the true difference"
