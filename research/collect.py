"""From what an attempt left behind to hashed evidence: the snapshot, the evaluation, and the measurements.

Nothing here trusts a number that somebody computed: metrics are history rows read back from W&B, a measurement is
counted again from the outcome of each hidden task. Results that do not carry the run's own names (study, design
hash, run, attempt) are foreign and are refused. Collecting twice writes the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from research.attempt_folder import AttemptFolder, Order
from research.files import read_json, write_json
from research.validation import describe
from research.wandb_log import TrackedRun, TrackingUnreadable, read_tracking
from studies.records import Measurement, RunSpec
from swarm.environments.registry import environments

ReadTracking = Callable[[Path, str], TrackedRun]
"""Reads the tracker's log of the run with this id, under a folder; raises TrackingUnreadable."""
INITIAL = "/initial"
"""What the key of a measurement before training ends with."""


class CollectError(Exception):
    """What an attempt left behind is not the run's whole, own result. `code` is one of

    `tracking_unreadable`, `foreign_results`, `steps_missing`, `evaluation_unreadable`, `evaluation_incomplete`.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _Evaluated(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EpisodeOutcome(_Evaluated):
    """One play of one hidden task."""

    task_id: str
    sample: int
    success: bool
    reward: float = Field(allow_inf_nan=False)


class Evaluation(_Evaluated):
    """What the harness's evaluator wrote: every outcome, no average."""

    environment: str
    split: str
    policy_version: int
    episodes: list[EpisodeOutcome]


class RunEvaluation(_Evaluated):
    """The stored evaluation of a run."""

    run_id: str
    attempt: int
    initial: Evaluation
    final: Evaluation


@dataclass(frozen=True, slots=True)
class Evidence:
    """What `run.collected` says about the files, and what they amount to."""

    snapshot: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    measurements: tuple[Measurement, ...]


def collect(folder: AttemptFolder, order: Order, study_folder: Path, read: ReadTracking | None = None) -> Evidence:
    """Check and store the results of a finished attempt under `study_folder`; raises CollectError or OSError."""
    snapshot = _snapshot(order, _tracked(folder, order, read or read_tracking))
    evaluation = RunEvaluation(
        run_id=order.run_id,
        attempt=order.attempt,
        initial=_evaluation(folder.evaluation("initial"), order.spec, policy_version=0),
        final=_evaluation(folder.evaluation("final"), order.spec, policy_version=order.spec.job["steps"]),
    )
    where = Path("runs") / order.run_id
    snapshot_sha = write_json(study_folder / where / "snapshot.json", snapshot)
    evaluation_sha = write_json(study_folder / where / "evaluation.json", evaluation.model_dump(mode="json"))
    episodes = len(evaluation.initial.episodes) + len(evaluation.final.episodes)
    steps = len(snapshot["history"])
    return Evidence(
        {"path": str(where / "snapshot.json"), "sha256": snapshot_sha, "steps": steps},
        {"path": str(where / "evaluation.json"), "sha256": evaluation_sha, "episodes": episodes},
        _measurements(evaluation, order.spec.metric.key, evaluation_sha),
    )


def measure(study_folder: Path, collected: Mapping[str, Any], key: str) -> tuple[Measurement, ...]:
    """Return the measurements of a collected run, from its stored evaluation; CollectError if it was changed."""
    path = study_folder / collected["evaluation"]["path"]
    try:
        data = path.read_bytes()
        evaluation = RunEvaluation.model_validate_json(data)
    except (OSError, ValidationError) as error:
        raise CollectError("evaluation_unreadable", f"cannot read the collected {path.name}: {error}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != collected["evaluation"]["sha256"]:
        raise CollectError(
            "foreign_results", f"{path} is not what was collected: expected {collected['evaluation']['sha256'][:12]}, "
            f"found {found[:12]}",
        )  # fmt: skip
    return _measurements(evaluation, key, found)


def _measurements(evaluation: RunEvaluation, key: str, sha256: str) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(
            run_id=evaluation.run_id,
            key=name,
            value=sum(episode.success for episode in part.episodes) / len(part.episodes),
            n=len(part.episodes),
            sha256=sha256,
        )
        for name, part in ((key + INITIAL, evaluation.initial), (key, evaluation.final))
    )


def _tracked(folder: AttemptFolder, order: Order, read: ReadTracking) -> TrackedRun:
    """Return what W&B logged, once it is sure to be this attempt's and whole."""
    try:
        run = read(folder.path, order.tracking_id)
    except TrackingUnreadable as error:
        raise CollectError("tracking_unreadable", str(error)) from error
    foreign = [
        f"{name} {run.config.get(name)!r}" for name, value in order.names().items() if run.config.get(name) != value
    ]
    if foreign or run.id != order.tracking_id:
        raise CollectError(
            "foreign_results",
            f"the W&B log is not of attempt {order.attempt} at run {order.run_id}: it says {', '.join(foreign)}",
        )
    return run


def _snapshot(order: Order, run: TrackedRun) -> dict[str, Any]:
    """Return the snapshot of a whole W&B log: one row for each of the job's steps."""
    steps = order.spec.job["steps"]
    trained = {step: metrics for step, metrics in sorted(run.history.items()) if "critic/rewards/mean" in metrics}
    if list(trained) != list(range(1, steps + 1)):
        raise CollectError("steps_missing", f"expected training steps 1 to {steps} in W&B; found {len(trained)} rows")
    return {
        "run_id": order.run_id,
        "attempt": order.attempt,
        "design_hash": order.spec.design_hash,
        "wandb": {"project": run.project, "group": run.group, "id": run.id, "config": run.config},
        "history": [{"step": step, "metrics": metrics} for step, metrics in trained.items()],
    }


def _evaluation(path: Path, spec: RunSpec, *, policy_version: int) -> Evaluation:
    """Return the evaluator's answer, once it is sure to be of this run's hidden tasks and weights, and complete."""
    try:
        evaluation = Evaluation.model_validate(read_json(path))
    except ValidationError as error:
        raise CollectError("evaluation_unreadable", f"{path.name}: {describe(error)}") from error
    except ValueError as error:
        raise CollectError("evaluation_unreadable", f"{path.name}: {error}") from error
    found = (evaluation.environment, evaluation.split, evaluation.policy_version)
    expected = (spec.environment, spec.metric.split, policy_version)
    if found != expected:
        raise CollectError("foreign_results", f"{path.name}: expected an evaluation of {expected}; found {found}")
    _check_episodes(path.name, evaluation.episodes, spec)
    return evaluation


def _check_episodes(name: str, episodes: list[EpisodeOutcome], spec: RunSpec) -> None:
    hidden = {task.id for task in environments()[spec.environment].tasks(spec.metric.split)}
    if foreign := {episode.task_id for episode in episodes} - hidden:
        raise CollectError("foreign_results", f"{name}: {min(foreign)!r} is no hidden task of {spec.environment}")
    plays = {(episode.task_id, episode.sample) for episode in episodes}
    if len(episodes) != spec.metric.episodes or len(plays) != len(episodes):
        raise CollectError(
            "evaluation_incomplete",
            f"{name}: expected {spec.metric.episodes} different plays; found {len(plays)} in {len(episodes)}",
        )
