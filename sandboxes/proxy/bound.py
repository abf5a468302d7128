"""How many bytes may come that lead to nothing: a head, or trailers, that do not end."""

from __future__ import annotations

MOST_HEAD_BYTES = 64 * 1024


class Bound:
    """Counts the bytes since a parser last got on. It itself sets no bound to a head, and keeps all of it."""

    def __init__(self) -> None:
        self._moved = False
        self._bytes = 0

    def moved(self) -> None:
        """Know that a message began, or that a head or a piece of a body is complete."""
        self._moved = True

    def passed(self, size: int, *, in_head: bool) -> bool:
        """Take in that the parser was fed `size` bytes; return whether it is too much by now."""
        if self._moved:
            self._bytes = size if in_head else 0
        else:
            self._bytes += size
        self._moved = False
        return self._bytes > MOST_HEAD_BYTES
