"""What an attempt's files say of its training becomes a few dozen lines, each once, at the time it speaks of."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from research.files import write_json
from research.orchestration.task_rows import (
    MOST_STEPS,
    TrainingLine,
    find_tracking_log,
    outcome_lines,
    tracking_lines,
    training_lines,
)
from research.runs.files import AttemptFolder, AttemptOutcome, AttemptProgress
from studies.log.study import AttemptState

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


def test_the_end_says_what_the_stages_took_and_what_was_refused(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    assert list(outcome_lines(ATTEMPT, folder)) == []
    folder.outcome.write_text('{"status": "fini')
    assert list(outcome_lines(ATTEMPT, folder)) == [], "half of an outcome is none"
    outcome = AttemptOutcome(
        status="finished", code="ok", seconds=75, stages={"boot": 2.5, "train": 60.0}, refused={"client: dns": 3}
    )
    write_json(folder.outcome, outcome.model_dump(mode="json"))
    assert [line.text for line in outcome_lines(ATTEMPT, folder)] == [
        "finished after 75 s: boot 2.5 s, train 60.0 s", "3 requests of its containers were refused: client: dns",
    ]  # fmt: skip


def test_where_the_tracked_run_is(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "attempts" / "r-a1")
    assert find_tracking_log(folder, tmp_path) is None
    assert list(tracking_lines(ATTEMPT, None)) == []
    (folder.path / "wandb" / "offline-run-20310304_093000-r-a1").mkdir(parents=True)
    log = find_tracking_log(folder, tmp_path)
    assert log == "attempts/r-a1/wandb/offline-run-20310304_093000-r-a1"
    online = replace(ATTEMPT, url="https://wandb.example/e/p/runs/r-a1")
    assert [line.text for line in tracking_lines(online, log)] == [
        f"W&B log: {log}", "W&B run: https://wandb.example/e/p/runs/r-a1",
    ]  # fmt: skip
