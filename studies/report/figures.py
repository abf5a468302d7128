"""The figures of a report: learning curves, hidden success before and after, predicted against observed.

Each is drawn twice from the same data, for a wide page and for a phone, so that its letters keep their size. Every
run is visible in every figure; means and intervals lie on top. Nothing is smoothed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from studies.report.series import ArmCurves, ArmShift, Curves, Forecast, Forecasts, Screened, Screening, Shifts
from studies.report.theme import arm_paint, canvas, marker, paint, style, themed
from studies.report.wording import MINUS, number, percent, plural, signed, span

WIDE: Final = 860.0
NARROW: Final = 350.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A finished figure: inline SVG in two widths, a title, and a caption that says what is drawn."""

    name: str
    title: str
    caption: str
    wide: str
    narrow: str


Tips = dict[str, str]


def learning_curves(data: Curves) -> Figure:
    """Draw every run's training curve thin and each arm's mean thick."""
    caption = (
        f"{data.measured[0].upper()}{data.measured[1:]}, by {data.unit}. A thin line is one run, a thick one the mean "
        "of an arm's runs; nothing is smoothed. These episodes are the training's own and decide nothing."
    )
    return _both("learning-curves", "Learning curves", caption, lambda name, width: _draw_curves(data, name, width))


def training_reward(data: Curves, number: int) -> Figure:
    """Draw what one reward function gave in training, on an axis of its own."""
    caption = (
        f"{data.measured[0].upper()}{data.measured[1:]}, by {data.unit}. Its axis is its own: a reward's height says "
        "nothing beside another's. A thin line is one run, a thick one the mean of an arm's runs."
    )
    name = f"training-reward-{number}"
    return _both(name, "Training reward", caption, lambda salt, width: _draw_curves(data, salt, width))


def before_after(data: Shifts) -> Figure:
    """Draw the hidden metric of every run before and after training, and each arm's mean with its interval."""
    caption = (
        f"{data.measured[0].upper()}{data.measured[1:]} before and after training. A thin line is one run; the large "
        "mark is the arm's mean after training with its 95 % t-interval."
    )
    name = "before-after"
    return _both(name, "Hidden success, before and after", caption, lambda salt, width: _draw_shifts(data, salt, width))


def predictions(data: Forecasts) -> Figure:
    """Draw the predicted interval of each hypothesis above the observed one."""
    caption = (
        f"Difference in {data.measured}, treatment minus control. The band is what the planner predicted before any "
        "run; the mark with its line is the observed difference and its interval."
    )
    name = "predictions"
    return _both(name, "Predicted and observed", caption, lambda salt, width: _draw_forecasts(data, salt, width))


def screen(data: Screening) -> Figure:
    """Draw every candidate of a screen at each of its rungs, those that were confirmed in colour."""
    caption = (
        f"{data.measured[0].upper()}{data.measured[1:]} of the screen's candidates, one seed each: a faint mark is a "
        "shorter run, the full one the longest. Coloured candidates were confirmed. No claim rests on a screen."
    )
    return _both("screen", "The screen", caption, lambda name, width: _draw_screen(data, name, width))


def _both(name: str, title: str, caption: str, draw: Callable[[str, float], str]) -> Figure:
    return Figure(name, title, caption, draw(f"{name}-wide", WIDE), draw(f"{name}-narrow", NARROW))


def _draw_curves(data: Curves, name: str, width: float) -> str:
    tips: Tips = {}
    narrow = width < WIDE
    with style(name):
        figure = canvas(width, 300 if narrow else 340)
        axes = figure.add_axes((0.13, 0.2, 0.84, 0.66) if narrow else (0.065, 0.155, 0.735, 0.8))
        for arm in data.arms:
            _draw_arm(axes, arm, name, tips)
        _frame(axes, grid="y")
        axes.set_xlabel(data.unit)
        axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 7, steps=_STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.margins(x=0.01)
        _name_arms(axes, data.arms, narrow)
        return themed(figure, f"Learning curves: {data.measured}", tips)


def _draw_arm(axes: Axes, arm: ArmCurves, name: str, tips: Tips) -> None:
    for seed in arm.seeds:
        gid = f"{name}-{seed.run_id}"
        tips[gid] = f"{arm.arm}, seed {seed.seed}, run {seed.run_id}"
        axes.plot(*_columns(seed.points), color=arm_paint(arm.index), linewidth=1, alpha=0.38, gid=gid)
    axes.plot(*_columns(arm.mean), color=paint("page"), linewidth=5, alpha=0.85)
    axes.plot(*_columns(arm.mean), color=arm_paint(arm.index), linewidth=2.6)


