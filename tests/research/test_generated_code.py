"""A study whose planner writes a reward function: the code is data from the proposal to the report."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from research.errors import NotIsolated, PlannerFailed
from research.installation.home import Home
from research.isolation.mode import Isolation, Sandboxing
from research.planner.digest import Digest
from research.planner.protocol import Check, PlannerTurn
from research.proposals.actions import Conclude, Propose, ProposeDesign, ProposedHypothesis
from research.study.controller import StudyController
from studies import EventLog, EventType, StudyState
from tests.research.banks import bank
from tests.research.bench import MOST_TICKS, STUDY, Cut, CutLog
from tests.research.fakes import BASE, PRICING, FakeSandbox, ManualClock, read_fake_tracking
from tests.studies.raw import append

DOCKER = Sandboxing(kind="docker", image="sha256:" + "0" * 64, base="base", engine="1")


class Coder:
    """Proposes reward functions, whatever it is told."""

    name = "llm"
    model: str | None = "scripted"

    def __init__(self, environment: str = "guess", **sources: str) -> None:
        self.asked: list[str] = []
        self._environment = environment
        self._hypotheses = tuple(
            ProposedHypothesis(
                statement="A dense reward helps.", mechanism="More signal.", variable="reward", control="built-in",
                treatment=name, code=source, direction="increase", predicted_low=0.0, predicted_high=0.3,
                probability=0.6,
            )
            for name, source in sources.items()
        )  # fmt: skip

    def act(self, digest: Digest, check: Check) -> PlannerTurn:
        self.asked.append(digest.stage)
        match digest.stage:
            case "propose":
                return PlannerTurn(Propose(hypotheses=self._hypotheses))
            case "design":
                return PlannerTurn(ProposeDesign(environment=self._environment, seeds_per_arm=3))
            case "conclude":
                return PlannerTurn(Conclude(reason="Done."))


def create_study(log: EventLog, sandbox: Sandboxing, **settled: object) -> None:
    """Begin the study, with the sandbox it was created with."""
    settings = {"budget_s": 600.0, "max_runs": None, "parallel": 2, "approve": "none", **settled}
    append(log, STUDY, EventType.STUDY_CREATED, {
        "topic": "Does a dense reward function help?", "planner": {"name": "llm", "model": "scripted"},
        "settings": {**settings, "sandbox": sandbox.model_dump(mode="json")}, "command": ["ajet"],
        "versions": {"python": "3"}, "machine": {"cpus": 2},
    })  # fmt: skip


class Bench:
    """A home with one study that was created with a sandbox, and controllers for it."""

    def __init__(self, path: Path, source: str, sandbox: Sandboxing = DOCKER) -> None:
        self.home = Home.locate({"AJET_HOME": str(path)}).prepare()
        self.clock = ManualClock()
        self.sandbox = FakeSandbox()
        self.planner = Coder(dense=source)
        with closing(EventLog(self.home.database, clock=self.clock)) as log:
            create_study(log, sandbox)

    def loop(self, isolation: Sandboxing = DOCKER, at: int | None = None) -> StudyController:
        return StudyController(
            home=self.home, log=CutLog(self.home.database, self.clock, at), study=STUDY, planner=self.planner,
            sandbox=self.sandbox, isolation=Isolation(isolation), clock=self.clock, pricing=PRICING, base=BASE,
            noise_bank=lambda log: bank(0.01, job=BASE),
        )  # fmt: skip

    def drive(self, loop: StudyController) -> StudyState:
        for _ in range(MOST_TICKS):
            if (result := loop.tick()).done:
                return result.state
            self.clock.advance(1)
        raise AssertionError("not done")


@pytest.fixture(autouse=True)
def _fake_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.results.collect.read_tracking", read_fake_tracking)


def source(trace: Path) -> str:
    """Return a reward function whose module leaves a trace wherever it is run."""
    return f"open({str(trace)!r}, 'w').close()\n\n\ndef reward(task, messages, outcome):\n    return 1.0\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def bench(tmp_path: Path, trace: Path) -> Bench:
    return Bench(tmp_path / "home", source(trace))


def test_code_is_run_nowhere_from_planning_to_report(bench: Bench, trace: Path) -> None:
    state = bench.drive(bench.loop())
    assert state.status == "concluded"
    assert state.report is not None
    report = bench.home.study(STUDY) / state.report["markdown"]["path"]
    assert source(trace) in report.read_text()
    assert not trace.exists()


def test_each_order_holds_the_code_of_its_arm(bench: Bench, trace: Path) -> None:
    state = bench.drive(bench.loop())
    assert state.design is not None
    assert {run.spec.arm: run.spec.code for run in state.runs.values()} == {
        "reward=built-in": None, "reward=dense": source(trace),
    }  # fmt: skip
    assert len(state.runs) == 6


def test_code_survives_a_controller_killed_before_the_lock(bench: Bench, trace: Path) -> None:
    with pytest.raises(Cut):
        bench.loop(at=2).tick()
    state = bench.drive(bench.loop())
    assert state.design is not None
    assert state.design.code == {"dense": source(trace)}
    assert bench.planner.asked.count("propose") == 1


def test_a_study_with_code_launches_nothing_without_containers(bench: Bench, trace: Path) -> None:
    with pytest.raises(NotIsolated, match="--sandbox docker"):
        bench.drive(bench.loop(Sandboxing()))
    assert not bench.sandbox.starts
    with closing(EventLog(bench.home.database)) as log:
        assert EventType.ATTEMPT_LAUNCHED not in {event.type for event in log.read(STUDY)}
    assert not trace.exists()


@pytest.mark.parametrize("sandbox", [Sandboxing(), DOCKER.model_copy(update={"lacks": ("seccomp",)})])
def test_code_is_refused_in_a_study_whose_sandbox_does_not_isolate(
    tmp_path: Path, trace: Path, sandbox: Sandboxing
) -> None:
    bench = Bench(tmp_path / "home", source(trace), sandbox)
    with pytest.raises(PlannerFailed, match="runs in containers only"):
        bench.loop().tick()
    assert not trace.exists()


@pytest.mark.parametrize(("end", "code"), [("failed", "server_died"), ("timeout", "timeout")])
def test_generated_code_gets_no_other_try_after_an_end_it_may_have_brought_about(
    bench: Bench, end: str, code: str
) -> None:
    bench.sandbox.script = lambda order: end if order.attempt == 1 else "ok"
    state = bench.drive(bench.loop())
    assert {(run.spec.arm, len(run.attempts), run.status) for run in state.runs.values()} == {
        ("reward=built-in", 2, "collected"), ("reward=dense", 1, "invalid"),
    }  # fmt: skip
    reasons = [run.invalid for run in state.runs.values() if run.invalid is not None]
    assert {found for found, _ in reasons} == {"generated_code_failed"}
    assert all("not tried again" in reason and code in reason for _, reason in reasons)
    assert [verdict.verdict for verdict in state.verdicts] == ["invalid"]


@pytest.mark.parametrize("end", ["died", "lost", "engine gone"])
def test_generated_code_is_tried_again_after_what_was_none_of_its_doing(bench: Bench, end: str) -> None:
    bench.sandbox.script = lambda order: end if order.attempt == 1 else "ok"
    state = bench.drive(bench.loop())
    assert {(len(run.attempts), run.status) for run in state.runs.values()} == {(2, "collected")}
