"""The study tick: a study runs to its report, whatever its attempts do and wherever its controller is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from research.controller.progress import StudyProgress, progress_of
from research.runs.files import AttemptSpec
from research.scheduler.next_step import is_done
from sandboxes import Handle, SandboxError, SandboxSpec
from studies import EventType
from studies.records.design import Metric
from studies.records.runs import EXCLUDED_CODES, WORST_CODES
from studies.records.verdict import PlannerMessage
from studies.report import build_report
from studies.report.summary import headline
from tests.research.bench import MOST_TICKS, Bench, check_whole
from tests.research.designs import design, every_stage, noise_plan
from tests.research.fakes import ANSWERED, FakeSandbox
from tests.studies.measured import measured_design, metric
from tests.studies.synthetic import base_job


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_study_runs_from_topic_to_report(bench: Bench) -> None:
    loop = bench.loop()
    state = bench.drive(loop)
    check_whole(bench)
    runs = len(state.runs_in("confirm"))
    assert runs == 2 * len({run.spec.seed for run in state.runs.values()}) == 6, "arms share them"
    assert all(set(run.measurements) == {"hidden/success", "hidden/success/initial"} for run in state.runs.values())
    assert is_done(loop.tick())
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
    state = bench.drive(bench.loop())
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
    assert is_done(stopped)
    assert stopped.status == "stopped"
    assert {attempt.status for run in stopped.runs.values() for attempt in run.attempts} == {"stopped"}
    assert all(handle.ended is not None for handle in bench.sandbox.handles.values())
    before = len(bench.events())
    assert is_done(loop.tick())
    assert len(bench.events()) == before  # a stopped study stands still
    bench.append(EventType.STUDY_RESUMED, command=["ajet"])
    bench.sandbox.script = lambda order: "ok"
    state = bench.drive(bench.loop())
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
    state = bench.drive(bench.loop())
    check_whole(bench)
    assert all(len(run.attempts) == 1 and run.status == "collected" for run in state.runs.values())


def watched(bench: Bench) -> Iterator[StudyProgress]:
    loop = bench.loop()
    for _ in range(MOST_TICKS):
        state = loop.tick()
        yield progress_of(state)
        if is_done(state):
            return
        bench.clock.advance(1)


@pytest.mark.parametrize("staged", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_progress_counts_what_a_study_may_come_to_and_is_whole_once_the_study_is(tmp_path: Path, staged: bool) -> None:
    bench = Bench(tmp_path, design=every_stage() if staged else design(16), noise=noise_plan() if staged else None)
    seen = list(watched(bench))
    assert all(now.done <= (now.most or 0) and (now.percent == 100.0) == now.concluded for now in seen)
    assert seen[-1].concluded
    if not staged:  # three looks of at most four seeds, of which two are planned
        assert (seen[0].done, seen[0].most, str(seen[0])) == (0, 8, "0 of at most 8 runs done")


def measured_bench(path: Path, asked: Metric) -> Bench:
    locked = measured_design(
        asked, seeds=3, base_job=base_job(backend="fake"), exclusions=EXCLUDED_CODES, counted_as_worst=WORST_CODES,
        scope_reached=asked.cut_at is not None,
    )  # fmt: skip
    made = Bench(path, design=locked)
    made.build_report = build_report
    return made


def test_runs_that_do_not_say_what_they_are_judged_by_are_given_up_at_once(tmp_path: Path) -> None:
    made = measured_bench(tmp_path, metric("fact", of="turns"))
    state = made.drive(made.loop())
    assert [(run.invalid or ("",))[0] for run in state.runs.values()] == ["not_measurable"] * 6
    assert {len(run.attempts) for run in state.runs.values()} == {1}
    (run, *_) = state.runs.values()
    assert "hidden episode; found 256 of 256 without it" in run.invalid[1]
    assert state.verdicts[0].verdict == "invalid"


@pytest.mark.slow
def test_a_threshold_that_nobody_reaches_ends_with_shares_and_one_that_most_reach(tmp_path: Path) -> None:
    made = measured_bench(tmp_path, metric("episodes", 0.99))
    state = made.drive(made.loop())
    head = headline(state)
    assert head.answers[0].sentence.startswith("Not reached by")
    assert "0.99" in head.answers[0].sentence
    assert head.next.why.startswith("which is faster")
    assert "--metric episodes:0." in head.next.command
    assert state.verdicts[0].estimate is None
