"""A study on an environment that was brought: what becomes of it when the environment's folder changes or is gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from research.controller import session as study_session
from research.controller.session import Session
from research.environments.install import load_environment
from research.errors import BadEnvironment
from research.runs import launcher
from research.scheduler.required_runs import attempts_running, is_over
from studies import EventType, StudyState, fold
from swarm.environments import registry
from swarm.errors import InvalidRequest
from tests.research.bench import STUDY, Bench, Cut
from tests.research.commands import ended
from tests.research.controller.test_driver import Notes
from tests.research.environments.written import sums
from tests.research.fakes import ScriptedPlanner

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())


class Brought:
    """A bench whose study is on an environment of its own; each of its controllers is a process of its own."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self._monkeypatch = monkeypatch
        first = Bench(path / "first")
        name = load_environment(str(sums(path / "sums")), None, first.home, lambda _: None).name
        self.bench = Bench(path / "home", wanted={"environment": name, "brought": [name]}, **settings)
        self.bench.planner = ScriptedPlanner(environment=name)
        self.folder = self.bench.home.environments / name
        self.whole = first.home.environments / name
        self.bring()

    def bring(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)

    def process(self) -> None:
        self._monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
        registry.add_folder(self.bench.home.environments)

    def session(self) -> StudyState:
        self.process()
        self._monkeypatch.setattr(study_session, "StudyController", lambda **_: self.bench.loop())
        session = Session(self.bench.home, self.bench.log, STUDY, self.bench.planner)
        session.plan()
        return session.run(Notes())

    def until(self, reached: Callable[[StudyState], Any]) -> StudyState:
        self.process()
        return self.bench.until(reached)

    def state(self) -> StudyState:
        return fold(self.bench.events())


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Brought:
    return Brought(tmp_path, monkeypatch)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "code": lambda folder: (folder / "code" / "environment.py").write_text(""),
    "manifest": lambda folder: (folder / "manifest.json").write_text("{"),
    "removed": shutil.rmtree,
    "tasks": lambda folder: (folder / "tasks" / "hidden.json").write_text("[]"),
}


def assert_stopped_and_resumed(brought: Brought) -> None:
    with pytest.raises(InvalidRequest, match=r"expected .*bring it again") as refused:
        brought.session()
    assert "\n" not in refused.value.message
    state = brought.state()
    assert (state.status, state.stopped_reason) == ("stopped", refused.value.message)
    assert [run.run_id for run in state.runs.values() if run.active is not None or run.invalid is not None] == []
    brought.bring()
    brought.bench.append(EventType.STUDY_RESUMED, command=[])
    assert brought.session().status == "concluded"


@pytest.mark.parametrize(
    ("when", "damage"),
    [
        ("planned", "removed"),
        *(("no run yet", damage) for damage in DAMAGE),
        *(("with runs", damage) for damage in sorted(DAMAGE.keys() - {"code"})),
    ],
)
def test_an_environment_that_changed_stops_the_study(brought: Brought, when: str, damage: str) -> None:
    runs = when == "with runs"
    if runs:
        brought.until(lambda state: any(attempts_running(state)))
        brought.bench.end_attempts()
    elif when == "no run yet":
        brought.process()
        brought.bench.loop().plan()
    DAMAGE[damage](brought.folder)
    assert_stopped_and_resumed(brought)
    if runs:
        assert {run.attempts[-1].number for run in brought.state().runs.values()} == {1, 2}


def test_packages_that_cannot_be_had_stop_the_study(brought: Brought, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> tuple[Path, ...]:
        raise BadEnvironment("pip: no such thing")

    with monkeypatch.context() as without:
        without.setattr(launcher, "packages_of", refuse)
        with pytest.raises(BadEnvironment, match="no such thing"):
            brought.session()
    state = brought.state()
    assert (state.status, "no such thing" in str(state.stopped_reason)) == ("stopped", True)
    assert not any(run.attempts for run in state.runs.values())
    brought.bench.append(EventType.STUDY_RESUMED, command=[])
    assert brought.session().status == "concluded"


def test_it_is_reported_and_proved_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought = Brought(tmp_path, monkeypatch, planner="rules")

    def kill() -> None:
        over = [is_over(run) for run in brought.state().runs.values()]
        if len(over) == 6 and all(over):
            raise Cut

    brought.process()
    brought.bench.check = kill
    with pytest.raises(Cut):
        brought.bench.drive(brought.bench.loop())
    brought.bench.check = lambda: None
    assert not brought.state().verdicts
    shutil.rmtree(brought.folder)
    brought.process()
    monkeypatch.setenv("AJET_HOME", str(brought.bench.home.path))
    monkeypatch.setenv("AJET_SANDBOX", "process")
    resumed, verified, reported = (
        ended("study", *words)
        for words in (("resume", "--no-prefect", "--json"), ("verify",), ("report", "--build", "--json"))
    )
    assert resumed[0] == 0, resumed
    assert json.loads(resumed[1])["status"] == "concluded"
    assert verified[0] == 0, verified
    assert reported[0] == 0, reported
    assert "supported" in Path(json.loads(reported[1])["markdown"]).read_text()
    assert brought.folder.name in Path(json.loads(reported[1])["markdown"]).read_text()
