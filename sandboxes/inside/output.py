"""The output of a container's command: its beginning, a count of what is dropped, and its end, within a bound.

The bound is one of the engine's log, too: it counts lines as well as bytes. Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

TAIL_BYTES = 65_536
SHORT_LINE = 32
"""Lines shorter than this are charged as if they were so long: every line costs the engine's log a hundred bytes."""
OUTPUT_WAIT_S = 5.0


class Output:
    """The command's output on its way out: its beginning up to a bound, the rest counted, its end kept for last."""

    def __init__(self, write: Callable[[bytes], None], most_bytes: int) -> None:
        self._write = write
        self._bytes_left = most_bytes
        self._lines_left = most_bytes // SHORT_LINE
        self._cut = False
        self._dropped = 0
        self._tail = bytearray()
        self._taking = False

    @property
    def dropped(self) -> int:
        """Bytes that are shown nowhere."""
        return self._dropped - len(self._tail)

    def take(self, pipe: int) -> None:
        """Take all that comes out of `pipe`, until the last process that could write any is gone."""
        while data := os.read(pipe, 1 << 16):
            self._taking = True
            self.feed(data)
            self._taking = False

    def settle(self, taker: threading.Thread) -> None:
        """Wait for the thread that takes the output, once the container is empty.

        A slow engine is waited for. A process outside may hold the pipe, handed over through a socket, and never end
        it: that must not keep the container.
        """
        taker.join(OUTPUT_WAIT_S)
        while taker.is_alive() and self._taking:
            taker.join(OUTPUT_WAIT_S)

    def feed(self, data: bytes) -> None:
        """Take some output."""
        head = b"" if self._cut else self._head(data)
        self._bytes_left -= len(head)
        self._lines_left -= head.count(b"\n")
        self._cut = self._cut or len(head) < len(data)
        self._keep_end(data[len(head) :])
        self._emit(head)

    def finish(self) -> None:
        """Write the end of what was cut off."""
        if self._dropped:
            note = f"\n[{self.dropped} bytes of output were dropped here; the last {len(self._tail)} follow]\n"
            self._emit(note.encode() + bytes(self._tail))

    def _head(self, data: bytes) -> bytes:
        head = data[: self._bytes_left]
        if head.count(b"\n") <= self._lines_left:
            return head
        beyond = head.split(b"\n", self._lines_left)[-1]
        return head[: len(head) - len(beyond)]

    def _keep_end(self, data: bytes) -> None:
        self._dropped += len(data)
        self._tail += data
        del self._tail[:-TAIL_BYTES]

    def _emit(self, data: bytes) -> None:
        try:
            self._write(data)
        except OSError:
            # Nobody reads any more. The command must not block on that: its output is dropped, and counted.
            self._cut = True
            self._dropped += len(data)
