"""Sampled ids as served text: whole at the end, or piece by piece as they come, cut at stop strings.

Promises that the pieces joined are `served`; that no piece ends inside a character whose last bytes are still to
come; and that nothing of a stop string, nor after it, is ever served. What comes piece by piece is what comes whole,
but for one thing: some tokenizers (byte fallback) show every byte of a run as U+FFFD once one of them is broken, and
characters of that run that went out before stay what they were.
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
        self._given = 0
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
    def decoded(self) -> str:
        """The text of all ids, uncut; whole after `finish`."""
        return self._decode(self._ids) if self.stopped else self.served

    def feed(self, ids: Sequence[int]) -> str:
        """Take sampled ids; return the text that may be served now."""
        self._ids += ids
        if not self._eager:
            return ""
        self._advance(final=False)
        return self._give(len(self._text) - self._held)

    def finish(self) -> str:
        """Return the rest of the text."""
        if self.stopped:
            return ""
        if self._eager:
            self._advance(final=True)
        else:
            self._text = self._decode(self._ids)
        return self._give(len(self._text))

    def _advance(self, *, final: bool) -> None:
        """Decode the new ids together with the few before them, which some tokenizers need for their spaces."""
        before = self._decode(self._ids[self._start : self._stable])
        end, text = self._decodable(final=final)
        if len(text) > len(before):
            self._text += text[len(before) :]
            self._start, self._stable = self._stable, end

    def _decodable(self, *, final: bool) -> tuple[int, str]:
        """Return how many ids end with a whole character or one that stays broken, and their text from `_start` on."""
        end, text = len(self._ids), self._decode(self._ids[self._start :])
        if final or not text.endswith(_BROKEN):
            return end, text
        if end - self._stable <= _PATIENCE:
            return self._stable, ""
        cuts = [(cut, self._decode(self._ids[self._start : cut])) for cut in range(end - 2 * _LONGEST, end - _LONGEST)]
        return next((found for found in cuts if not found[1].endswith(_BROKEN)), cuts[0])

    def _give(self, most: int) -> str:
        found = self._stop_found()
        if found is not None:
            most, self.stopped_at = found
        piece = self._text[self._given : max(most, self._given)]
        self._given += len(piece)
        return piece

    def _stop_found(self) -> tuple[int, str] | None:
        found = [(self._text.find(stop, self._given), stop) for stop in self._stops]
        return min((place for place in found if place[0] >= 0), default=None)
