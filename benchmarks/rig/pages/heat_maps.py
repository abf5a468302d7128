"""Heat maps of a landscape: a row for each environment, a panel for each value of the third knob."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from typing import Any

from simlab.worlds.landscape import Landscape

COLORS = "cividis"
"""Of even lightness steps, and read alike under the common colour blindnesses."""
DARK = 0.55
"""Part of the scale below which a cell is dark, and its figures are white."""


def draw_landscapes(landscapes: Sequence[Landscape], path: Path, *, note: str) -> None:
    """Draw means and deviations over seeds, with the best place framed, as an SVG that is the same for the same values.

    The first knob goes across, the second up.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}
    with mpl.rc_context(style):
        columns = max(len(_layers(landscape)) for landscape in landscapes)
        figure = Figure(figsize=(3.6 * columns, 2.6 * len(landscapes)), layout="constrained")
        grid = figure.subplots(len(landscapes), columns, squeeze=False)
        for axes, landscape in zip(grid, landscapes, strict=True):
            _row(figure, axes, landscape)
        figure.supxlabel(note, fontsize=8, color="#646c75")
        figure.patch.set_facecolor("white")
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(path, metadata={"Date": None})


def _layers(landscape: Landscape) -> tuple[Any, ...]:
    return list(landscape.knobs.values())[2]


def _row(figure: Any, axes: Sequence[Any], landscape: Landscape) -> None:
    top = landscape.best()[1]
    across, up, over = landscape.knobs
    for place, layer in zip(axes, _layers(landscape), strict=True):
        image = _panel(place, landscape, layer, top)
        place.set(
            title=f"{landscape.environment}, {over} {layer}", xlabel=across, ylabel=up if place is axes[0] else ""
        )
    figure.colorbar(image, ax=list(axes), label="hidden tasks solved", shrink=0.9)


def _panel(axes: Any, landscape: Landscape, layer: Any, top: float) -> Any:
    names, (across, up, _) = tuple(landscape.knobs), landscape.knobs.values()
    cells = [[dict(zip(names, (x, y, layer), strict=True)) for x in across] for y in up]
    means = [[landscape.mean(cell) for cell in row] for row in cells]
    image = axes.imshow(means, cmap=COLORS, vmin=0, vmax=top, aspect="auto", origin="lower")
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            _figures(axes, x, y, landscape, cell, top)
    axes.set_xticks(range(len(across)), [f"{value:g}" for value in across])
    axes.set_yticks(range(len(up)), [f"{value:g}" for value in up])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return image


def _figures(axes: Any, x: int, y: int, landscape: Landscape, cell: dict[str, Any], top: float) -> None:
    mean = landscape.mean(cell)
    color = "white" if mean < DARK * top else "black"
    deviation = stdev([landscape.value(cell, seed) for seed in landscape.seeds])
    axes.text(x, y + 0.16, f"{mean:.2f}", ha="center", va="center", color=color, fontsize=10)
    axes.text(x, y - 0.22, f"±{deviation:.2f}", ha="center", va="center", color=color, fontsize=7)
    if cell == landscape.best()[0]:
        axes.add_patch(_frame(x, y))


def _frame(x: int, y: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor="#c4500c", linewidth=2.4)
