"""What the readers of all families share: steps over the text that came so far, and the pieces they yield.

Promises: neighbouring pieces of one kind become one; a piece is given out once.
Knows no family's marks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm.answers.grammar.answer import Piece, Reasoning, ToolCall, Words


def beginning(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `mark`."""
    longest = min(len(mark) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)


class Pieces:
    """Collects pieces; neighbours of one kind become one."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def text(self, kind: type[Words] | type[Reasoning], text: str) -> None:
        """Add more words or thinking."""
        if not text:
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, kind):
            self._pieces[-1] = kind(last.text + text)
        else:
            self._pieces.append(kind(text))

    def calls(self, calls: Sequence[ToolCall]) -> None:
        """Add whole calls."""
        self._pieces += calls

    def take(self) -> Sequence[Piece]:
        """Return what was collected, once."""
        pieces, self._pieces = self._pieces, []
        return pieces


def joined(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Return the pieces with neighbours of one kind made one."""
    found = Pieces()
    for piece in pieces:
        if isinstance(piece, ToolCall):
            found.calls([piece])
        else:
            found.text(type(piece), piece.text)
    return found.take()


class StepReader:
    """Implements `Reader` by steps over `_text`, what came and was not read yet.

    A step is told whether the answer is over; it takes what it is certain of and returns whether another step may
    follow at once.
    """

    def __init__(self, first: Callable[[bool], bool]) -> None:
        self._pieces = Pieces()
        self._text = ""
        self._step = first

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; return the pieces that are certain now."""
        self._text += text
        return self._advance(over=False)

    def finish(self) -> Sequence[Piece]:
        """Return what was held back."""
        return self._advance(over=True)

    def _advance(self, *, over: bool) -> Sequence[Piece]:
        while self._step(over):
            pass
        return self._pieces.take()

    def _give(self, kind: type[Words] | type[Reasoning], size: int) -> None:
        """Give out the first `size` characters as words or thinking."""
        self._pieces.text(kind, self._text[:size])
        self._text = self._text[size:]
