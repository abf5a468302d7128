"""A real study of an earlier version whose report is today's, to be verified and forged."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from studies import EventLog, EventType, StudyLog, fold
from studies.proof import Proof, verify
from studies.proof.verify import before_report
from studies.report import build_report

RECORDED = Path(__file__).parent.parent.parent / "recorded" / "2026-11-21" / "finished.tar.xz"


@dataclass(frozen=True)
class Kept:
    """A study as it lies there: its stored events, and a folder that nobody changes."""

    study: str
    rows: list[dict[str, Any]] = field(repr=False)
    folder: Path

    @contextmanager
    def copied(self, to: Path) -> Iterator[Path]:
        shutil.copytree(self.folder, to)
        try:
            yield to
        finally:
            shutil.rmtree(to)

    def verified(self, rows: list[dict[str, Any]] | None = None, folder: Path | None = None, **how: Any) -> Proof:
        return verify(self.study, self.rows if rows is None else rows, folder or self.folder, **how)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    home = tmp_path_factory.mktemp("kept")
    subprocess.run(["tar", "-xf", str(RECORDED), "--no-same-owner", "-C", str(home)], check=True)
    with closing(EventLog(f"sqlite:///{home / 'ajet.db'}")) as log:
        (study,) = log.studies()
        folder = home / "studies" / study
        for name in ("attempts", "planning"):
            shutil.rmtree(folder / name)
        record = StudyLog(log, study)
        shown = replace(fold(before_report(log.read(study))), newest_report=record.state().newest_report)
        report = build_report(shown, folder)
        record.append(EventType.REPORT_BUILT, report.payload())
        return Kept(study, log.read_unverified(study), folder)


@pytest.fixture
def forge(kept: Kept, tmp_path: Path) -> Callable[[], Any]:
    return lambda: kept.copied(tmp_path / "forged")
