from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.text import Text

from studies.report import figure_data, plots
from studies.report.plots import style
from studies.statistics.comparison import mean_interval
from studies.verdicts.wording import DecidingInterval

Draw = Callable[[str], plots.Picture]

NAMES = ("group_size=4", "group_size=16", "learning_rate=0.003, group_size=64, temperature=0.7, clip_ratio=0.28")


def curves(names: tuple[str, ...] = NAMES, height: float = 1.0) -> figure_data.Curves:
    def arm(index: int, name: str) -> figure_data.ArmCurves:
        points = [tuple((float(x), height * (0.3 + 0.01 * x + 0.02 * n)) for x in range(1, 21)) for n in range(3)]
        seeds = tuple(figure_data.SeedCurve(f"run{index}{n}", n, line) for n, line in enumerate(points))
        return figure_data.ArmCurves(name, index, seeds, points[1])

    return figure_data.Curves(
        tuple(arm(index, name) for index, name in enumerate(names)), "hidden success", "training episodes"
    )


def shifts(names: tuple[str, ...] = NAMES) -> figure_data.Shifts:
    def arm(index: int, name: str) -> figure_data.ArmShift:
        pairs = tuple((f"run {n}", 0.3 + 0.01 * n, 0.5 + 0.02 * n + 0.1 * index) for n in range(4))
        return figure_data.ArmShift(name, index, pairs, mean_interval([after for _, _, after in pairs]))

    return figure_data.Shifts(tuple(arm(index, name) for index, name in enumerate(names)), "hidden success")


def effect(
    low: float = 0.02, high: float = 0.2, estimate: float | None = 0.1, half: float = 0.05
) -> figure_data.ClaimEffect:
    observed = None if estimate is None else DecidingInterval(estimate - half, estimate + half, 0.95)
    name = f"h1: {NAMES[2]} against {NAMES[0]}"
    return figure_data.ClaimEffect(name, (low, high, 0.8), observed is not None, estimate, observed)


def effects(*items: figure_data.ClaimEffect, margin: float | None = 0.05) -> figure_data.Effects:
    return figure_data.Effects(items or (effect(), effect(estimate=None)), "hidden success", margin=margin)


DRAWN: dict[str, Draw] = {
    "curves": lambda salt: plots.draw_curves(curves(), salt),
    "curves of two arms": lambda salt: plots.draw_curves(curves(NAMES[:2]), salt),
    "panels": lambda salt: plots.draw_panels([curves(height=scale) for scale in (1, 10, 0.01)], salt),
    "before and after": lambda salt: plots.draw_shifts(shifts(), salt),
    "forecasts": lambda salt: plots.draw_effects(effects(), salt),
}


@cache
def drawn(draw: Draw) -> Any:
    with style("test"), warnings.catch_warnings():
        warnings.simplefilter("error")
        canvas, _, _ = draw("test")
        canvas.set_dpi(72)
        FigureCanvasAgg(canvas).draw()  # type: ignore[no-untyped-call]
    return canvas


def texts(canvas: Any) -> list[Text]:
    """Return all text that is seen; ticks outside of their axes are not."""
    unseen = set()
    for axes in canvas.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            unseen |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    found = (text for text in canvas.findobj(Text) if text.get_visible() and text.get_text().strip())
    return [text for text in found if text not in unseen]


def lines(canvas: Any) -> Iterator[Line2D]:
    yield from (line for line in canvas.findobj(Line2D) if line.get_visible() and len(line.get_xdata()) > 1)


def crossings(canvas: Any) -> list[str]:
    found = []
    for text in texts(canvas):
        box = text.get_window_extent()
        for line in lines(canvas):
            path = line.get_transform().transform_path(line.get_path())
            if path.intersects_bbox(box, filled=False):
                found.append(text.get_text())
        for axes in canvas.axes:
            for patch in axes.patches:
                if patch.get_window_extent().overlaps(box):
                    found.append(text.get_text())
    return found


@pytest.mark.parametrize("name", DRAWN)
def test_text_crosses_nothing_stays_within_the_figure_and_has_names_of_arms_whole(name: str) -> None:
    canvas = drawn(DRAWN[name])
    assert crossings(canvas) == []
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(canvas)]
    for text, box in boxes:
        assert min(box.x0, box.y0) >= -1, text
        assert box.x1 <= canvas.bbox.x1 + 1, text
        assert box.y1 <= canvas.bbox.y1 + 1, text
    inner = [(text, box.shrunk(0.96, 0.8)) for text, box in boxes]
    assert [(a, b) for n, (a, box) in enumerate(inner) for b, other in inner[n + 1 :] if box.overlaps(other)] == []
    said = " ".join(" ".join(text.split()) for text, _ in boxes)
    assert NAMES[0] in said
    assert NAMES[2] in said or name == "curves of two arms"


def test_what_matplotlib_warns_of_is_no_line_of_a_terminal() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with plots.style("one"):
            plots.canvas(100, 100).add_axes((0, 0, 1, 1)).set_xlim(1, 1)
    assert told == []


@pytest.mark.slow
def test_a_figure_of_the_same_data_is_drawn_once_and_one_of_other_data_anew() -> None:
    def curve(data: figure_data.Curves, name: str = "learning-curves") -> plots.Figure:
        return plots.make_figure(name, "learning-curves", data)

    plots.render_cached.cache_clear()
    first = curve(curves())
    assert curve(curves()) == first
    assert plots.render_cached.cache_info().misses == 1
    assert curve(curves(height=0.5)).svg != first.svg
    assert curve(curves(), "round-2-learning-curves").svg != first.svg
    plots.render_cached.cache_clear()
    assert curve(curves()) == first
