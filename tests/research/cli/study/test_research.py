"""`ajet research --detach`: a study that is given to the worker is this installation's, whatever becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.cli.study import research as command
from research.installation.home import Home
from studies import EventLog
from studies.log.leases import ControllerLeases


def test_a_study_is_this_installations_before_its_flow_run_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_HOME", str(tmp_path))
    given: list[str] = []

    def give(study: str) -> str:
        given.append(study)
        return "address"

    monkeypatch.setattr(command, "worker_of", lambda home: give)
    command.research("group size 4 vs 8 on arith", sandbox="process", detach=True, json=True)
    row = ControllerLeases(EventLog(Home.locate().database)).read(given[0])
    assert row is not None
    assert (row.holder.home, row.given_back) == (str(tmp_path), True)
