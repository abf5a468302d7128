"""Turns the files of a finished attempt into hashed evidence: snapshot, evaluation, measurements, conditions, alarms.

Nothing here trusts a number that somebody computed: metrics are history rows read back from W&B, a measurement is
counted again from the outcome of each hidden task, alarms are raised again over the whole history, whatever the attempt
said. Results that do not carry the run's own names (study, design hash, run, attempt) are foreign and are refused; so
are files that are not what they were when the attempt ended. Collecting twice writes the same bytes. Not known here:
whether somebody rewrote files and the attempt's word of them together.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from research.files import read_json, write_json
from research.results.alarms import Alarm, alarms, stopping
from research.results.attempt_files import (
    AttemptFolder,
    AttemptOutcome,
    AttemptSpec,
    EpisodeOutcome,
    Evaluation,
    RunEvaluation,
)
from research.results.conditions import conditions_of
from research.results.failure_codes import EVIDENCE_CHANGED, EVIDENCE_MISSING, TRAINING_NAN
from research.results.wandb_reader import TrackedRun, TrackingLate, TrackingUnreadable, read_tracking
from research.validation import describe
from studies.checks.run_facts import Row
from studies.records.design import RunSpec
from studies.records.design_parts import Watchdog
from studies.records.run_data import Conditions, Measurement
from swarm.environments.registry import environments

ReadTracking = Callable[[Path, str], TrackedRun]
"""Reads the tracker's log of the run with this id, under a folder; raises TrackingUnreadable."""
INITIAL = "/initial"
"""What the key of a measurement before training ends with."""
NOTHING_SAID = AttemptOutcome(status="finished", code="ok", seconds=0.0, stages={})
"""Stands for the outcome of an attempt that wrote none."""


