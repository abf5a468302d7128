"""A study whose planner writes a reward function: the code is data from the proposal to the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.errors import NotReady, PlannerFailed
from research.isolation.mode import Isolation, Sandboxing
from studies import EventType
from studies.report import build_report
from tests.research.bench import Bench
from tests.research.factories import make_claim
from tests.research.fakes import ScriptedPlanner

DOCKER = Sandboxing(kind="docker", image="sha256:" + "0" * 64, base="base", engine="1")


class Coder(ScriptedPlanner):
    name = "llm"
    model = "scripted"

    def __init__(self, environment: str = "guess", **sources: str) -> None:
        claims = (make_claim("reward", "built-in", name, code=source) for name, source in sources.items())
        super().__init__(3, environment, *claims)


def coded(path: Path, source: str, sandbox: Sandboxing = DOCKER) -> Bench:
    bench = Bench(path, planner="llm", model="scripted", sandbox=sandbox.model_dump(mode="json"))
    bench.planner, bench.isolation = Coder(dense=source), Isolation(DOCKER)
    return bench


def source(trace: Path) -> str:
    return f"open({str(trace)!r}, 'w').close()\n\n\ndef reward(task, messages, outcome):\n    return 1.0\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def bench(tmp_path: Path, trace: Path) -> Bench:
    return coded(tmp_path / "home", source(trace))


def test_code_is_run_nowhere_from_planning_to_report(bench: Bench, trace: Path) -> None:
    bench.build_report = build_report
    state = bench.drive(bench.loop()).state
    assert state.status == "concluded"
    report = bench.home.study(bench.study) / state.report["markdown"]["path"]
    assert source(trace) in report.read_text()
    assert not trace.exists()
    assert {run.spec.arm: run.spec.code for run in state.runs.values()} == {
        "reward=built-in": None, "reward=dense": source(trace),
    }  # fmt: skip
    assert len(state.runs) == 6


def test_a_study_with_code_launches_nothing_without_containers(bench: Bench, trace: Path) -> None:
    bench.isolation = Isolation(Sandboxing())
    with pytest.raises(NotReady, match="--sandbox docker"):
        bench.drive(bench.loop())
    assert not bench.sandbox.starts
    assert EventType.ATTEMPT_LAUNCHED not in {event.type for event in bench.events()}
    assert not trace.exists()


@pytest.mark.parametrize("sandbox", [Sandboxing(), DOCKER.model_copy(update={"lacks": ("seccomp",)})])
def test_code_is_refused_where_the_sandbox_does_not_isolate(tmp_path: Path, trace: Path, sandbox: Sandboxing) -> None:
    bench = coded(tmp_path / "home", source(trace), sandbox)
    with pytest.raises(PlannerFailed, match="runs in containers"):
        bench.loop().tick()
    assert not trace.exists()


@pytest.mark.parametrize(("end", "code"), [("failed", "server_died"), ("timeout", "timeout")])
def test_generated_code_gets_no_other_try_after_an_end_it_may_have_caused(bench: Bench, end: str, code: str) -> None:
    bench.sandbox.script = lambda order: end if order.attempt == 1 else "ok"
    state = bench.drive(bench.loop()).state
    assert {(run.spec.arm, len(run.attempts), run.status) for run in state.runs.values()} == {
        ("reward=built-in", 2, "collected"), ("reward=dense", 1, "invalid"),
    }  # fmt: skip
    reasons = [run.invalid for run in state.runs.values() if run.invalid is not None]
    assert {found for found, _ in reasons} == {"generated_code_failed"}
    assert all("not tried again" in reason and code in reason for _, reason in reasons)
    assert [verdict.verdict for verdict in state.verdicts] == ["invalid"]
