"""Where the command line writes: people's text through rich, machines' text as plain JSON on stdout."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from textwrap import wrap
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_WIDE = 160
"""Columns for tables in a pipe or a file."""
_GAP = "  "
_LEAST_WRAPPED = 20
"""Least width of a column that is wrapped, on however narrow a terminal."""
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]")


def bare(text: str) -> str:
    """Return a text without the characters that steer a terminal: topics, notes and models' words may hold them."""
    return _STEERS.sub("", text)


class _BareConsole(Console):
    """A console that writes no control character but its own styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(bare(segment.text), segment.style)


@cache
def console() -> Console:
    """Return the console for people's output (stdout); nothing is wrapped where no terminal asks for it.

    Text is shown as it is: brackets and colons of a package, a path, a topic or a model are no markup. What is to have
    a style is a `rich.text.Text`.
    """
    width = None if sys.stdout.isatty() else _WIDE
    return _BareConsole(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    """Return rows under a header, aligned; the last column is wrapped. Rich's table renders each cell by itself."""
    cells = [[bare(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(header, *cells, strict=True)][:-1]
    before = sum(widths) + len(_GAP) * len(widths)
    room = max(_LEAST_WRAPPED, console().width - before)

    def lines(row: Sequence[str]) -> str:
        first = _GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=False))
        last = wrap(row[-1], room) or [""]
        return f"\n{' ' * before}".join([f"{first}{_GAP}{last[0]}".rstrip(), *last[1:]])

    return Text.assemble((lines(header), "dim"), *(f"\n{lines(row)}" for row in cells))


def print_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def warn(message: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"ajet: {bare(message)}\n")
