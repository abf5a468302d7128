"""What an attempt's task run says of its training: lines of its own progress, and where its W&B run is.

A line has a key that names it within its attempt once and for all, and the time it speaks of. Of a training of any
length there are a few dozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from research.files import read_json
from research.orchestration.shown.rows import TaskRow
from research.results.attempt_files import AttemptFolder, AttemptOutcome, AttemptProgress, Stage
from studies.log.study_state import AttemptState

MOST_STEPS: Final = 20
"""Most lines on steps of one training."""
_STAGES: Final[Mapping[Stage, str]] = {
    "boot": "its server starts",
    "initial": "hidden tasks are played before training",
    "train": "training begins",
    "other": "the last policy plays in another environment",
    "final": "hidden tasks are played after training",
    "stop": "its server stops",
}


class TrainingLine(NamedTuple):
    """A line of an attempt's log."""

    key: str
    at: datetime
    text: str


def states_told(row: TaskRow) -> Iterator[TrainingLine]:
    """Yield a line for each state of a row that says why it is so: Prefect's page of a task run does not show that."""
    for state in row.states:
        if state.message and state.kind != "PENDING":
            yield TrainingLine(f"{state.kind} {state.name}", state.at, f"{state.name}: {state.message}")


def progress_told(attempt: AttemptState, progress: AttemptProgress) -> Iterator[TrainingLine]:
    """Yield the lines that follow from the progress as it is: its stage, its step if that is told, its evaluation."""
    at = datetime.fromisoformat(attempt.launched) + timedelta(seconds=progress.seconds)
    yield TrainingLine(progress.stage, at, _STAGES[progress.stage])
    if progress.step:
        part = progress.step * MOST_STEPS // max(1, progress.steps)
        yield TrainingLine(f"step-{part}", at, _step(progress))
    if progress.hidden_success is not None:
        when = "after training" if progress.stage == "stop" else f"at step {progress.step}"
        key = "hidden-last" if progress.stage == "stop" else f"hidden-{progress.hidden_success}"
        yield TrainingLine(key, at, f"hidden success {progress.hidden_success:.3f} {when}")


def tracked_told(attempt: AttemptState, log: str | None) -> Iterator[TrainingLine]:
    """Yield the lines on its W&B run: where its log is (see `tracked_in`), and its page, as far as they are known."""
    at = datetime.fromisoformat(attempt.launched)
    if log is not None:
        yield TrainingLine("log", at, f"W&B log: {log}")
    if attempt.url:
        yield TrainingLine("page", at, f"W&B run: {attempt.url}")


def end_told(attempt: AttemptState, folder: AttemptFolder) -> Iterator[TrainingLine]:
    """Yield the lines on an attempt that is over, from the outcome that it wrote; none where it wrote none."""
    outcome = _outcome(folder)
    if outcome is None:
        return
    at = datetime.fromisoformat(attempt.ended)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in outcome.stages.items())
    yield TrainingLine("end", at, f"{outcome.status} after {outcome.seconds:.0f} s: {stages}")
    for why, count in outcome.refused.items():
        yield TrainingLine(f"refused-{why}", at, f"{count} requests of its containers were refused: {why}")


def tracked_in(folder: AttemptFolder, study: Path) -> str | None:
    """Return the folder of an attempt's W&B log, relative to the study's; None while there is none."""
    newest = max((folder.path / "wandb").glob("*run-*"), default=None)
    return None if newest is None else newest.relative_to(study).as_posix()


def _step(progress: AttemptProgress) -> str:
    reward = "" if progress.train_reward is None else f", reward {progress.train_reward:.3f}"
    solved = "" if progress.train_success is None else f", solved {progress.train_success:.3f}"
    return f"step {progress.step} of {progress.steps}{reward}{solved}"


def _outcome(folder: AttemptFolder) -> AttemptOutcome | None:
    try:
        return AttemptOutcome.model_validate(read_json(folder.outcome))
    except ValueError:  # of JSON or of the model: it was killed, or a power cut left half of it
        return None
