"""The lifeline: a process that plays on behalf of another one ends with it, however that one ended.

The other process, and only it, holds the writing end of a pipe; the kernel closes that when the process is gone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "AJET_LIFELINE"
"""Names the pipe's reading end: a file descriptor that the process inherits."""
OWNER = "AJET_OWNER"
"""Names whose episodes are played: the owner's name of the client that is the other process."""
GRACE_S = 5.0


@contextmanager
def lifeline() -> Iterator[int]:
    """Yield the reading end of a pipe that ends with this process, or with the block."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def hold() -> None:
    """From now on end this process, and its group, when the one that holds the lifeline is gone; nothing without one.

    It is asked to end first, as by SIGTERM, and killed after GRACE_S, whatever its threads do.
    """
    name = os.environ.pop(VARIABLE, None)
    if name is not None:
        os.set_inheritable(int(name), False)
        threading.Thread(target=_watch, args=(int(name),), name="lifeline", daemon=True).start()


def _watch(pipe: int) -> None:
    os.read(pipe, 1)  # returns at the end of the pipe: nothing is ever written
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
