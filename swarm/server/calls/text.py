"""Sampled ids as served text: whole at the end, or piece by piece as they come, cut at stop strings.

Promises that the pieces joined are `served`; that no piece ends inside a character whose last bytes are still to
come; and that nothing of a stop string, nor after it, is ever served. It is over with the first id whose text has the
end of a stop string, however many ids were fed at once. What comes piece by piece is what comes whole, but for one
thing: some tokenizers (byte fallback) show every byte of a run as U+FFFD once one of them is broken, and characters of
that run that went out before stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"
_LONGEST = 4
"""Ids of one character, at most: it has no more bytes."""
_PATIENCE = 16
"""Ids that are waited for while the text ends inside a character: more than that, and they are not for its bytes."""


class TextStream:
    """Feed it ids. It decodes as they come if it must (`incremental`, or stop strings), else once at the end."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), *, incremental: bool = False
    ) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._eager = incremental or bool(stops)
        self._held = max((len(stop) for stop in stops), default=1) - 1
        self._ids: list[int] = []
        self._start = 0  # ids before it are decoded for good; those up to `_stable` are context for the rest
        self._stable = 0
        self._text = ""
        self._waiting = ""  # whole characters before one that is not whole yet
        self._given = 0
        self._cut = False
        self.stopped_at: str | None = None

    @property
    def stopped(self) -> bool:
        """A stop string was found (`stopped_at`); nothing after it is served."""
        return self.stopped_at is not None

    @property
    def served(self) -> str:
        """The text given so far."""
        return self._text[: self._given]

    @property
    def length(self) -> int:
        """Ids that are part of the answer: all, or those through the end of the stop string."""
        return len(self._ids)

    @property
    def decoded(self) -> str:
        """The text of the answer's ids, stop string and all; whole after `finish`."""
        return self._decode(self._ids) if self.stopped or self._cut else self.served

    def feed(self, ids: Sequence[int]) -> str:
        """Take sampled ids, those behind a stop string excepted; return the text that may be served now."""
        if self._eager:
            return "".join([self._next(token) for token in ids])
        self._ids += ids
        return ""

    def cut(self, length: int) -> None:
        """Let the answer end with its first `length` ids, whose text was given."""
        self._ids, self._cut, self.stopped_at = self._ids[:length], True, None

    def finish(self) -> str:
        """Return the rest of the text."""
        if self.stopped or self._cut:
            return ""
        if self._eager:
            self._advance(final=True)
        else:
            self._text = self._decode(self._ids)
        return self._give(len(self._text))

    def _next(self, token: int) -> str:
        if self.stopped:
            return ""
        self._ids.append(token)
        self._advance(final=False)
        return self._give(len(self._text) - self._held)

    def _advance(self, *, final: bool) -> None:
        """Decode the new ids together with the few before them, which some tokenizers need for their spaces."""
        before = self._decode(self._ids[self._start : self._stable])
        all_text = self._decode(self._ids[self._start :])
        end, text = self._decodable(all_text, final=final)
        self._waiting = all_text[len(before) :].rstrip(_BROKEN) if end == self._stable else ""
        if len(text) > len(before):
            self._text += text[len(before) :]
            self._start, self._stable = self._stable, end

    def _decodable(self, text: str, *, final: bool) -> tuple[int, str]:
        """Return how many ids end with a whole character or one that stays broken, and their text from `_start` on.

        `text` is that of all ids from there on.
        """
        end = len(self._ids)
        if final or not text.endswith(_BROKEN):
            return end, text
        if end - self._stable <= _PATIENCE:
            return self._stable, ""
        cuts = [(cut, self._decode(self._ids[self._start : cut])) for cut in range(end - 2 * _LONGEST, end - _LONGEST)]
        return next((found for found in cuts if not found[1].endswith(_BROKEN)), cuts[0])

    def _give(self, most: int) -> str:
        found = self._stop_found()
        if found is not None:
            self._text += self._waiting
            most, self.stopped_at = found
        piece = self._text[self._given : max(most, self._given)]
        self._given += len(piece)
        return piece

    def _stop_found(self) -> tuple[int, str] | None:
        text = self._text + self._waiting
        found = [(text.find(stop, self._given), stop) for stop in self._stops]
        return min((place for place in found if place[0] >= 0), default=None)
