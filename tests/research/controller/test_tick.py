"""The study tick: a study runs to its report, whatever its attempts do and wherever its controller is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.runs.files import AttemptSpec
from sandboxes import Handle, SandboxError, SandboxSpec
from studies import EventType
from studies.records.verdict import PlannerMessage
from tests.research.bench import Bench, check_whole
from tests.research.fakes import ANSWERED, FakeSandbox


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_study_runs_from_topic_to_report(bench: Bench) -> None:
    loop = bench.loop()
    state = bench.drive(loop).state
    check_whole(bench)
    assert len(state.runs_in("confirm")) == len({run.spec.seed for run in state.runs.values()}) == 6, "a seed each"
    assert all(set(run.measurements) == {"hidden/success", "hidden/success/initial"} for run in state.runs.values())
    assert loop.tick().done
    assert len(bench.events()) == state.event_count  # a tick after the end does nothing
    assert state.status == "concluded"
    assert state.concluded_reason.endswith(": h1 supported")
    assert state.said == PlannerMessage(by="scripted", text=ANSWERED, unfounded=())
    assert [verdict.verdict for verdict in state.verdicts] == ["supported"]
    assert [act.action for act in state.planner_acts] == ["propose", "design", "conclude"]
    assert state.report is not None
    assert bench.sandbox.most_at_once == 2


ENDS = {
    "failed": ("failed", "server_died"), "died": ("failed", "attempt_died"), "lost": ("lost", "lost"),
    "timeout": ("timeout", "timeout"), "foreign": ("failed", "foreign_results"),
    "garbled": ("failed", "outcome_unreadable"), "endless": ("failed", "outcome_unreadable"),
}  # fmt: skip


def test_an_attempt_that_fails_is_tried_again_and_what_it_left_running_is_ended(bench: Bench) -> None:
    """Each run's first attempt fails in a way of its own, and one run's second, too."""
    ways, runs = list(ENDS), list[str]()

    def script(order: AttemptSpec) -> str:
        runs.extend([order.run_id] if order.run_id not in runs else [])
        if order.attempt == 1:
            return ways[runs.index(order.run_id)]
        return ways[6] if (order.attempt, order.run_id) == (2, runs[0]) else "ok"

    bench.sandbox.script = script
    state = bench.drive(bench.loop()).state
    check_whole(bench)
    failed = [(attempt.status, attempt.code) for name in runs for attempt in state.runs[name].attempts[:-1]]
    assert sorted(failed) == sorted(ENDS.values())
    assert {run.attempts[-1].status for run in state.runs.values()} == {"finished"}
    assert all(handle.stops == 1 for handle in bench.sandbox.handles.values())


@pytest.mark.slow
def test_stopping_ends_the_attempts_and_resuming_begins_them_again(bench: Bench) -> None:
    bench.sandbox.script = lambda order: "never" if order.attempt == 1 else "ok"
    loop = bench.loop()
    loop.tick()
    stopped = loop.stop("enough")
    assert stopped.done
    assert stopped.state.status == "stopped"
    assert {attempt.status for run in stopped.state.runs.values() for attempt in run.attempts} == {"stopped"}
    assert all(handle.ended is not None for handle in bench.sandbox.handles.values())
    before = len(bench.events())
    assert loop.tick().done
    assert len(bench.events()) == before  # a stopped study stands still
    bench.append(EventType.STUDY_RESUMED, command=["ajet"])
    bench.sandbox.script = lambda order: "ok"
    state = bench.drive(bench.loop()).state
    assert state.status == "concluded"
    assert all(run.status == "collected" for run in state.runs.values())
    assert sorted(len(run.attempts) for run in state.runs.values()) == [1, 1, 1, 1, 2, 2]


class ExhaustedSandbox(FakeSandbox):
    def run(self, spec: SandboxSpec) -> Handle:
        raise SandboxError("cannot launch: Resource temporarily unavailable")


def test_a_machine_that_can_start_nothing_costs_no_run_its_tries(bench: Bench) -> None:
    able, bench.sandbox = bench.sandbox, ExhaustedSandbox()
    for _ in range(5):
        with pytest.raises(SandboxError):
            bench.loop().tick()
    bench.sandbox = able
    state = bench.drive(bench.loop()).state
    check_whole(bench)
    assert all(len(run.attempts) == 1 and run.status == "collected" for run in state.runs.values())
