"""The reader of answers in which marks in the text set thinking and tool calls apart from words.

Promises: words and thinking stream as they come, and only what may be the beginning of a mark (and the line breaks
a template writes before one) is held back; a call that cannot be read goes back into the words with its mark, and
so does one that was cut. Thinking is read only where an answer begins. Line breaks that templates write around
thinking, and what they write before a call, belong to the template and not to the text: rendering gives them back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from swarm.answers.answer import Piece, Reasoning, Thinking, ToolCall, Words
from swarm.answers.objects import MOST_CUTS, Cut


class Calls(Protocol):
    """The marks around calls, and what stands between them. Without `close` a call ends at the next, or the end."""

    @property
    def open(self) -> str:
        """Mark before a call."""
        ...

    @property
    def close(self) -> str:
        """Mark after it, or nothing."""
        ...

    @property
    def blank(self) -> str:
        """What the template writes between words and a call."""
        ...

    def read(self, body: str) -> Sequence[ToolCall] | None:
        """Return the calls between the marks, None if they cannot be read; raise Cut if `body` ends in a string."""
        ...


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


class TaggedReader:
    """Implements `Reader`. `leading`: characters which the template writes before an answer's words."""

    def __init__(
        self, thinking: Thinking | None = None, calls: Calls | None = None, *, opened: bool = False, leading: str = ""
    ) -> None:
        self._thinking = thinking
        self._calls = calls
        self._leading = leading
        self._pieces = Pieces()
        self._text = ""
        self._before = ""  # what stood before a call's body: words again if it cannot be read
        self._searched = self._cuts = 0
        self._step: Callable[[bool], bool] = self._begin if thinking or leading else self._words
        if opened:
            self._skip_lines(self._think)

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text; return the pieces that are certain now."""
        self._text += text
        return self._advance(over=False)

    def finish(self) -> Sequence[Piece]:
        """Return what was held back."""
        return self._advance(over=True)

    def _advance(self, *, over: bool) -> Sequence[Piece]:
        """Take the steps there is text for; a step says whether another one may follow."""
        while self._step(over):
            pass
        return self._pieces.take()

    def _begin(self, over: bool) -> bool:
        mark = self._thinking.open if self._thinking else ""
        rest = self._text.lstrip()
        if mark and rest.startswith(mark):
            self._text = rest[len(mark) :]
            self._skip_lines(self._think)
            return True
        if not over and (not rest or mark.startswith(rest)):
            return False
        self._text = self._text.lstrip(self._leading)
        self._step = self._words
        return True

    def _skip_lines(self, then: Callable[[bool], bool]) -> None:
        def skip(over: bool) -> bool:
            self._text = self._text.lstrip("\n")
            if self._text:
                self._step = then
            return bool(self._text)

        self._step = skip

    def _think(self, over: bool) -> bool:
        assert self._thinking is not None
        close = self._thinking.close
        thought, found, rest = self._text.partition(close)
        if found:
            self._pieces.text(Reasoning, thought.rstrip("\n"))
            self._text = rest
            self._skip_lines(self._words)
            return True
        sure = len(thought) if over else len(thought[: len(thought) - beginning(thought, close)].rstrip("\n"))
        self._give(Reasoning, sure)
        return False

    def _words(self, over: bool) -> bool:
        if self._calls is None:
            self._give(Words, len(self._text))
            return False
        words, found, rest = self._text.partition(self._calls.open)
        if found:
            spoken = words.removesuffix(self._calls.blank)
            self._pieces.text(Words, spoken)
            self._enter_call(words[len(spoken) :], rest)
            return True
        held = 0 if over else beginning(words, self._calls.open)
        sure = words[: len(words) - held]
        self._give(Words, len(sure if over else sure.removesuffix(self._calls.blank)))
        return False

    def _give(self, kind: type[Words] | type[Reasoning], size: int) -> None:
        self._pieces.text(kind, self._text[:size])
        self._text = self._text[size:]

    def _enter_call(self, space: str, body: str) -> None:
        assert self._calls is not None
        self._before = space + self._calls.open
        self._text = body
        self._searched = self._cuts = 0
        self._step = self._call

    def _call(self, over: bool) -> bool:
        assert self._calls is not None
        mark = self._calls.close or self._calls.open
        end = self._text.find(mark, self._searched)
        if end < 0 and not over:
            self._searched = max(self._searched, len(self._text) - len(mark) + 1)
            return False
        if end < 0 and not self._calls.close:
            end = len(self._text)
        try:
            calls = self._calls.read(self._text[:end]) if end >= 0 else None
        except Cut:
            self._searched = end + len(mark)
            self._cuts += 1
            if end < len(self._text) and self._cuts < MOST_CUTS:
                return True
            calls = None
        if calls:
            self._pieces.calls(calls)
            self._text = self._text[end + len(self._calls.close) :]
            self._step = self._after
        else:
            self._pieces.text(Words, self._before)
            self._step = self._words
        return True

    def _after(self, over: bool) -> bool:
        """After a call: another one, words, or the end; space alone says nothing."""
        assert self._calls is not None
        mark = self._calls.open
        rest = self._text.lstrip()
        if rest.startswith(mark):
            self._enter_call(self._text[: len(self._text) - len(rest)], rest[len(mark) :])
            return True
        if not over and mark.startswith(rest):
            return False
        self._step = self._words
        self._text = self._text if rest else ""
        return bool(rest)
