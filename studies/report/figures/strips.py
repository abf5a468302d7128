"""A figure of strips over one x axis: names and numbers stand beside each strip, or above it where a page is narrow.

No text lies inside a strip, so that no line can cross one, and a name is wrapped, never cut.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from studies.report.parts.theme import canvas, paint
from studies.report.parts.wording import MINUS

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
_THOUSAND: Final = 1000
_PART: Final = "\x00"
"""Stands where a name may be broken, in no name itself."""
_WIDE_CHARS: Final = 29
_NARROW_CHARS: Final = 42

Legend = Sequence[tuple[Artist, str]]


@dataclass(frozen=True, slots=True)
class Strip:
    """One row of a figure. `note` says its numbers, a line each."""

    name: str
    note: tuple[str, ...]
    height: float
    color: str
    """Of its name."""


class _Thousands(ScalarFormatter):
    """Numbers as matplotlib has them, from a thousand on with a comma."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return a tick's label."""
        return f"{x:,.0f}".replace("-", MINUS) if abs(x) >= _THOUSAND else str(super().__call__(x, pos))


def strips(width: float, items: Sequence[Strip], legend: Legend, measured: str) -> tuple[Any, list[Axes]]:
    """Return a figure and an axes for each strip, from top to bottom; y runs from 0 to 1 in each."""
    narrow = width < WIDE
    names = [wrapped(item.name, _NARROW_CHARS if narrow else _WIDE_CHARS) for item in items]
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


def wrapped(name: str, most: int) -> list[str]:
    """Return a name in lines of about so many letters, broken between its parts where it has some (`a=1+b=2`)."""
    lines = textwrap.wrap(name.replace("+", f"+{_PART} "), most)
    return [line.replace(f"{_PART} ", "").replace(_PART, "") for line in lines] or [""]


def _height(item: Strip, lines: list[str], narrow: bool) -> float:
    if narrow:
        return _LINE * (len(lines) + len(item.note)) + 2 + item.height + _GAP
    return max(item.height, _LINE * max(len(lines), len(item.note))) + _GAP


def _write(
    figure: Any, item: Strip, lines: list[str], top: float, width: float, whole: float, narrow: bool
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
