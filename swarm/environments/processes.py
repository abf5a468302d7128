"""Processes that play, and end with whoever they play for.

A process that plays on behalf of another one ends with it, however that one ended: the other, alone, has the writing
end of a pipe, which the kernel closes when it is gone.
"""

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VARIABLE: Final = "AJET_LIFELINE"
"""Names the pipe's reading end: a file descriptor that the process inherits."""
OWNER: Final = "AJET_OWNER"
"""Names whose episodes are played: the owner's name of the client that is the other process."""
GRACE_S: Final = 5.0
MOST_FRAMES: Final = 5


@contextmanager
def watchdog_pipe() -> Iterator[int]:
    """Yield the reading end of a pipe that ends with this process, or with the block."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def watch_parent() -> None:
    """End this process and its group, killed after GRACE_S, once the holder of its pipe, if any, is gone."""
    name = os.environ.pop(VARIABLE, None)
    if name is None:
        return
    pipe = int(name)
    os.set_inheritable(pipe, False)

    def end_with_parent() -> None:
        os.read(pipe, 1)  # returns at the end of the pipe: nothing is ever written
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_parent, name="lifeline", daemon=True).start()


def traceback_of(error: BaseException, folder: Path) -> str:
    """Return the last frames of the user's own files with the error, as Python writes them; for what broke an edit."""
    cause = error.__cause__ or error
    stack = traceback.extract_tb(cause.__traceback__)
    frames = [frame for frame in stack if folder in Path(frame.filename).absolute().parents]
    lines = traceback.format_list(frames[-MOST_FRAMES:]) + traceback.format_exception_only(cause)
    return "".join(["Traceback (most recent call last):\n", *lines] if frames else lines)
