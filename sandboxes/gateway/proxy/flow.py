"""One end of a pair of connections that pass bytes to each other: neither is read faster than the other takes."""

from __future__ import annotations

import asyncio
from typing import cast


class Flow(asyncio.Protocol):
    """A connection whose `other` is not read while this one does not take what it is written: memory is bounded."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.other: Flow | None = None
        self.halted = False
        """Whether it is not being read."""
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        """Stop reading from the other."""
        self._full = True
        if self.other is not None:
            self.other.halt(True)

    def resume_writing(self) -> None:
        """Read from the other again."""
        self._full = False
        if self.other is not None:
            self.other.halt(False)

    def halt(self, halted: bool) -> None:
        """Stop reading, or go on."""
        if halted is self.halted or self.transport.is_closing():
            return
        self.halted = halted
        if halted:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pair(self, other: Flow) -> None:
        """Pass between this one and another from now on."""
        self.other, other.other = other, self
        self.halt(other._full)
        other.halt(self._full)

    def part(self) -> Flow | None:
        """End the pairing; return who the other was."""
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            other.halt(False)
            self.halt(False)
        return other

    def other_lost(self) -> None:
        """Learn that the other is gone."""
        self.abort()

    def abort(self) -> None:
        """Cut the connection."""
        self.transport.abort()
