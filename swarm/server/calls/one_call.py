"""Where an answer ends that may call one tool: with its first call.

An answer that the model itself ends right behind the call, with nothing but space between, is whole as it is; one
that goes on is cut after the id that completes the call. Whether it goes on is seen at the first id that says
anything more, so that the result depends on the ids alone and not on how many of them come at once.

A family that writes several calls as one block without a part that can be read (a list in Python) keeps the block.
Knows no engine, no stop strings and no log-probs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm.answers import Piece, ToolCall

Read = Callable[[Sequence[int]], Sequence[Piece]]
"""Returns what an answer says that consists of these ids."""
Decode = Callable[[Sequence[int]], str]
_CLOSING = frozenset("}])>")


class OneCall:
    """Watches one answer. Give it all ids so far with the pieces that the last one made certain."""

    def __init__(self, read: Read, decode: Decode, stop_ids: Sequence[int]) -> None:
        self._read = read
        self._decode = decode
        self._stops = frozenset(stop_ids)
        self.length: int | None = None
        """Ids through the end of the first call; None while there is none."""

    def take(self, ids: Sequence[int], pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the pieces that are served: none after the first call."""
        if self.length is not None:
            return ()
        first = next((place for place, piece in enumerate(pieces) if isinstance(piece, ToolCall)), None)
        if first is None:
            return pieces
        alone = sum(isinstance(piece, ToolCall) for piece in pieces) == 1
        self.length = self._from_behind(ids) if alone else self._from_the_front(ids)
        return pieces[: first + 1]

    def goes_on(self, ids: Sequence[int]) -> bool:
        """Tell whether the answer says anything after its first call."""
        if self.length is None:
            return False
        rest = ids[self.length :]
        return bool(self._decode(rest[:-1] if rest and rest[-1] in self._stops else rest).strip())

    def ends_itself(self, ids: Sequence[int]) -> bool:
        """Tell whether the model ended the answer, right behind its first call if there is one."""
        return self.length is None or (ids[-1] in self._stops and not self.goes_on(ids))

    def _from_behind(self, ids: Sequence[int]) -> int:
        """Return the fewest ids from whose reading the call does not fall out, looking at the last ones first."""
        length = len(ids)
        while self._calls(ids[: length - 1]):
            length -= 1
        return length

    def _from_the_front(self, ids: Sequence[int]) -> int:
        """Return the fewest ids that say a call: more than one became certain at once."""
        ends = (n for n in range(1, len(ids)) if not _CLOSING.isdisjoint(self._decode(ids[n - 1 : n])))
        return next((n for n in ends if self._calls(ids[:n])), len(ids))

    def _calls(self, ids: Sequence[int]) -> bool:
        return any(isinstance(piece, ToolCall) for piece in self._read(ids))
