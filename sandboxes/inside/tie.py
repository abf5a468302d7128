"""The tie of a container to whoever holds its door: PID 1 ends all where nobody has served the socket for a while.

The gateway behind the socket lives in the process that started the container. When that is killed the kernel closes
its socket, and a connection is refused; one that is only stopped, or busy, lets connections wait. Standard library
only, any Python from 3.9 on; it sends nothing.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable

LOOK_S = 1.0
GONE_S = 5.0
"""How long nobody may serve the socket: as long as the relay lets connections wait for one that is started anew."""
_NOBODY = frozenset({errno.ENOENT, errno.ECONNREFUSED})


class Tie:
    """A tie to the socket at `path`; it holds from the beginning. `clock` is in seconds."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._served_at = clock()
        self._look_at = clock()

    def broken(self) -> bool:
        """Look, once every LOOK_S; return whether nobody has served the socket for GONE_S."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            if served(self._path):
                self._served_at = now
        return now - self._served_at >= GONE_S


def served(path: str) -> bool:
    """Return whether somebody listens at a Unix socket, even if connections have to wait."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) not in _NOBODY
