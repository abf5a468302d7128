"""Keys pressed while a screen is shown: the terminal gives them one by one, and is put back as it was."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unbuffered() -> Iterator[None]:
    """Let keys come at once and unseen while inside; nothing changes where nobody types at a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def pressed(key: str, within_s: float) -> bool:
    """Wait so many seconds; return at once with whether the key was pressed."""
    if not sys.stdin.isatty():
        time.sleep(within_s)
        return False
    until = time.monotonic() + within_s
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            if not typed or key in typed.lower():
                return True
    return False