class CollectError(Exception):
    """What an attempt left behind is not the run's whole, own result. `code` is one of

    `tracking_unreadable`, `foreign_results`, `steps_missing`, `evaluation_unreadable`, `evaluation_incomplete`,
    `evidence_missing`, `evidence_changed`.
    """

    def __init__(self, code: str, reason: str, *, late: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.late = late
        """Whether the tracker may only be behind, so that the same again may succeed."""


@dataclass(frozen=True, slots=True)
class CollectedEvidence:
    """What `run.collected` says about the files, and what they amount to."""

    snapshot: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    measurements: tuple[Measurement, ...]
    conditions: Conditions
    alarms: tuple[Alarm, ...]
    kinds: Mapping[str, tuple[int, int]]
    """Evaluation episodes (solved, played) after training, by kind of task; empty where there is one kind."""

    def payload(self) -> dict[str, Any]:
        """Return it as `run.collected` has it, the measurements apart."""
        return {
            "snapshot": dict(self.snapshot),
            "evaluation": dict(self.evaluation),
            "conditions": self.conditions.model_dump(mode="json"),
            "alarms": [alarm.dump() for alarm in self.alarms],
            "kinds": {kind: list(counts) for kind, counts in self.kinds.items()},
        }


def collect(
    folder: AttemptFolder,
    spec: AttemptSpec,
    study_folder: Path,
    read: ReadTracking | None = None,
    *,
    said: AttemptOutcome = NOTHING_SAID,
    neighbours: int | None = None,
) -> CollectedEvidence:
    """Check and store the results of a finished attempt under `study_folder`; raises CollectError or OSError.

    `said` is the outcome that the attempt wrote, `neighbours` how many others ran beside it (`Conditions`).
    """
    _check_files(folder, said.files)
    tracked = _tracked(folder, spec, read or read_tracking)
    history = history_of(tracked)
    stopped = _stopped(spec, history, whole=tracked.ended)
    evaluation = RunEvaluation(
        study=spec.run.study,
        run_id=spec.run_id,
        attempt=spec.attempt,
        initial=_evaluation(folder.evaluation("initial"), spec.run, policy_version=0),
        final=_evaluation(folder.evaluation("final"), spec.run, policy_version=len(history)),
    )
    where = Path("runs") / spec.run_id
    snapshot_sha = write_json(study_folder / where / "snapshot.json", _snapshot(spec, tracked, history))
    evaluation_sha = write_json(
        study_folder / where / "evaluation.json", evaluation.model_dump(mode="json", exclude_defaults=True)
    )
    episodes = len(evaluation.initial.episodes) + len(evaluation.final.episodes)
    return CollectedEvidence(
        {"path": str(where / "snapshot.json"), "sha256": snapshot_sha, "steps": len(history)},
        {"path": str(where / "evaluation.json"), "sha256": evaluation_sha, "episodes": episodes},
        _measurements(evaluation, spec.run.metric.key, evaluation_sha),
        conditions_of(spec, history, evaluation, said.seen, neighbours, stopped),
        _alarms(spec, history, evaluation.initial.success, evaluation.final.success),
        _by_kind(evaluation.final, spec.run),
    )


def breakdown(folder: AttemptFolder, spec: AttemptSpec, read: ReadTracking | None = None) -> Alarm:
    """Return the alarm of a training that broke down, from its log; CollectError if that shows none.

    That an attempt reports a breakdown does not count by itself: the run would have the worst value.
    """
    tracked = _tracked(folder, spec, read or read_tracking)
    found = alarms(history_of(tracked, whole=False), spec.watchdog or Watchdog())
    broken = next((alarm for alarm in found if alarm.code == TRAINING_NAN), None)
    if broken is None:
        said = "the attempt says that its training broke down; its log shows nothing of it"
        raise CollectError("foreign_results", said, late=not tracked.ended)
    return broken


def measure(study_folder: Path, collected: Mapping[str, Any], key: str) -> tuple[Measurement, ...]:
    """Return the measurements of a collected run, from its stored evaluation; CollectError if it was changed."""
    stored = collected["evaluation"]
    data = read_collected(study_folder, stored)
    try:
        evaluation = RunEvaluation.model_validate_json(data)
    except ValidationError as error:
        raise CollectError("evaluation_unreadable", f"cannot read the collected {stored['path']}: {error}") from error
    return _measurements(evaluation, key, stored["sha256"])


def read_collected(study_folder: Path, stored: Mapping[str, Any]) -> bytes:
    """Return what is in a collected file; CollectError if it is not there, or not what the log says."""
    return _unchanged(study_folder / stored["path"], f"the collected {stored['path']}", stored["sha256"])


def _unchanged(path: Path, name: str, expected: str) -> bytes:
    """Return what is in a file whose sha256 is the expected one; `name` is what people are told."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CollectError(EVIDENCE_MISSING, f"{name} cannot be read: {error.strerror}") from error
    if (found := hashlib.sha256(data).hexdigest()) != expected:
        said = f"{name} was changed: expected the sha256 {expected[:12]}, found {found[:12]}"
        raise CollectError(EVIDENCE_CHANGED, said)
    return data


def _by_kind(evaluation: Evaluation, run: RunSpec) -> dict[str, tuple[int, int]]:
    """Return the (solved, played) episodes of each kind of task; nothing where there is one kind."""
    environment = environments()[run.environment]
    kinds = {task.id: environment.kind(task) for task in environment.tasks(run.metric.split)}
    played = Counter(kinds[episode.task_id] for episode in evaluation.episodes)
    solved = Counter(kinds[episode.task_id] for episode in evaluation.episodes if episode.success)
    return {kind: (solved[kind], played[kind]) for kind in sorted(played)} if len(played) > 1 else {}


def _check_files(folder: AttemptFolder, files: Mapping[str, str]) -> None:
    for name, expected in files.items():
        _unchanged(folder.path / name, name, expected)


def _alarms(spec: AttemptSpec, history: Sequence[Row], before: float, after: float) -> tuple[Alarm, ...]:
    return () if spec.watchdog is None else alarms(history, spec.watchdog, before, after)


def history_of(run: TrackedRun, *, whole: bool = True) -> list[dict[str, Any]]:
    """Return a row for each training step of a tracked run; unless `whole`, also for one that was refused."""
    return [
        {"step": step, "metrics": metrics, **({"not_finite": sorted(names)} if names else {})}
        for step, metrics in sorted(run.history.items())
        if "critic/rewards/mean" in metrics or not whole
        for names in [run.not_finite.get(step, [])]
    ]


def _stopped(spec: AttemptSpec, history: Sequence[Row], *, whole: bool) -> str | None:
    """Return the rule that ended training early, None if it ran its course; CollectError if steps lack for none."""
    steps = spec.run.job["steps"]
    numbers = [row["step"] for row in history]
    if numbers == list(range(1, steps + 1)):
        return None
    rule = None if spec.watchdog is None else stopping(alarms(history, spec.watchdog))
    if rule is None or not whole or numbers != list(range(1, len(numbers) + 1)) or len(numbers) > steps:
        said = f"expected training steps 1 to {steps} in W&B; found {len(numbers)} rows"
        raise CollectError("steps_missing", said, late=not whole)
    return rule.code


def _measurements(evaluation: RunEvaluation, key: str, sha256: str) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(
            run_id=evaluation.run_id,
            key=name,
            value=part.success,
            n=len(part.episodes),
            sha256=sha256,
        )
        for name, part in ((key + INITIAL, evaluation.initial), (key, evaluation.final))
    )


def _tracked(folder: AttemptFolder, spec: AttemptSpec, read: ReadTracking) -> TrackedRun:
    """Return what W&B logged, after checking that it is this attempt's."""
    try:
        run = read(folder.path, spec.tracking_id)
    except TrackingUnreadable as error:
        raise CollectError("tracking_unreadable", str(error), late=isinstance(error, TrackingLate)) from error
    foreign = [
        f"{name} {run.config.get(name)!r}" for name, value in spec.names().items() if run.config.get(name) != value
    ]
    if foreign or run.id != spec.tracking_id:
        raise CollectError(
            "foreign_results",
            f"the W&B log is not of attempt {spec.attempt} at run {spec.run_id}: it says {', '.join(foreign)}",
        )
    return run


def _snapshot(spec: AttemptSpec, run: TrackedRun, history: Sequence[Row]) -> dict[str, Any]:
    """Return the snapshot of a W&B log: a row for each step, and whose it is."""
    return {
        "study": spec.run.study,
        "run_id": spec.run_id,
        "attempt": spec.attempt,
        "design_hash": spec.run.design_hash,
        "wandb": {"project": run.project, "group": run.group, "id": run.id, "config": run.config},
        "history": list(history),
    }


def _evaluation(path: Path, run: RunSpec, *, policy_version: int) -> Evaluation:
    """Return the evaluator's outcomes, after checking that they are complete and of this run's tasks and weights."""
    try:
        evaluation = Evaluation.model_validate(read_json(path))
    except ValidationError as error:
        raise CollectError("evaluation_unreadable", f"{path.name}: {describe(error)}") from error
    except ValueError as error:
        raise CollectError("evaluation_unreadable", f"{path.name}: {error}") from error
    found = (evaluation.environment, evaluation.split, evaluation.policy_version)
    expected = (run.environment, run.metric.split, policy_version)
    if found != expected:
        raise CollectError("foreign_results", f"{path.name}: expected an evaluation of {expected}; found {found}")
    _check_episodes(path.name, evaluation.episodes, run)
    return evaluation


def _check_episodes(name: str, episodes: list[EpisodeOutcome], run: RunSpec) -> None:
    hidden = {task.id for task in environments()[run.environment].tasks(run.metric.split)}
    if foreign := {episode.task_id for episode in episodes} - hidden:
        raise CollectError("foreign_results", f"{name}: {min(foreign)!r} is no hidden task of {run.environment}")
    plays = {(episode.task_id, episode.sample) for episode in episodes}
    if len(episodes) != run.metric.episodes or len(plays) != len(episodes):
        raise CollectError(
            "evaluation_incomplete",
            f"{name}: expected {run.metric.episodes} different plays; found {len(plays)} in {len(episodes)}",
        )
