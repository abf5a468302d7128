"""A home with one study and fakes behind its loop's seams, and the means to kill its controller at an event."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from research.home import Home
from research.sandboxing import UNISOLATED
from research.tick import StudyLoop, TickResult
from studies import Event, EventLog, EventType, StudyState
from studies.report import Report
from tests.research.fakes import (
    BASE,
    PRICING,
    FakeSandbox,
    ManualClock,
    Script,
    ScriptedPlanner,
    create_study,
    read_fake_tracking,
)

STUDY = "s1"
MOST_TICKS = 200


class Cut(BaseException):
    """Stands for kill -9: nothing may catch it."""


class CutLog(EventLog):
    """An event log whose writer is killed at a given append: before it is written, or right after."""

    def __init__(self, url: str, clock: ManualClock, at: int | None = None, *, written: bool = True) -> None:
        super().__init__(url, clock=clock)
        self._left = at
        self._written = written

    def append(self, study: str, type: EventType, payload: Mapping[str, Any], *, actor: str = "system") -> Event:
        if self._left is None or self._left > 0:
            self._left = None if self._left is None else self._left - 1
            return super().append(study, type, payload, actor=actor)
        if self._written:
            super().append(study, type, payload, actor=actor)
        raise Cut


def fake_report(state: StudyState, folder: Path) -> Report:
    for name in ("report.md", "report.html"):
        (folder / name).write_text(state.head_hash)
    return Report(folder / "report.md", folder / "report.html", (), "0" * 64, "0" * 64)


class Bench:
    """A home with one study, and controllers for it."""

    def __init__(self, path: Path, script: Script = lambda order: "ok", **settings: Any) -> None:
        self.home = Home.locate({"AJET_HOME": str(path)}).prepare()
        self.clock = ManualClock()
        self.sandbox = FakeSandbox(script)
        self.isolation = UNISOLATED
        self.planner = ScriptedPlanner()
        with closing(EventLog(self.home.database, clock=self.clock)) as log:
            create_study(log, STUDY, **settings)

    def loop(self, at: int | None = None, *, written: bool = True) -> StudyLoop:
        return StudyLoop(
            home=self.home,
            log=CutLog(self.home.database, self.clock, at, written=written),
            study=STUDY,
            planner=self.planner,
            sandbox=self.sandbox,
            isolation=self.isolation,
            clock=self.clock,
            pricing=PRICING,
            base=BASE,
            read_tracking=read_fake_tracking,
            build_report=fake_report,
            draw_secret=lambda size: "ab" * size,
        )

    def drive(self, loop: StudyLoop) -> TickResult:
        for _ in range(MOST_TICKS):
            result = loop.tick()
            if result.done:
                return result
            self.clock.advance(1)
        raise AssertionError(f"not done after {MOST_TICKS} ticks: {result.state.status}")

    def events(self) -> list[Event]:
        with closing(EventLog(self.home.database)) as log:
            return log.read(STUDY)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is such: hundreds of studies are too many syncs for a disk."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="ajet-test-", dir=memory if os.access(memory, os.W_OK) else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)
