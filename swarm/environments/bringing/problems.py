"""What a task poses, and what it says whatever the order: tasks that say the same are near-duplicates of each other.

Of prose the words and numbers count, and neither order nor marks. Of a drawing, such as a map or a board, each row
counts as it stands, as all maps have the same few marks in another order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from swarm.environments.base import Task
from swarm.errors import InvalidRequest

_WORDS = re.compile(r"\w+")
_MARKS: Final = 4
"""Characters for each letter or digit, from which on a text is a drawing as a whole."""
_LEAST: Final = 3
"""Rows of a drawing within a text, and cells of each."""
_REPEATED: Final = 2
"""Cells for each mark that such a drawing has at least: lines of an exercise repeat less."""


def problem(task: Task) -> str:
    """Return what a task poses: its data, or its id where it has no data."""
    try:
        return json.dumps(task.data or task.id, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"expected JSON as the data of the task {task.id!r:.80}; found what is none: {error}"
        ) from error


def words(task: Task) -> str:
    """Return what a task says, whatever the order and the marks between: its words, numbers and rows of drawings."""
    return " ".join(sorted(_words_in(json.loads(problem(task)))))


def _words_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _words_in(name)
            yield from _words_in(item)
    elif isinstance(value, list):
        if rows := _board(value):
            yield from rows
        else:
            for item in value:
                yield from _words_in(item)
    else:
        yield from _words_of((value if isinstance(value, str) else json.dumps(value)).casefold())


def _words_of(text: str) -> Iterator[str]:
    """Yield the words of a text and the rows of drawings in it; one that is mostly marks is one word."""
    found = _WORDS.findall(text)
    drawn = "".join(text.split())
    if len(drawn) > _MARKS * sum(map(len, found)):
        yield drawn
        return
    block: list[str] = []
    for line in [*text.splitlines(), ""]:  # an empty one ends the last block
        if _cells(line):
            block.append(line.rstrip())
            continue
        yield from block if _is_drawing([*map(_cells, block)]) else _WORDS.findall("\n".join(block))
        yield from _WORDS.findall(line)
        block = []


def _board(rows: Sequence[Any]) -> list[str]:
    """Return the rows of a list that is a drawing, of texts or of lists of cells; nothing for any other."""
    if all(isinstance(row, str) for row in rows):
        return [row.casefold() for row in rows] if _is_drawing([_cells(row.casefold()) for row in rows]) else []
    if all(isinstance(row, list) and not any(isinstance(cell, dict | list) for cell in row) for row in rows):
        return [*map(json.dumps, rows)] if _is_drawing(rows) else []
    return []


def _is_drawing(rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether rows of cells are a drawing: some of them, of several cells each, with few different marks."""
    cells = [cell for row in rows for cell in row]
    enough = len(rows) >= _LEAST and all(len(row) >= _LEAST for row in rows)
    return enough and len(cells) >= _REPEATED * len(set(cells))


def _cells(line: str) -> str:
    """Return the cells of a line that may be a row: characters that stand apart, or one run that is half marks."""
    parts = line.split()
    if all(len(part) == 1 for part in parts):
        return "".join(parts)
    run = parts[0] if len(parts) == 1 else ""
    return run if len(run) >= 2 * sum(map(len, _WORDS.findall(run))) else ""
