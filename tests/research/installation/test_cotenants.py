"""Trainings that a killed controller left: they take places of the next study and are neighbours of its runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from research.installation.cotenants import CoTenants
from sandboxes import ProcessSandbox, SandboxSpec
from studies import EventType
from tests.research.bench import STUDY, Bench

LEFT = "left-study"


@pytest.fixture(params=[None, 6])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    """A study of six runs, two at once, priced at 10 s each; also where no more than these are allowed."""
    return Bench(tmp_path, max_runs=request.param)


def test_what_another_study_left_running_takes_places_until_it_ends(bench: Bench) -> None:
    first, second = (bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=n)) for n in (5, 9))
    bench.sandbox.polls = 5
    loop = bench.loop()
    assert loop.tick().launched == ()
    first.ended = bench.clock.now
    assert len(loop.tick().launched) == 1
    assert loop.tick().launched == ()
    second.ended = bench.clock.now
    assert len(loop.tick().launched) == 1
    state = bench.drive(loop).state
    assert state.status == "concluded"
    assert [verdict.verdict for verdict in state.verdicts] == ["supported"]


def test_what_had_ended_before_takes_no_place(bench: Bench) -> None:
    bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=9), bench.clock.now)
    assert len(bench.loop().tick().launched) == 2
    assert bench.notes == []


def test_a_study_that_is_kept_waiting_is_neither_stopped_nor_charged(bench: Bench) -> None:
    left = [bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=n)) for n in (5, 9)]
    loop = bench.loop()
    loop.tick()
    before = loop.state().worked_s
    for _ in range(30):
        bench.clock.advance(60)  # three times its whole budget
        assert not loop.tick().done
    for other in left:
        other.ended = bench.clock.now
    assert len(loop.tick().launched) == 2
    assert loop.state().worked_s - before < 61
    assert bench.drive(loop).state.status == "concluded"


def test_a_study_whose_rest_of_budget_buys_no_run_does_not_wait_for_a_place(bench: Bench) -> None:
    bench.sandbox.occupy(LEFT, bench.clock.now)
    bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=1))
    loop = bench.loop()
    loop.tick()
    for seconds, stands_still in ((11.0, False), (9.0, True)):
        bench.append(EventType.DESIGN_AMENDED, amendment={"kind": "budget", "value": seconds, "reason": "x"})
        result = loop.tick()
        assert result.done == stands_still
        assert ("budget" in str(result.state.stopped_reason)) == stands_still
        assert not any(run.attempts for run in result.state.runs.values())


def test_it_is_said_once_who_is_waited_for_and_what_can_be_done(bench: Bench) -> None:
    for seconds in (5, 9):
        bench.sandbox.occupy(LEFT, bench.clock.now - timedelta(seconds=seconds))
    loop = bench.loop()
    for _ in range(3):
        loop.tick()
    (line,) = [line for line in bench.notes if LEFT in line]
    assert line.startswith(f"2 of 2 places are taken by trainings of study {LEFT}")
    assert f"ajet study stop {LEFT}" in line
    assert f"ajet study resume {LEFT}" in line


def test_runs_beside_another_studys_training_have_it_as_a_neighbour(tmp_path: Path) -> None:
    alone, beside = Bench(tmp_path / "alone"), Bench(tmp_path / "beside")
    beside.sandbox.occupy(LEFT, beside.clock.now - timedelta(hours=2), beside.clock.now - timedelta(hours=1))
    # Ended by now, so that it takes no place and the runs go as they do alone; but it ran beside them all.
    beside.sandbox.occupy(LEFT, beside.clock.now - timedelta(seconds=5), beside.clock.now + timedelta(hours=1))
    counts = [
        sorted(neighbours(run.collected) for run in bench.drive(bench.loop()).state.runs.values())
        for bench in (alone, beside)
    ]
    assert counts[1] == [count + 1 for count in counts[0]]


def neighbours(collected: Mapping[str, Any] | None) -> int:
    assert collected is not None
    found: int = collected["conditions"]["neighbours"]
    return found


def test_a_real_process_of_another_study_is_found_by_its_label_until_it_ends(tmp_path: Path) -> None:
    sandbox = ProcessSandbox(tmp_path / "sandboxes")
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    before = datetime.now(UTC)
    for study in (STUDY, LEFT):
        labels = {"study": study, "run_id": "r1", "attempt": "1"}
        sandbox.run(SandboxSpec(f"ajet-{study}-r1-a1", command, tmp_path, labels=labels, trusted=True))
    sandbox.run(SandboxSpec("no-training", command, tmp_path, trusted=True))
    others = CoTenants(sandbox, STUDY)
    try:
        assert (others.count(), others.running()) == (1, {LEFT: 1})
        later = datetime.now(UTC) + timedelta(hours=1)
        ((began, ended),) = others.spans(later)
        assert before <= began <= datetime.now(UTC)
        assert ended == later
    finally:
        for handle in sandbox.list():
            handle.stop(grace_s=1.0)
    assert (others.count(), others.running()) == (0, {})
    ((began, ended),) = others.spans(later)
    assert before <= began <= ended <= datetime.now(UTC)


def test_a_training_whose_folder_was_pruned_has_ended(bench: Bench) -> None:
    bench.sandbox.occupy(LEFT, bench.clock.now)
    others = CoTenants(bench.sandbox, STUDY)
    assert others.count() == 1
    bench.sandbox.others.clear()
    assert others.count() == 0
