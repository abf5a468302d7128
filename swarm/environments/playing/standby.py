"""A warm standby: a process that has imported everything but the agent, and loads and plays it when it is told to.

    load     the agent's files are as they should be: import them
    begin    nothing of the former agent is open any more: play

Both words come as lines on standard input; its end before them ends the process quietly. Importing what an agent needs
is most of the time from a save to the first play of the new code, and much of it is the same for every version.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Final

LOAD: Final = "load"
BEGIN: Final = "begin"
MOST_FRAMES: Final = 5
_ALONE = 130


class NotNeeded(SystemExit):
    """Whoever keeps the standby has gone, or is done."""

    def __init__(self) -> None:
        super().__init__(_ALONE)


def wait_for(word: str) -> None:
    """Wait for a word; raise NotNeeded where standard input ends instead."""
    if sys.stdin.readline().strip() != word:
        raise NotNeeded


def traceback_of(error: BaseException, folder: Path) -> str:
    """Return the last frames of the user's own files with the error, as Python writes them; for what broke an edit."""
    cause = error.__cause__ or error
    frames = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__)
        if folder in Path(frame.filename).absolute().parents
    ]
    lines = traceback.format_list(frames[-MOST_FRAMES:]) + traceback.format_exception_only(cause)
    return "".join(["Traceback (most recent call last):\n", *lines] if frames else lines)
