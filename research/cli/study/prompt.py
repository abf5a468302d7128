"""The question for approval in the terminal of the controller itself, asked and read there while the study goes on.

While a question is open the live screen stands still and the question stands under it. What is typed is looked for
between two ticks, a whole line at a time; what was typed before the question was shown is thrown away, and so is what
is neither yes nor no. An answer from elsewhere takes the question away.
"""

from __future__ import annotations

import os
import select
import sys
import termios
from contextlib import suppress

from rich.console import Console

from research.cli.study.shown.progress import LiveScreen
from research.cli.study.shown.summary import asking
from research.errors import BadApproval
from research.study.driver import Observer
from research.study.stop import answer
from studies import StudyLog, StudyState
from studies.log.study_state import AskedApproval

_HOW = "type yes or no, with a note after it if you like (no: too dear), and Enter"
_WORDS = {"y": True, "yes": True, "approve": True, "n": False, "no": False, "deny": False}


def prompting(observer: Observer, record: StudyLog, console: Console) -> Observer:
    """Return an observer that asks for approval too, where a person sits at the terminal; else the one it is given."""
    if isinstance(observer, LiveScreen) and sys.stdin.isatty():
        return ApprovalPrompt(observer, record, console, sys.stdin.fileno())
    return observer


def read_answer(line: str) -> tuple[bool, str] | None:
    """Return whether a line says yes, and the note in it; None where it says neither yes nor no."""
    word, _, note = line.strip().partition(" ")
    granted = _WORDS.get(word.rstrip(":,.;!").lower())
    return None if granted is None else (granted, note.strip())


class ApprovalPrompt:
    """Shows a study on a live screen, and asks under it; `descriptor` is the terminal's."""

    def __init__(self, screen: LiveScreen, record: StudyLog, console: Console, descriptor: int) -> None:
        self._screen = screen
        self._record = record
        self._console = console
        self._descriptor = descriptor
        self._asked: AskedApproval | None = None

    def observe(self, state: StudyState) -> None:
        """Show the study; ask what it asks, and take an answer that was typed."""
        asked = state.open_question if state.stopped_reason is None else None
        if asked is None:
            self._take_away(state)
            self._screen.observe(state)
        elif self._asked is None or self._asked.digest != asked.digest:
            self._ask(state, asked)
        elif (line := typed_line(self._descriptor)) is not None:
            self._read(line, asked)

    def note(self, line: str) -> None:
        """Show a line on what a long step is doing."""
        self._screen.note(line) if self._asked is None else self._console.print(line)

    def _ask(self, state: StudyState, asked: AskedApproval) -> None:
        self._screen.observe(state)
        self._screen.hold()
        with suppress(termios.error):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
        self._console.print(asking(state))
        self._console.print(_HOW)
        self._asked = asked

    def _read(self, line: str, asked: AskedApproval) -> None:
        said = read_answer(line)
        if said is None:
            self._console.print(_HOW)
            return
        granted, note = said
        try:
            answer(self._record, asked.digest, "terminal", note, granted=granted)
        except BadApproval as error:
            self._console.print(error.message)

    def _take_away(self, state: StudyState) -> None:
        """Say how the question that was asked ended, if it did, and go on with the screen."""
        if self._asked is None:
            return
        ended = [entry for entry in state.approvals if entry.asked.digest == self._asked.digest]
        if ended:
            self._console.print(ended[0].said())
        elif state.open_question is None:
            self._console.print("the question is not asked any more")
        self._asked = None
        if state.stopped_reason is None:
            self._screen.go_on()


def typed_line(descriptor: int) -> str | None:
    """Return a line that was typed at a terminal; None while there is none, or where it listens to another process."""
    with suppress(OSError):
        if os.tcgetpgrp(descriptor) == os.getpgrp() and select.select([descriptor], [], [], 0)[0]:
            return os.read(descriptor, 4096).decode(errors="replace")
    return None
