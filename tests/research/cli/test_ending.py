"""How a study ends is its exit code, and what it needs is looked for before anything is made."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer

from research.cli.research import conduct
from research.controller.session import Session, controlling
from research.installation.base_job import LOCAL_PACKAGES, backend_of
from research.terminal import warn
from studies import EventLog, EventType, fold
from tests.research.bench import STUDY, Bench
from tests.research.cli.conftest import Ajet, every_command
from tests.research.designs import design
from tests.research.fakes import ScriptedPlanner


@pytest.mark.parametrize(
    ("how", "code"),
    [("concluded", 0), ("budget", 3), ("budget after a look", 0), ("person", 130), ("person after the budget", 130)],
)
def test_how_a_study_ended_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, code: int
) -> None:
    ends = ("ok",) if how == "concluded" or how == "person" else ("ok", "never") if "look" in how else ("never",)
    script = lambda order: ends[min(order.spec.seed - 101, 2 * len(ends) - 1) // 2]  # noqa: E731 - two seeds of each end
    bench = Bench(tmp_path, script, design=design(16), budget_s=60.0)
    loop = bench.loop()
    if how == "person":
        loop.tick()
        loop.stop("interrupted by the user")
    if how == "person after the budget":
        bench.drive(loop)
        bench.append(EventType.STUDY_RESUMED, command=[])
        loop.stop("interrupted by the user")
    state = bench.drive(loop).state
    assert state.status == ("concluded" if how == "concluded" else "stopped")
    monkeypatch.setattr(Session, "plan", lambda session: state)
    monkeypatch.setattr(Session, "run", lambda session, observer: state)
    with closing(EventLog(bench.home.database)) as log:
        try:
            with controlling(bench.home, log, STUDY, warn) as lease:
                conduct(bench.home, log, STUDY, ScriptedPlanner(), lease=lease, prefect=False, json=True)
            found = 0
        except typer.Exit as ended:
            found = ended.exit_code
    assert found == code


@pytest.mark.parametrize("own", [True, False])
def test_a_study_that_is_over_says_how_the_server_that_shows_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own: bool
) -> None:
    """Unless it is one that somebody named."""
    bench = Bench(tmp_path, design=design(16))
    state = bench.drive(bench.loop()).state
    view = MagicMock(url="http://127.0.0.1:4200", own=own)
    monkeypatch.setattr("research.orchestration.PrefectView", lambda *given: view)
    monkeypatch.setattr(Session, "plan", lambda session: state)
    monkeypatch.setattr(Session, "run", lambda session, observer: state)
    with closing(EventLog(bench.home.database)) as log, controlling(bench.home, log, STUDY, warn) as lease:
        conduct(bench.home, log, STUDY, ScriptedPlanner(), lease=lease, prefect=True, json=False)
    assert ("ajet up --stop" in capsys.readouterr().out) is own


def test_the_exit_codes_stand_in_the_help(ajet: Ajet) -> None:
    for command in (("research",), ("study", "resume")):
        said = " ".join(ajet(*command, "--help").out.split())
        assert [code for code in ("0 concluded", "2 bad input", "3 stopped", "130 stopped") if code not in said] == []


@pytest.mark.parametrize("missing", LOCAL_PACKAGES)
def test_a_study_whose_backend_is_not_installed_is_refused_before_anything_is_made(
    ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr("research.installation.base_job.find_spec", lambda name: None if name == missing else name)
    ajet("research", "group size 4 vs 8 on guess", "--no-prefect").refused(missing, "pip install 'ajet[local]'")
    assert not home.exists()


def test_a_resumed_study_whose_backend_is_not_installed_is_left_as_it_is(
    ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = design(16, base_job={**design(16).base_job, "backend": "local"})
    bench = Bench(home, design=local)
    bench.loop().plan()
    before = bench.events()
    assert backend_of(fold(before)) == "local"
    monkeypatch.setattr("research.installation.base_job.find_spec", lambda name: None)
    ajet("study", "resume", "--no-prefect").refused("ajet[local]")
    assert bench.events() == before


def _options(command: str) -> dict[str, Any]:
    return {each.name: each for each in every_command()[command].params if each.name not in ("help", "json")}


def test_the_flags_that_plan_shares_with_research_are_the_same_and_its_help_names_the_others(ajet: Ajet) -> None:
    planned, researched = _options("ajet study plan"), _options("ajet research")
    for name in planned.keys() & researched.keys():
        ours, theirs = planned[name], researched[name]
        assert (ours.default, ours.opts) == (theirs.default, theirs.opts)
        assert getattr(ours, "help", None) == getattr(theirs, "help", None)
    said = " ".join(ajet("study", "plan", "--help").out.split("Examples")[0].split()).replace("`", "")
    for name in planned.keys() - researched.keys():
        assert f"--{name} is of this" in said
