"""A controller at a terminal: `python -m tests.research.cli.study.prompted HOME` drives a study that asks first.

Its attempts are fakes; the screen, the question and the reading of answers are the command line's own.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from research.cli.output import console
from research.cli.study.prompt import prompting
from research.cli.study.shown.progress import LiveScreen
from research.study.driver import drive
from research.study.session import interruptible
from studies import EventLog, StudyLog
from tests.research.bench import STUDY, Bench
from tests.research.designs import design


def main(path: Path) -> None:
    """Drive the study to its end, and say how it ended."""
    bench = Bench(path, design=design(16), approve="plan")
    with closing(EventLog(bench.home.database, clock=bench.clock)) as log, interruptible() as interrupted:
        live = LiveScreen(console(), lambda state: 600.0, lambda run: {})
        with live:
            observer = prompting(live, StudyLog(log, STUDY), console())
            state = drive(bench.loop(), [observer], interrupted, poll_s=0.05)
    console().print(f"ended: {state.status}; {len(state.runs)} runs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
