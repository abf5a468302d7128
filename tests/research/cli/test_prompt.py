"""The question at the terminal of the controller: typed answers count, and nothing waits for them."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from research.cli.app import console
from research.cli.progress import LiveScreen
from research.cli.research import add_prompt, read_answer
from research.controller.controller import drive
from research.controller.interventions import answer_question, require_question
from research.controller.session import catch_interrupts
from research.installation.home import Home
from studies import EventLog, StudyLog, StudyState
from tests.research.bench import STUDY, Bench
from tests.research.designs import design

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
DEADLINE_S = 180.0
ASKED = "type yes or no"


class Terminal:
    """A controller whose controlling terminal is ours: what is typed goes there, what it shows comes here."""

    def __init__(self, path: Path) -> None:
        self._home = path
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.chdir(ROOT)
            command = [sys.executable, "-m", "tests.research.cli.test_prompt", str(path)]
            os.execve(sys.executable, command, {**os.environ, "TERM": "xterm", "COLUMNS": "200"})
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.shown.count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.shown[-2000:]!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                with suppress(OSError):  # how a terminal's end is told
                    self.shown += os.read(self._master, 65536).decode(errors="replace")

    def state(self) -> StudyState:
        with closing(EventLog(Home.locate({"AJET_HOME": str(self._home)}).database)) as log:
            return StudyLog(log, STUDY).state()

    def interrupt(self) -> None:
        os.kill(self._pid, signal.SIGINT)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_yes_goes_on_and_its_note_is_kept(terminal: Terminal) -> None:
    terminal.until(ASKED)
    terminal.type("yes, within this week\n")
    terminal.until("ended: concluded; 8 runs")
    (given,) = terminal.state().approvals
    assert (given.granted, given.by, given.note) == (True, "terminal", "within this week")
    assert "begin: all that" in terminal.shown
    assert "at most 8 runs" in terminal.shown


def test_no_stops_it_and_what_says_neither_leaves_the_question_open(terminal: Terminal) -> None:
    terminal.until(ASKED)
    for number, typed in enumerate(("\n", "perhaps\n", "\x04"), start=2):
        terminal.type(typed)
        terminal.until(ASKED, number)
    assert terminal.state().status == "waiting"
    terminal.type("no: too dear\n")
    terminal.until("ended: stopped; 0 runs")
    assert terminal.state().approvals[0].note == "too dear"


def test_what_was_typed_before_the_question_answers_nothing(terminal: Terminal) -> None:
    terminal.type("yes\n")
    terminal.until(ASKED)
    terminal.type("what\n")
    terminal.until(ASKED, 2)
    assert terminal.state().approvals == ()


def test_an_answer_from_elsewhere_takes_the_question_away(terminal: Terminal) -> None:
    terminal.until(ASKED)
    with closing(EventLog(Home.locate({"AJET_HOME": str(terminal._home)}).database)) as log:
        record = StudyLog(log, STUDY)
        answer_question(record, require_question(record.state()).digest, "Prefect", granted=True)
    terminal.until("approved in Prefect: all that is locked")
    terminal.until("ended: concluded")


def test_ctrl_c_leaves_the_question_open_for_later(terminal: Terminal) -> None:
    terminal.until(ASKED)
    terminal.interrupt()
    terminal.until("ended: stopped")
    state = terminal.state()
    assert str(state.stopped_reason).startswith("interrupted")
    assert require_question(state).question.stage == "design"


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("yes\n", (True, "")), ("Y", (True, "")), ("approve it is cheap", (True, "it is cheap")), ("n\n", (False, "")),
        ("no: too dear\n", (False, "too dear")), ("deny.", (False, "")), ("", None), ("\n", None), ("yesterday", None),
        ("nothing", None), ("ok yes", None),
    ],
)  # fmt: skip
def test_only_a_first_word_that_says_yes_or_no_is_an_answer(line: str, read: tuple[bool, str] | None) -> None:
    assert read_answer(line) == read


def main(path: Path) -> None:
    """Drive a study of fake attempts that asks first; the screen and the reading of answers are the command line's."""
    bench = Bench(path, design=design(16), approve="plan")
    live = LiveScreen(console(), lambda state: 600.0, lambda run: {})
    with closing(EventLog(bench.home.database, clock=bench.clock)) as log, catch_interrupts() as interrupted, live:
        observer = add_prompt(live, StudyLog(log, STUDY), console())
        state = drive(bench.loop(), [observer], interrupted, poll_s=0.05)
    console().print(f"ended: {state.status}; {len(state.runs)} runs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
