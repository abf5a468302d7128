"""The rows under a flow run follow from the study's state, with the times of its log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.orchestration.task_rows import (
    MOST_STEPS,
    RowState,
    TaskRow,
    TrainingLine,
    attempt_key,
    build_rows,
    close_row,
    tracking_lines,
    training_lines,
)
from research.runs.files import AttemptFolder, AttemptProgress
from studies import StudyState
from studies.log.entries import AttemptState
from studies.log.event import Event, EventType
from studies.records.design import RunSpec
from studies.records.runs import NOISE_ARM
from tests.research.in_rounds import InRounds
from tests.studies.synthetic import Synthetic


def begun(study: StudyState) -> dict[str, TaskRow]:
    rows = build_rows(study)
    return {row.name: row for row in rows if row.states[-1].name != "Planned" and "planning" not in row.name}


def said(row: TaskRow) -> list[str]:
    return [state.name for state in row.states]


def name(spec: RunSpec, more: str = "") -> str:
    return f"{spec.arm} seed {spec.seed}{more}"


def time(event: Event) -> datetime:
    return datetime.fromisoformat(event.ts)


@pytest.mark.parametrize("ends", ["locked", "refused"])
def test_planning_is_a_row_from_the_study_s_begin_to_its_lock_or_its_refusal(synthetic: Synthetic, ends: str) -> None:
    (row,) = build_rows(synthetic.state())
    assert (row.name, said(row)) == ("planning", ["Running"])
    if ends == "locked":
        synthetic.lock()
    else:
        synthetic.append(EventType.STUDY_STOPPED, reason="too dear: use --budget 2h")
    (row,) = build_rows(synthetic.state())
    assert said(row) == ["Running", "Completed" if ends == "locked" else "Failed"]
    assert ends == "locked" or row.states[-1].message == "too dear: use --budget 2h"


def test_a_planned_run_waits_under_its_arm_and_seed_and_is_tagged(synthetic: Synthetic) -> None:
    synthetic.lock()
    specs = synthetic.plan()
    found = {row.name: row for row in build_rows(synthetic.state())}
    assert list(found) == ["planning", *(name(spec) for spec in specs)]
    row = found[name(specs[0])]
    assert [(state.kind, state.name) for state in row.states] == [("PENDING", "Planned")]
    assert set(row.tags) == {
        "s-synthetic", "arm:group_size=4", f"seed:{specs[0].seed}", "phase:confirm", f"run:{specs[0].run_id}",
    }  # fmt: skip


def test_a_lost_attempt_keeps_its_row_and_the_next_try_waits_in_its_own(synthetic: Synthetic) -> None:
    synthetic.lock()
    first, second, third, *_ = synthetic.plan()
    launched = synthetic.launch(first)
    assert said(begun(synthetic.state())[name(first)]) == ["Planned", "Running"]
    lost = synthetic.end(first, status="lost", code="lost", reason="gone")
    found = begun(synthetic.state())
    ended, waiting = found[name(first)], found[name(first, ", try 2")]
    assert [(one.kind, one.at) for one in ended.states[1:]] == [("RUNNING", time(launched)), ("CRASHED", time(lost))]
    assert (ended.states[-1].message, said(waiting)) == ("gone", ["AwaitingRetry"])
    assert waiting.tags[0] == "try:2"
    assert (waiting.states[0].kind, waiting.states[0].at) == ("SCHEDULED", time(lost))
    assert waiting.states[0].message == "try 1 lost: gone"
    synthetic.launch(first, 2)
    assert said(begun(synthetic.state())[name(first, ", try 2")]) == ["AwaitingRetry", "Retrying"]
    synthetic.end(first, 2)
    assert said(begun(synthetic.state())[name(first, ", try 2")])[-1] == "Collecting"
    collected = synthetic.collect(first, 2)
    done = begun(synthetic.state())[name(first, ", try 2")].states[-1]
    assert (done.kind, done.at) == ("COMPLETED", time(collected))
    assert "hidden success" in done.message

    synthetic.launch(second)
    synthetic.end(second, status="failed", code="server_died", reason="killed")
    synthetic.append(EventType.RUN_INVALIDATED, run_id=second.run_id, code="server_died", reason="killed again")
    over = begun(synthetic.state())
    assert [(state.kind, state.message) for state in over[name(second)].states[2:]] == [
        ("FAILED", "server_died: killed"), ("FAILED", "server_died: killed again"),
    ]  # fmt: skip
    assert name(second, ", try 2") not in over  # it was given up

    synthetic.append(EventType.RUN_INVALIDATED, run_id=third.run_id, code="vetoed", reason="needless")
    *_, never = begun(synthetic.state())[name(third)].states
    assert (never.kind, never.name, never.message) == ("CANCELLED", "Not needed", "vetoed: needless")


def test_nothing_stays_open_when_a_controller_ends() -> None:
    at = datetime.fromisoformat("2031-03-04T09:30:00+00:00")
    later = "2031-03-04T09:31:00+00:00"
    for kind in ("PENDING", "SCHEDULED", "RUNNING"):
        row = TaskRow("r", "r", (), (RowState(kind, "Any", at),))
        assert close_row(row, later, "Cancelled", "it ended").states[-1].kind == "CANCELLED"
    ended = TaskRow("r", "r", (), (RowState("FAILED", "Failed", at, "nan"),))
    assert close_row(ended, later, "Cancelled", "it ended") == ended


STEPS = st.lists(st.sampled_from(["lost", "failed", "timeout", "stopped", "finished"]), max_size=6)


@pytest.mark.slow
@given(ends=STEPS)
def test_a_row_that_was_told_goes_on_and_is_never_told_otherwise(
    tmp_path_factory: pytest.TempPathFactory, ends: list[str]
) -> None:
    synthetic = Synthetic(tmp_path_factory.mktemp("study"))
    synthetic.create()
    synthetic.lock()
    spec = synthetic.plan()[0]
    told: dict[str, TaskRow] = {}
    for number, status in enumerate(ends, 1):
        run = synthetic.state().runs[spec.run_id]
        if run.collected is not None:
            break
        synthetic.launch(spec, number)
        told = grown(told, synthetic.state())
        synthetic.end(spec, number, status=status, code=status, reason="why")
        told = grown(told, synthetic.state())
        if status == "finished":
            synthetic.collect(spec, number)
            told = grown(told, synthetic.state())


def grown(before: dict[str, TaskRow], state: StudyState) -> dict[str, TaskRow]:
    now = {row.key: row for row in build_rows(state)}
    for key, row in before.items():
        assert key in now or row.open  # what was over is still shown
        if key in now:
            assert now[key].states[: len(row.states)] == row.states
    for row in now.values():
        assert all(one.at < next.at for one, next in pairwise(row.states))
    return now


def test_rows_of_an_inquiry_are_of_their_round_and_stay_when_it_is_over(tmp_path: Path) -> None:
    study = InRounds(tmp_path)
    study.create()
    study.ask()
    study.answer()
    first = {row.key: row for row in build_rows(study.state())}
    study.begin_next()
    assert first.items() <= {row.key: row for row in build_rows(study.state())}.items()  # no row is told anew
    study.ask(16, 32)
    study.answer()
    found = list(build_rows(study.state()))
    assert len({row.key for row in found}) == len({row.name for row in found}) == len(found) == 22
    assert {row.name for row in found if "planning" in row.name} == {"planning", "round 2: planning"}
    assert sum("round:1" in row.tags for row in found) == sum("round:2" in row.tags for row in found) == 10
    assert not any(row.open for row in found)
    second = [row.key for row in found if row.name.startswith("round 2: ")]
    assert second == ["planning-round-2", *(attempt_key(run, 1, round=2) for run in study.state().runs.values())]


def test_a_round_that_comes_to_no_lock_was_given_up(tmp_path: Path) -> None:
    study = InRounds(tmp_path)
    study.two_rounds()
    study.begin_next()
    list(study.noise())
    planning, *noise = [row for row in build_rows(study.state()) if row.name.startswith("round 3: ")]
    assert (planning.name, said(planning)) == ("round 3: planning", ["Running", "Awaiting first runs"])
    assert [row.name for row in noise] == [f"round 3: noise {NOISE_ARM} seed {seed}" for seed in (7, 8)]
    assert all("round:3" in row.tags for row in noise)
    ended = next(row for row in build_rows(study.conclude()) if row.key == planning.key)
    assert said(ended)[-1] == "Given up"


LAUNCHED = "2031-03-04T09:30:00+00:00"
ATTEMPT = AttemptState(1, "r-1", LAUNCHED, "finished", ended="2031-03-04T09:31:15+00:00")


TRAINED: dict[str, Any] = {"train_success": 0.5, "train_reward": 0.125}


def told(*found: AttemptProgress) -> list[TrainingLine]:
    lines = {line.key: line for progress in reversed(found) for line in training_lines(ATTEMPT, progress)}
    return sorted(lines.values(), key=lambda line: line.at)


def seen(step: int, steps: int, hidden: float | None = 0.25) -> AttemptProgress:
    return AttemptProgress(stage="train", step=step, steps=steps, seconds=step, hidden_success=hidden, **TRAINED)


def test_a_step_is_told_with_reward_and_success_at_its_time() -> None:
    (line,) = (line for line in told(seen(7, 40)) if line.key.startswith("step-"))
    assert line.text == "step 7 of 40, reward 0.125, solved 0.500"
    assert line.at == datetime.fromisoformat(LAUNCHED) + timedelta(seconds=7)


@given(steps=st.integers(1, 5000), looks=st.integers(1, 40))
def test_a_training_of_any_length_is_told_in_a_few_dozen_lines(steps: int, looks: int) -> None:
    every = max(1, steps // 500)
    lines = told(*(seen(step, steps, step * looks // steps / 100) for step in range(0, steps + 1, every)))
    assert sum(line.key.startswith("step-") for line in lines) <= MOST_STEPS + 1
    assert len(lines) <= 1 + MOST_STEPS + 1 + looks + 1


def test_the_evaluation_after_training_is_told_though_it_came_to_the_same() -> None:
    last = seen(40, 40).model_copy(update={"stage": "stop"})
    texts = [line.text for line in told(seen(1, 40), last)]
    assert "hidden success 0.250 at step 1" in texts
    assert "hidden success 0.250 after training" in texts


def test_where_the_tracked_run_is(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "attempts" / "r-a1")
    assert list(tracking_lines(ATTEMPT, folder, tmp_path)) == []
    (folder.path / "wandb" / "offline-run-20310304_093000-r-a1").mkdir(parents=True)
    online = replace(ATTEMPT, url="https://wandb.example/e/p/runs/r-a1")
    assert [line.text for line in tracking_lines(online, folder, tmp_path)] == [
        "W&B log: attempts/r-a1/wandb/offline-run-20310304_093000-r-a1", "W&B run: https://wandb.example/e/p/runs/r-a1",
    ]  # fmt: skip
