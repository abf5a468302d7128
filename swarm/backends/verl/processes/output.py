"""What a process's children print, kept in memory: its beginning and its end.

Promises: bounded, whatever they print; no file, so that nothing is left behind however anybody ends; who prints is
never held up for long, as a thread reads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

FIRST: Final = 1000
"""Lines that are kept of the beginning."""
LAST: Final = 200
"""Lines that are kept of the end."""
LONGEST: Final = 2000
"""Characters that are kept of a line."""
_QUOTED: Final = 8
_READ: Final = 1 << 16


class ChildOutput:
    """A pipe and what came through it."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take what this process prints, and from now on what those print that it starts meanwhile. Once."""
        back = os.dup(1), os.dup(2)
        os.dup2(self._writing, 1)
        os.dup2(self._writing, 2)
        try:
            yield
        finally:
            for place, old in zip((1, 2), back, strict=True):
                with suppress(OSError):
                    os.dup2(old, place)
                os.close(old)
            os.close(self._writing)

    def lines(self, wait_s: float = 0.0) -> list[str]:
        """Return the lines that are kept, oldest first; wait so long for those who print to be gone."""
        self._thread.join(wait_s)
        with self._lock:
            return [*self._first, *self._last]

    def quoted(self, wait_s: float = 1.0) -> str:
        """Return its last lines as one, or that there are none."""
        last = [line.strip()[:300] for line in self.lines(wait_s) if line.strip()][-_QUOTED:]
        return " | ".join(last) or "nothing"

    def _read(self) -> None:
        rest = b""
        with os.fdopen(self._reading, "rb", buffering=0) as pipe:
            while part := pipe.read(_READ):
                *whole, rest = (rest + part).split(b"\n")
                self._keep(whole)
                rest = rest[-4 * LONGEST :]
        self._keep([rest])

    def _keep(self, lines: list[bytes]) -> None:
        with self._lock:
            for line in lines:
                text = line.decode(errors="replace")[:LONGEST]
                if text and len(self._first) < FIRST:
                    self._first.append(text)
                elif text:
                    self._last.append(text)
