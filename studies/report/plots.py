"""The figures of a report: one SVG with a viewBox each, by matplotlib, which a page scales to its width.

Every run is visible; means and intervals lie on top. Nothing is smoothed; names are wrapped, never cut. Figures are
drawn in placeholder colours that become CSS variables with a light fallback, so that one SVG is legible on a light
page, on a dark one and on paper. Output is deterministic: no dates, fixed ids.
"""

import html
import io
import re
import textwrap
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock
from typing import Any, Final, NamedTuple
from warnings import catch_warnings

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.style import context
from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

from studies.records.verdict import AnalysisFigure
from studies.report.elements import ARMS
from studies.report.figure_data import ArmCurves, ArmShift, ClaimEffect, Curves, Effects, Shifts
from studies.report.wording import MINUS, capital, format_signed, number, percent, plural, span

LIGHT: Final[Mapping[str, str]] = {
    "ink": "#1d2329", "muted": "#646c75", "rule": "#e3e0d8", "band": "#d5dae2", "page": "#fbfaf7",
    "arm-0": "#0067a8", "arm-1": "#c4500c", "arm-2": "#007a5a", "arm-3": "#93458a", "arm-4": "#836800",
    "arm-5": "#35707f",
}  # fmt: skip
DARK: Final[Mapping[str, str]] = {
    "ink": "#e7e9ec", "muted": "#9ca5af", "rule": "#2b3138", "band": "#3b4552", "page": "#14171b",
    "arm-0": "#5cb3ec", "arm-1": "#f3944f", "arm-2": "#43c99d", "arm-3": "#dc90cc", "arm-4": "#dabb3e",
    "arm-5": "#80c6d6",
}  # fmt: skip
"""Arm colours keep apart under the common colour blindnesses (after Okabe and Ito); markers differ as well."""

MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_PLACEHOLDERS: Final = {name: f"#0a0b{index + 16:02x}" for index, name in enumerate(LIGHT)}

_STYLE: Final[Mapping[str, Any]] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "sans-serif", "font.size": 12.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.axisbelow": True,
    "axes.unicode_minus": True, "xtick.major.size": 0, "ytick.major.size": 0, "lines.solid_capstyle": "round",
}  # fmt: skip
_DRAWING: Final = RLock()
Picture = tuple[Canvas, str, Mapping[str, str]]
"""A figure before it is written, its label, and what is shown on hover by the gid of an artist."""
WIDTH: Final = 680.0
"""In CSS pixels, as all lengths here."""
STEPS: Final = (1, 2, 5, 10)
_LINE: Final = 17.0
_LEGEND_LINE: Final = 20.0
_FOOT: Final = 46.0
_NAME_CHARS: Final = 80
_PER_RUN: Final = 9.0
_STRIP: Final = 120.0
"""Most height of an arm's runs, however many they are."""
_THOUSAND: Final = 1000
_LEGEND: Final[Mapping[str, Any]] = {
    "loc": "upper left", "bbox_to_anchor": (0.0, 1.0), "frameon": False, "borderaxespad": 0, "borderpad": 0.1,
    "handlelength": 1.6, "fontsize": 12,
}  # fmt: skip


def paint(name: str) -> str:
    """Return the placeholder colour that becomes the CSS variable `name`."""
    return _PLACEHOLDERS[name]


def arm_paint(index: int) -> str:
    """Return the colour (see `paint`) of the arm at this place in the design; colours repeat after six."""
    return paint(f"arm-{index % ARMS}")


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


@contextmanager
def style(salt: str) -> Iterator[None]:
    """Draw a figure while inside, one thread at a time, as parameters are the process's; `salt` keeps ids apart."""
    colors = {
        "text.color": paint("ink"), "axes.labelcolor": paint("muted"), "xtick.color": paint("muted"),
        "ytick.color": paint("muted"), "axes.edgecolor": paint("rule"), "grid.color": paint("rule"),
        "axes.facecolor": "none", "figure.facecolor": "none", "svg.hashsalt": salt,
    }  # fmt: skip
    with _DRAWING, context(["default", {**_STYLE, **colors}]), catch_warnings(action="ignore", category=UserWarning):
        yield


def canvas(width: float, height: float) -> Canvas:
    return Canvas(figsize=(width / 72, height / 72))