def _name_arms(axes: Axes, arms: Sequence[ArmCurves], narrow: bool) -> None:
    """Name each arm at the end of its mean curve; on a phone, above the axes."""
    if narrow:
        lines = [Line2D([], [], color=arm_paint(arm.index), linewidth=2.6) for arm in arms]
        axes.legend(lines, [_short(arm.arm) for arm in arms], frameon=False, loc="lower left", ncols=2,
                    bbox_to_anchor=(-0.02, 1.0), handlelength=1.2, columnspacing=1.2, borderaxespad=0.2)  # fmt: skip
        return
    ends = sorted((arm for arm in arms if arm.mean), key=lambda arm: arm.mean[-1][1])
    low, high = axes.get_ylim()
    for y, arm in zip(_apart([arm.mean[-1][1] for arm in ends], (high - low) * 0.14), ends, strict=True):
        axes.annotate(f"{_short(arm.arm)}\nmean of {plural(len(arm.seeds), 'run')}", (1.0, y), va="center",
                      xycoords=("axes fraction", "data"), xytext=(12, 0), textcoords="offset points",
                      color=arm_paint(arm.index), linespacing=1.35)  # fmt: skip


def _draw_shifts(data: Shifts, name: str, width: float) -> str:
    tips: Tips = {}
    narrow = width < WIDE
    with style(name):
        figure = canvas(width, 300 if narrow else 330)
        axes = figure.add_axes((0.13, 0.16, 0.85, 0.8) if narrow else (0.065, 0.13, 0.92, 0.84))
        for place, arm in enumerate(data.arms):
            _draw_shift(axes, arm, _PITCH * place, name, tips)
        _frame(axes, grid="y")
        last, room = _PITCH * (len(data.arms) - 1) + 1.5, 62 / (width * 0.85)
        axes.set_xlim(-0.55, last + room * (last + 0.55) / (1 - room))
        _name_places(axes, data.arms, narrow)
        for tick, arm in zip(axes.get_xticklabels(), data.arms, strict=True):
            tick.set_color(arm_paint(arm.index))
        return themed(figure, f"{data.measured} before and after training", tips)


def _draw_screen(data: Screening, name: str, width: float) -> str:
    tips: Tips = {}
    narrow = width < WIDE
    shown = data.candidates[:_MOST_CANDIDATES]
    height = 64.0 + 26 * len(shown)
    with style(name):
        figure = canvas(width, height)
        left = 0.03 if narrow else 0.42
        axes = figure.add_axes((left, 52 / height, 0.94 - left, 1 - 60 / height))
        for place, candidate in enumerate(shown):
            _draw_candidate(axes, candidate, float(len(shown) - 1 - place), data.lengths, f"{name}-{place}", tips)
        _frame(axes, grid="x")
        axes.set_ylim(-0.6, len(shown) - 0.4)
        labels = [] if narrow else [_short(candidate.sets, 48) for candidate in reversed(shown)]
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xlabel(data.measured)
        axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 6, steps=_STEPS))
        return themed(figure, f"The screen: {data.measured}", tips)


def _draw_candidate(axes: Axes, candidate: Screened, y: float, lengths: Sequence[int], gid: str, tips: Tips) -> None:
    said = ", ".join(f"{number(value)} after {plural(steps, 'step')}" for steps, value in candidate.points)
    tips[gid] = f"{candidate.sets}: {said}"
    color = arm_paint(1) if candidate.kept else paint("muted")
    values = [value for _, value in candidate.points]
    axes.plot(values, [y] * len(values), color=color, linewidth=1, alpha=0.5, gid=gid)
    for steps, value in candidate.points:
        faint = 0.35 if steps < lengths[-1] else 1.0
        axes.plot([value], [y], color=color, marker="o", markersize=8, alpha=faint, markeredgewidth=0)


def _name_places(axes: Axes, arms: Sequence[ArmShift], narrow: bool) -> None:
    crowded = len(arms) > (2 if narrow else 5)
    below = "" if crowded else "\nbefore → after"
    labels = [f"{_short(arm.arm, 14 if narrow else 26)}{below}" for arm in arms]
    centres = [_PITCH * place + 0.75 for place in range(len(arms))]
    look: dict[str, Any] = {"rotation": 22, "ha": "right", "fontsize": 10} if crowded else {}
    axes.set_xticks(centres, labels, **look)


def _draw_shift(axes: Axes, arm: ArmShift, x: float, name: str, tips: Tips) -> None:
    color, shape = arm_paint(arm.index), marker(arm.index)
    for number_, (label, before, after) in enumerate(arm.pairs):
        gid = f"{name}-{arm.index}-{number_}"
        tips[gid] = f"{arm.arm}, {label}: {number(before)} before, {number(after)} after"
        points = [(x, before), (x + 1, after)] if before is not None else [(x + 1.0, after)]
        axes.plot(*_columns(points), color=color, linewidth=1, alpha=0.55, marker=shape, markersize=6.5,
                  markeredgewidth=0, gid=gid)  # fmt: skip
    if arm.interval is not None:
        at, interval = x + 1.5, arm.interval
        axes.plot([at, at], [interval.low, interval.high], color=color, linewidth=2.4)
        axes.plot([at], [interval.mean], color=color, marker=shape, markersize=10, markeredgecolor=paint("page"))
        axes.annotate(number(interval.mean), (at, interval.mean), xytext=(11, 0), textcoords="offset points",
                      va="center", color=color, weight="bold")  # fmt: skip


