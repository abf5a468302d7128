"""The files behind a report, each proven to be what the harness collected before a number is taken from it.

`gather` opens the snapshot and the evaluation of every collected run, refuses (ReportError) a file whose sha256 is
not the one in the event log, and computes every hidden measurement again from the episodes. What it returns holds
curves and counts only: a report takes its figures from here and its verdicts from the state.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from studies.log.lock_file import lock_error
from studies.log.study_state import RunState, StudyState
from studies.records.errors import ReportError

SUCCESS: Final = "critic/success/mean"
REWARDS: Final = "critic/rewards/mean"
AFTER: Final = "hidden/success"
BEFORE: Final = "hidden/success/initial"
_PARTS: Final = {AFTER: "final", BEFORE: "initial"}
_WHEN: Final = ("initial", "final")
_FILES: Final = ("snapshot", "evaluation")
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What a collected run's files say. `curves` maps a metric to its (step, value) pairs; `recomputed` a hidden
    measurement's key to its value computed anew from the episodes."""

    run_id: str
    files: tuple[tuple[str, str], ...]
    """(path, sha256) of each file read."""
    steps: int
    curves: Mapping[str, tuple[tuple[int, float], ...]]
    recomputed: Mapping[str, float]
    wandb_id: str
    transcripts: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Plays that the evaluator kept, by task: (`initial` or `final`, the task's id and its messages)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything read for a report, by run id, in the order of the runs."""

    runs: Mapping[str, RunEvidence]
    lock_error: str | None = None
    """What is wrong with the lock's file, in a sentence; None if nothing is."""

    @property
    def curve_key(self) -> str | None:
        """The training metric every run logged: success if all did, else rewards, else None."""
        return next((key for key in (SUCCESS, REWARDS) if self.logged(key)), None)

    def logged(self, key: str) -> bool:
        """Return whether every run logged a metric."""
        return bool(self.runs) and all(run.curves.get(key) for run in self.runs.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that some run logged."""
        return tuple(sorted({key for run in self.runs.values() for key in run.curves}))

    @property
    def files(self) -> int:
        """How many files were read and matched their hash."""
        return sum(len(run.files) for run in self.runs.values())


def gather(state: StudyState, folder: Path) -> Evidence:
    """Read and check the files of every valid collected run under the study's folder.

    A run that was given up is shown as such and has no evidence: damaged files are a reason to give one up.

    Raise ReportError naming the run and the file when one is missing, changed, unreadable, or contradicts a
    measurement in the log.
    """
    runs = {run.run_id: _evidence(run, folder) for run in state.runs.values() if run.status == "collected"}
    return Evidence(runs, lock_error(state, folder))


def _evidence(run: RunState, folder: Path) -> RunEvidence:
    assert run.collected is not None
    snapshot = _read(run, "snapshot", folder)
    evaluation = _read(run, "evaluation", folder)
    recomputed = _recomputed(run, evaluation)
    history = _history(run, snapshot)
    return RunEvidence(
        run_id=run.run_id,
        files=tuple((run.collected[name]["path"], run.collected[name]["sha256"]) for name in _FILES),
        steps=max((step for step, _ in history), default=0),
        curves=_curves(history),
        recomputed=recomputed,
        wandb_id=str(snapshot.get("wandb", {}).get("id", "")),
        transcripts=_transcripts(evaluation),
    )


def _read(run: RunState, name: str, folder: Path) -> dict[str, Any]:
    assert run.collected is not None
    record = run.collected[name]
    path = _inside(folder, record["path"], run)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReportError(
            f"expected the {name} of run {run.run_id} at {record['path']}; found {error.strerror or error}. "
            "Restore the file from a backup; no report is built without it"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != record["sha256"]:
        raise ReportError(
            f"the {name} of run {run.run_id} ({record['path']}) is not what was collected: expected sha256 "
            f"{record['sha256'][:12]}, found {found[:12]}. Restore the file from a backup; no report is built on it"
        )
    return _parsed(run, name, data)


def _parsed(run: RunState, name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ReportError(f"the {name} of run {run.run_id} is no JSON ({error}); collect the run again") from error
    if not isinstance(value, dict) or value.get("run_id") != run.run_id:
        raise ReportError(f"the {name} of run {run.run_id} is not about this run; collect the run again")
    expected = run.spec.design_hash
    if name == "snapshot" and value.get("design_hash") != expected:
        raise ReportError(f"the snapshot of run {run.run_id} was made under another design than {expected[:12]}")
    return value


def _inside(folder: Path, path: str, run: RunState) -> Path:
    whole = (folder / path).resolve()
    if not whole.is_relative_to(folder.resolve()):
        raise ReportError(f"a file of run {run.run_id} lies outside the study's folder: {path!r}")
    return whole


def _recomputed(run: RunState, evaluation: Mapping[str, Any]) -> dict[str, float]:
    values: dict[str, float] = {}
    for key, part in _PARTS.items():
        measurement = run.measurements.get(key)
        if measurement is None:
            continue
        value, n = _share(run, evaluation, part)
        if n != measurement.n or abs(value - measurement.value) > _TOLERANCE:
            raise ReportError(
                f"{key} of run {run.run_id} is {measurement.value:.6f} of {measurement.n} episodes in the event log, "
                f"but its evaluation file gives {value:.6f} of {n}. No report is built on a number that "
                "does not recompute"
            )
        values[key] = value
    return values


def _share(run: RunState, evaluation: Mapping[str, Any], part: str) -> tuple[float, int]:
    try:
        outcomes = [bool(episode["success"]) for episode in evaluation[part]["episodes"]]
    except (KeyError, TypeError) as error:
        raise ReportError(f"the evaluation of run {run.run_id} holds no {part} episodes; collect it again") from error
    return (sum(outcomes) / len(outcomes) if outcomes else math.nan), len(outcomes)


def _transcripts(evaluation: Mapping[str, Any]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return the plays that were kept both before and after training, task by task."""
    parts = {part: {entry["task_id"]: entry for entry in evaluation[part].get("transcripts", ())} for part in _WHEN}
    both = (task for task in parts["initial"] if task in parts["final"])
    return tuple((part, parts[part][task]) for task in both for part in _WHEN)


def _history(run: RunState, snapshot: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    try:
        return [(int(entry["step"]), dict(entry["metrics"])) for entry in snapshot["history"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"the snapshot of run {run.run_id} holds no readable history; collect it again") from error


def _curves(history: list[tuple[int, Mapping[str, Any]]]) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return every metric that was logged as its finite values by step."""
    found: dict[str, list[tuple[int, float]]] = {}
    for step, metrics in history:
        for key, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(key, []).append((step, float(value)))
    return {key: tuple(points) for key, points in sorted(found.items())}