def render_svg(figure: Canvas, label: str, tips: Mapping[str, str]) -> str:
    """Return the figure as an inline SVG element, its ids but those that are referred to dropped."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    titles = {gid: f"<title>{html.escape(tip)}</title>" for gid, tip in tips.items()}
    text = re.sub(r'<g id="([^"]*)">', lambda match: f"<g>{titles.get(match[1], '')}", text)
    used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    text = re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", text)
    for name, placeholder in _PLACEHOLDERS.items():
        text = text.replace(placeholder, f"var(--{name}, {LIGHT[name]})")
    width, height = (float(length) * 72 for length in figure.get_size_inches())
    opening = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{html.escape(label)}">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1).strip()


def standalone(svg: str) -> str:
    """Return an inline SVG as a file of its own that follows the reader's light or dark scheme."""
    sheet = (
        "<style>svg{font-family:system-ui,sans-serif;" + variables(LIGHT) + "}"
        "@media (prefers-color-scheme:dark){svg{background:" + DARK["page"] + ";" + variables(DARK) + "}}</style>"
    )
    head = '<?xml version="1.0" encoding="utf-8"?>\n'
    return head + re.sub(r"(<svg[^>]*>)", lambda match: match[0] + sheet, svg, count=1) + "\n"


def variables(palette: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in palette.items())


class FigureKind(NamedTuple):
    """How one of the figures is called, described and drawn from its data; `draw` takes a salt that keeps ids apart."""

    title: str
    caption: Callable[[Any], str]
    draw: Callable[[Any, str], Picture]


class Figure(NamedTuple):
    """A finished figure: an inline SVG, a title, and a caption that says what is drawn."""

    title: str
    caption: str
    svg: str


def make_figure(name: str, figure: str, data: Hashable) -> Figure:
    kind = FIGURES[figure]
    return Figure(kind.title, kind.caption(data), render_cached(figure, data, name))


@lru_cache(maxsize=32)  # a controller of many days holds them: as many as a report of four rounds has
def render_cached(figure: str, data: Hashable, salt: str) -> str:
    """Return a figure as SVG. It takes most of a report's time, and the proof and later rounds draw the same again."""
    with style(salt):
        return render_svg(*FIGURES[figure].draw(data, salt))


class FigureRow(NamedTuple):
    """One row of a figure: a name, a note that says its numbers, and a strip of a height."""

    name: str
    note: tuple[str, ...]
    height: float
    color: str


class _Thousands(ScalarFormatter):
    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:,.0f}".replace("-", MINUS) if abs(x) >= _THOUSAND else str(super().__call__(x, pos))


def layout_rows(rows: Sequence[FigureRow], legend: Mapping[str, Artist], measured: str) -> tuple[Any, list[Axes]]:
    """Return a figure and an axes for each strip, from top to bottom; y runs from 0 to 1 in each."""
    top = _LEGEND_LINE + 10 if legend else 4.0
    names = ["\n".join(wrap_name(row.name, _NAME_CHARS)) for row in rows]
    notes = ["\n".join(textwrap.wrap(" · ".join(row.note), _NAME_CHARS + 10)) for row in rows]
    above = [_LINE * (name.count("\n") + note.count("\n") + 2) + 4 for name, note in zip(names, notes, strict=True)]
    whole = top + sum(above) + sum(row.height + 16 for row in rows) + _FOOT
    figure = canvas(WIDTH, whole)
    if legend:
        figure.legend(legend.values(), legend.keys(), ncols=len(legend), columnspacing=1.6, **_LEGEND)
    look: dict[str, Any] = {"va": "top", "ha": "left", "linespacing": 1.3}
    drawn: list[Axes] = []
    for row, name, note, head in zip(rows, names, notes, above, strict=True):
        figure.text(0.0, 1 - top / whole, name, color=row.color, weight="bold", **look)
        below = top + _LINE * (name.count("\n") + 1)
        figure.text(0.0, 1 - below / whole, note, color=paint("ink"), fontsize=12, **look)
        place = (12 / WIDTH, 1 - (top + head + row.height) / whole, 1 - 26 / WIDTH, row.height / whole)
        axes: Axes = figure.add_axes(place, sharex=drawn[0] if drawn else None)
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        axes.spines["bottom"].set_visible(False)
        axes.grid(axis="x", linewidth=1)
        axes.tick_params(labelbottom=False)
        drawn.append(axes)
        top += head + row.height + 16
    last = drawn[-1]
    last.tick_params(labelbottom=True, pad=7)
    last.set_xlabel(measured)
    last.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
    last.xaxis.set_major_formatter(_Thousands())
    return figure, drawn