def _draw_forecasts(data: Forecasts, name: str, width: float) -> str:
    narrow = width < WIDE
    rows = len(data.items)
    height = 70.0 + (104 if narrow else 92) * rows
    with style(name):
        figure = canvas(width, height)
        axes = figure.add_axes((0.03, 52 / height, 0.94, 1 - 58 / height))
        limits = _around_zero(data.items)
        for place, item in enumerate(data.items):
            _draw_forecast(axes, item, float(rows - 1 - place), limits, width)
        _frame(axes, grid="x")
        axes.axvline(0, color=paint("ink"), linewidth=1.2)
        axes.set_ylim(-0.5, rows - 0.42)
        axes.set_xlim(*limits)
        axes.set_yticks([])
        axes.set_xlabel(f"difference in {data.measured}")
        axes.xaxis.set_major_locator(MaxNLocator(5 if narrow else 9, steps=_STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(_signed_tick))
        return themed(figure, f"Predicted and observed difference in {data.measured}", {})


def _draw_forecast(axes: Axes, item: Forecast, y: float, limits: tuple[float, float], width: float) -> None:
    low, high = item.predicted
    at_left: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "bbox": _BACKING}
    axes.text(
        0.0,
        y + 0.4,
        f"{item.hypothesis}: {_short(item.compared, 44 if width < WIDE else 96)}",
        weight="bold",
        **at_left,
    )
    axes.barh(y + 0.08, high - low, left=low, height=0.24, color=paint("band"), edgecolor=paint("muted"), linewidth=0.8)
    _say_beside(axes, f"predicted, {percent(item.level)}", (low, high), y + 0.08, limits, width)
    if item.estimate is None:
        axes.text(0.0, y - 0.26, "not observed yet", color=paint("muted"), fontsize=11, **at_left)
        return
    if item.observed is not None:
        axes.plot(item.observed, [y - 0.2, y - 0.2], color=paint("ink"), linewidth=2.4)
    axes.plot([item.estimate], [y - 0.2], color=paint("ink"), marker="o", markersize=9)
    said = "no interval" if item.observed is None else span(*item.observed)
    _say(axes, f"observed {signed(item.estimate)} ({said})", item.estimate, y - 0.2, limits, below=13, bbox=_BACKING)


def _say(axes: Axes, text: str, x: float, y: float, limits: tuple[float, float], below: float = 0, **look: Any) -> None:
    """Write a label at x, aligned so that it does not run out of the figure."""
    share = (x - limits[0]) / (limits[1] - limits[0])
    align = "left" if share < 0.32 else "right" if share > 0.68 else "center"
    axes.annotate(text, (x, y), xytext=(0, -below), textcoords="offset points", ha=align, va="center",
                  fontsize=11, **look)  # fmt: skip


def _say_beside(
    axes: Axes, text: str, bar: tuple[float, float], y: float, limits: tuple[float, float], width: float
) -> None:
    """Write a label into a bar when there is room for it, else beside the bar where the figure has more room."""
    low, high = bar
    if (high - low) / (limits[1] - limits[0]) * width * 0.94 > 100:
        axes.text((low + high) / 2, y, text, ha="center", va="center", fontsize=11)
        return
    right = limits[1] - high > low - limits[0]
    axes.annotate(text, (high if right else low, y), xytext=(8 if right else -8, 0), textcoords="offset points",
                  ha="left" if right else "right", va="center", fontsize=11, bbox=_BACKING)  # fmt: skip


_PITCH: Final = 3.2
_MOST_CANDIDATES: Final = 24
"""Candidates drawn; the table lists all."""
_STEPS: Final = (1, 2, 5, 10)
_BACKING: Final = {"facecolor": paint("page"), "edgecolor": "none", "pad": 1.0}


def _frame(axes: Axes, grid: Literal["x", "y"]) -> None:
    axes.grid(axis=grid, linewidth=1)
    axes.tick_params(pad=6)
    if grid == "y":
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    else:
        axes.spines["bottom"].set_visible(False)


def _around_zero(items: Sequence[Forecast]) -> tuple[float, float]:
    """Return x limits that hold every interval and zero, with room at both sides."""
    ends = [0.0, *(end for item in items for end in (*item.predicted, *(item.observed or ()), item.estimate or 0.0))]
    low, high = min(ends), max(ends)
    room = 0.16 * ((high - low) or 1.0)
    return low - room, high + room


def _apart(values: Sequence[float], gap: float) -> list[float]:
    """Return ascending values moved up just enough to stand `gap` apart, kept centred on where they were."""
    placed: list[float] = []
    for value in values:
        placed.append(max(value, placed[-1] + gap) if placed else value)
    moved = sum(placed) - sum(values)
    return [value - moved / len(values) for value in placed]


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _signed_tick(value: float, _position: Any) -> str:
    return "0" if abs(value) < 1e-12 else f"{value:+g}".replace("-", MINUS)


def _short(text: str, limit: int = 22) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