def wrap_name(name: str, most: int) -> list[str]:
    """Return a name in lines of about so many letters, broken between its parts where it has some (`a=1+b=2`)."""
    part = "\x00"  # stands where a name may be broken, in no name itself
    lines = textwrap.wrap(name.replace("+", f"+{part} "), most)
    return [line.replace(f"{part} ", "").replace(part, "") for line in lines] or [""]


def draw_curves(data: Curves, salt: str) -> Picture:
    tips, (names, columns, top) = dict[str, str](), _layout_legend(data.arms)
    height = top + 330
    figure = canvas(WIDTH, height)
    axes = figure.add_axes((0.08, 52 / height, 0.89, 1 - (52 + top) / height))
    lines = _plot(axes, data, salt, tips, ticks=6)
    axes.set_xlabel(data.unit)
    figure.legend(lines, names, ncols=columns, **_LEGEND)
    return figure, f"Curves: {data.measured}", tips


def draw_panels(data: Sequence[Curves], salt: str) -> Picture:
    tips: dict[str, str] = {}
    columns = min(2, len(data))
    (names, in_legend, top), panel = _layout_legend(data[0].arms), 206.0
    height = top + -(-len(data) // columns) * panel + 14
    figure = canvas(WIDTH, height)
    for place, curves in enumerate(data):
        line, column = divmod(place, columns)
        left, base = 0.08 + column * 0.5, height - top - (line + 1) * panel + 44
        axes = figure.add_axes((left, base / height, 0.89 if columns == 1 else 0.39, (panel - 74) / height))
        lines = _plot(axes, curves, f"{salt}-{place}", tips, ticks=4)
        if not place:
            figure.legend(lines, names, ncols=in_legend, **_LEGEND)
        figure.text(left, (base + panel - 66) / height, curves.measured, color=paint("ink"), weight="bold", va="bottom")
        if place + columns >= len(data):
            axes.set_xlabel(curves.unit)
    return figure, "How training went", tips


def _plot(axes: Axes, data: Curves, salt: str, tips: dict[str, str], ticks: int) -> list[Line2D]:
    for arm in data.arms:
        for seed in arm.seeds:
            gid = f"{salt}-{seed.run_id}"
            tips[gid] = f"{arm.arm}, seed {seed.seed}, run {seed.run_id}"
            axes.plot(*zip(*seed.points, strict=True), color=arm_paint(arm.index), linewidth=1, alpha=0.38, gid=gid)
        mean = [list(axis) for axis in zip(*arm.mean, strict=True)] or [[], []]
        axes.plot(*mean, color=paint("page"), linewidth=5, alpha=0.85)
        axes.plot(*mean, color=arm_paint(arm.index), linewidth=2.6)
    if data.threshold is not None:
        axes.axhline(data.threshold, color=paint("ink"), linewidth=1.2, linestyle=(0, (5, 3)))
    if data.horizon is not None:
        axes.axvline(data.horizon, color=paint("muted"), linewidth=1.2)
    axes.grid(axis="y", linewidth=1)
    axes.tick_params(pad=6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(ticks, steps=STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.margins(x=0.01)
    return [Line2D([], [], color=arm_paint(arm.index), linewidth=2.6) for arm in data.arms]


def _layout_legend(arms: Sequence[ArmCurves]) -> tuple[list[str], int, float]:
    said = [f"{arm.arm}, mean of {plural(len(arm.seeds), 'run')}" for arm in arms]
    names = ["\n".join(wrap_name(name, _NAME_CHARS - 5)) for name in said]
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = max(1, min(len(arms), int(WIDTH // (longest * 7.5 + 50))))
    return names, columns, _LEGEND_LINE * -(-len(arms) // columns) * max(name.count("\n") + 1 for name in names) + 12


def draw_analysis(data: AnalysisFigure, _salt: str) -> Picture:
    """Draw what a planner's own code made, as it gave it."""
    top, lines = _LEGEND_LINE * len(data.series) + 12, list[Line2D]()
    height = top + 330
    figure = canvas(WIDTH, height)
    axes = figure.add_axes((0.1, 52 / height, 0.87, 1 - (52 + top) / height))
    for index, series in enumerate(data.series):
        look: dict[str, Any] = {"linewidth": 2.0 if data.kind == "lines" else 0, "marker": marker(index)}
        lines += axes.plot(*zip(*series.points, strict=True), color=arm_paint(index), markersize=5, **look)
    axes.grid(axis="y", linewidth=1)
    axes.set(xlabel=data.x, ylabel=data.y)
    names = [textwrap.shorten(series.name, _NAME_CHARS) for series in data.series]
    figure.legend(lines, names, ncols=1, **_LEGEND)
    return figure, f"{data.y} by {data.x}", {}


def draw_shifts(data: Shifts, salt: str) -> Picture:
    tips: dict[str, str] = {}
    rows = [
        FigureRow(arm.arm, _shift_note(arm, data), min(_PER_RUN * len(arm.pairs), _STRIP) + 26, arm_paint(arm.index))
        for arm in data.arms
    ]
    figure, strips = layout_rows(rows, {}, data.measured)
    for axes, arm, row in zip(strips, data.arms, rows, strict=True):
        color, shape = arm_paint(arm.index), marker(arm.index)
        for place, (label, before, after) in enumerate(arm.pairs):
            below = _PER_RUN / 2 + (row.height - 26) / len(arm.pairs) * place
            gid, y = f"{salt}-{arm.index}-{place}", 1 - below / row.height
            begun = f"{number(before, unit=data.unit)} before, " if before is not None else ""
            tips[gid] = f"{arm.arm}, {label}: {begun}{number(after, unit=data.unit)} after"
            if before is not None:
                axes.plot([before, after], [y, y], color=color, linewidth=1, alpha=0.6, gid=gid)
                axes.plot([before], [y], color=color, marker=shape, markersize=5, markerfacecolor=paint("page"))
            if label in arm.collapsed:
                look: dict[str, Any] = {"marker": "x", "markeredgewidth": 1.6}
            elif label in arm.missed:
                look = {"marker": shape, "markerfacecolor": paint("page")}
            else:
                look = {"marker": shape, "markeredgewidth": 0, "alpha": 0.8}
            axes.plot([after], [y], color=color, markersize=5.5, **look)
        if arm.interval is not None:
            y, interval = 10 / row.height, arm.interval
            axes.plot([interval.low, interval.high], [y, y], color=color, linewidth=2.4)
            axes.plot([interval.mean], [y], color=color, marker=shape, markersize=10, markeredgecolor=paint("page"))
    return figure, data.measured + (" before and after training" if data.both else ""), tips


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
    count = plural(len(after), data.each)
    return (said, f"mean of {count}" if len(after) > 1 else count, *missed, *collapsed)


def draw_effects(data: Effects, _salt: str) -> Picture:
    """Draw the difference of each claim with its interval, below what was predicted."""
    rows = [FigureRow(item.name, _effect_note(item, data.unit), 50, paint("ink")) for item in data.items]
    figure, strips = layout_rows(rows, _effect_legend(data), f"difference in {data.measured}")
    look: dict[str, Any] = {"color": paint("band"), "edgecolor": paint("muted"), "linewidth": 0.8}
    ends, y = [0.0], 0.28
    for axes, item in zip(strips, data.items, strict=True):
        if data.margin is not None:
            axes.axvspan(-data.margin, data.margin, color=paint("rule"), linewidth=0, zorder=0.5)
            ends += [-data.margin, data.margin]
        axes.axvline(0, color=paint("ink"), linewidth=1.2)
        low, high, _ = item.predicted
        axes.barh(0.74, high - low, left=low, height=0.3, **look)
        ends += [low, high]
        if item.estimate is not None and item.observed is not None:
            axes.plot([item.observed.low, item.observed.high], [y, y], color=paint("ink"), linewidth=2.4)
            ends += [item.observed.low, item.observed.high]
        if item.estimate is not None:
            axes.plot([item.estimate], [y], color=paint("ink"), marker="o", markersize=9)
            ends.append(item.estimate)
    room = 0.06 * ((max(ends) - min(ends)) or 1.0)
    strips[-1].set_xlim(min(ends) - room, max(ends) + room)
    strips[-1].xaxis.set_major_formatter(FuncFormatter(format_tick))
    return figure, f"Predicted and observed difference in {data.measured}", {}


def _effect_note(item: ClaimEffect, unit: str) -> tuple[str, ...]:
    lead = f"predicted {span(*item.predicted[:2], unit=unit)}"
    if item.estimate is None:
        return lead, "no number observed" if item.judged else "not observed yet"
    found = item.observed
    ends = "no interval" if found is None else f"{span(found.low, found.high, unit=unit)}, {percent(found.level)}"
    return lead, f"observed {format_signed(item.estimate, unit=unit)} ({ends})"


def _effect_legend(data: Effects) -> dict[str, Artist]:
    levels = {item.observed.level for item in data.items if item.observed is not None}
    observed = f"observed, {percent(levels.pop())} interval" if len(levels) == 1 else "observed, with its interval"
    asked = {item.predicted[2] for item in data.items}
    predicted = f"predicted, {percent(asked.pop())}" if len(asked) == 1 else "predicted"
    found: dict[str, Artist] = {
        predicted: Patch(facecolor=paint("band"), edgecolor=paint("muted"), linewidth=0.8),
        observed: Line2D([], [], color=paint("ink"), linewidth=2.4, marker="o", markersize=7),
    }
    if data.margin is not None:
        size = number(data.margin, unit=data.unit) if data.unit else f"{data.margin:g}"
        found[f"too small to matter (±{size})"] = Patch(facecolor=paint("rule"))
    return found


def format_tick(value: float, _position: Any) -> str:
    if abs(value) < 1e-12:
        return "0"
    return (f"{value:+,.0f}" if abs(value) >= _THOUSAND else f"{value:+g}").replace("-", MINUS)


def _caption_shifts(data: Shifts) -> str:
    interval = "exact 95 % limits" if data.rates else "95 % t-interval" if data.each == "run" else "deciding interval"
    said = (
        "a thin line is one run, from before training (hollow) to after it (filled); the large mark is the arm's mean "
        f"after training with its {interval}."
        if data.both
        else f"a small mark is one {data.each}, the large one the arm's mean with its {interval}."
    )
    if any(arm.collapsed for arm in data.arms):
        said += " A cross is a training that collapsed, no part of the mean."
    if any(arm.missed for arm in data.arms):
        said += " A hollow mark is a run that never reached the threshold: it stands at the horizon."
    return f"{capital(data.measured)}: {said}"


def _caption_hidden(data: Curves) -> str:
    goal = "" if data.threshold is None else f" Dashed: the threshold of {data.threshold:g}, which a time is read off."
    end = "" if data.horizon is None else " The vertical line is the horizon, which is the same for all runs."
    return (
        f"{capital(data.measured)} of evaluations before, during and after training, by {data.unit}. {_LINES}; nothing "
        f"is smoothed.{goal}{end}"
    )


_OF_TRAINING: Final = (" and decide nothing", ": the area under them, up to the vertical line, is what is compared")
_LINES: Final = "Thin: one run; thick: an arm's mean"
FIGURES: Final[Mapping[str, FigureKind]] = {
    "predictions": FigureKind(
        "Predicted and observed",
        lambda data: (
            f"Difference in {data.measured}, treatment minus control. Bar: predicted before any run; mark and line: "
            f"observed, with the interval that decides."
            f"{'' if data.margin is None else ' Shaded: differences too small to matter.'}"
        ),
        draw_effects,
    ),
    "before-after": FigureKind("Before and after training", _caption_shifts, draw_shifts),
    "hidden-curves": FigureKind("Hidden success", _caption_hidden, draw_curves),
    "learning-curves": FigureKind(
        "Learning curves",
        lambda data: (
            f"{capital(data.measured)}, by {data.unit}. {_LINES}; nothing is smoothed. These episodes are the "
            f"training's own{_OF_TRAINING[data.horizon is not None]}."
        ),
        draw_curves,
    ),
    "analysis": FigureKind(
        "By the planner's code, exploratory",
        lambda data: f"By the planner's code, exploratory: {data.y} by {data.x}. No claim rests on it.",
        draw_analysis,
    ),
    "chosen": FigureKind(
        "Chosen by the planner",
        lambda data: f"{data.measured}, by {data.unit}; chosen by the planner, drawn by code. {_LINES}.",
        draw_curves,
    ),
    "training": FigureKind(
        "How training went",
        lambda data: f"Logged metrics by {data[0].unit}: {', '.join(each.measured for each in data)}. {_LINES}.",
        draw_panels,
    ),
}
