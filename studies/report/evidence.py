"""The files behind a report, held to their hashes.

They also give each kind of metric that nobody asked for, with the usual parameters: no lock names them, and no claim
rests on them. What needs a name besides (a fact, another environment) is left to whoever asks for it.

`gather` opens the snapshot and the evaluation of every collected run, refuses (ReportError) a file whose sha256 is
not the one in the event log, and computes every hidden measurement again from the episodes. What it returns holds
curves and counts only: a report takes its figures from here and its verdicts from the state.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from studies.checks.conditions import INITIAL
from studies.errors import ReportError
from studies.log.event_log import lock_error
from studies.log.study import RunState, StudyState
from studies.metrics import Asked, MetricKind, Refused, Results
from studies.metrics.base import by_episodes
from studies.metrics.registry import define_metric, kinds, values_of
from studies.records.design import GAIN, Design, Metric
from studies.records.design import SUCCESS as HIDDEN_SUCCESS


@contextmanager
def translate_write_errors(folder: Path) -> Iterator[None]:
    """Turn the refusal of a disk or folder into a ReportError that says what to do."""
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"could not write the report into {folder}: {error.strerror or error}. Free space or make the folder "
            "writable, then build the report again"
        ) from error


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all; return its path. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


USUAL_THRESHOLD: Final = 0.7
"""Hidden success up to which other measures look, where the design names no threshold."""

_NOT_GIVEN: Final = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)
"""What reading a metric raises off files that lack what it needs; of somebody's code, whatever it meets there."""


def other_metrics(state: StudyState) -> tuple[Metric, ...]:
    design = state.design
    if design is None:
        return ()
    asked = Asked(
        measures="it is solved", episodes=design.metric.episodes, horizon=_longest(design),
        horizon_s=_most_seconds(state), threshold=design.metric.threshold or USUAL_THRESHOLD,
        tokens=_context(design),
    )  # fmt: skip
    own = design.metric
    found = {metric.key: metric for kind in kinds().values() for metric in _define_metrics(kind, asked)}
    looked = own.schedule is not None  # without looks during training there is no course to read
    return tuple(metric for key, metric in found.items() if key != own.key and (looked or metric.schedule is None))


def measure_all(metrics: tuple[Metric, ...], run: Results) -> Mapping[str, float]:
    """Return what a run's files give of these, by key; without those that they do not give."""
    found: dict[str, float] = {}
    for metric in metrics:
        try:
            found[metric.key] = values_of(metric, run)[metric.key].value
        except _NOT_GIVEN:
            continue
    return found


def _define_metrics(kind: MetricKind, asked: Asked) -> Iterator[Metric]:
    """Yield the metrics of a kind: of one that may do without a threshold, both."""
    if "of" in kind.takes:
        return
    for threshold in (None, asked.threshold) if "threshold" in kind.takes else (None,):
        try:
            metric = define_metric(kind, replace(asked, threshold=threshold))
        except Refused:
            continue
        if metric.threshold == threshold:  # else it is a threshold of something else than success
            yield metric


def _longest(design: Design) -> int:
    """Return the training episodes of the longest arm; 1 where jobs do not say."""
    jobs = [{**design.base_job, **arm.overrides} for arm in design.arms]
    return max(1, *(_whole(job.get("steps")) * _whole(job.get("episodes_per_step")) for job in jobs))


def _context(design: Design) -> int | None:
    """Return the tokens that a play may take at most; None where jobs do not say."""
    told = [_whole({**design.base_job, **arm.overrides}.get("max_context")) for arm in design.arms]
    return max(told, default=0) or None


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _most_seconds(state: StudyState) -> float | None:
    told = [((run.collected or {}).get("conditions") or {}).get("wall_s") for run in state.runs_in("confirm")]
    known = [float(seconds) for seconds in told if seconds]
    return max(known) if known else None


SUCCESS: Final = "critic/success/mean"
REWARDS: Final = "critic/rewards/mean"
AFTER: Final = HIDDEN_SUCCESS
BEFORE: Final = HIDDEN_SUCCESS + INITIAL
_PARTS: Final = {AFTER: "final", BEFORE: "initial"}
_WHEN: Final = ("initial", "final")
_FILES: Final = ("snapshot", "evaluation")
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What a collected run's files say: by metric its (step, value) pairs, by key what its episodes give anew."""

    run_id: str
    files: tuple[tuple[str, str], ...]
    """(path, sha256) of each file read."""
    steps: int
    curves: Mapping[str, tuple[tuple[int, float], ...]]
    recomputed: Mapping[str, float]
    wandb_id: str
    transcripts: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Plays that the evaluator kept, by task: (`initial` or `final`, the task's id and its messages)."""
    hidden: tuple[tuple[float, float], ...] = ()
    """Hidden success by training episodes, where it was evaluated during training."""
    others: Mapping[str, float] = field(default_factory=dict)
    """What its files give of metrics that nobody asked for, by key."""
    unsaid: Mapping[str, int] = field(default_factory=dict)
    """Plays after training of which the environment did not say a number that it said of others, by its name."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything read for a report, by run id, in the order of the runs."""

    runs: Mapping[str, RunEvidence]
    lock_error: str | None = None
    others: tuple[Metric, ...] = ()

    @property
    def curve_key(self) -> str | None:
        """The training metric every run logged: success if all did, else rewards, else None."""
        return next((key for key in (SUCCESS, REWARDS) if self.has_metric(key)), None)

    def has_metric(self, key: str) -> bool:
        return bool(self.runs) and all(run.curves.get(key) for run in self.runs.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(sorted({key for run in self.runs.values() for key in run.curves}))

    @property
    def files(self) -> int:
        return sum(len(run.files) for run in self.runs.values())


def gather(state: StudyState, folder: Path) -> Evidence:
    """Read and check the files of every valid collected run; one that was given up, perhaps for them, has no evidence.

    Raise ReportError naming run and file when one is missing, changed, unreadable, or contradicts a measurement.
    """
    others = other_metrics(state)
    runs = {run.run_id: _evidence(run, folder, others) for run in state.runs.values() if run.status == "collected"}
    return Evidence(runs, lock_error(state, folder), others)


def _evidence(run: RunState, folder: Path, others: tuple[Metric, ...]) -> RunEvidence:
    assert run.collected is not None
    snapshot = _read(run, "snapshot", folder)
    evaluation = _read(run, "evaluation", folder)
    history = _history(run, snapshot)
    recomputed = _recompute(run, evaluation)
    stopped = ((run.collected or {}).get("conditions") or {}).get("stopped_by")
    during, other = evaluation.get("during", ()), evaluation.get("other")
    results = Results(evaluation["initial"], evaluation["final"], during, snapshot["history"], other, stopped)
    return RunEvidence(
        run_id=run.run_id,
        files=tuple((run.collected[name]["path"], run.collected[name]["sha256"]) for name in _FILES),
        steps=max((step for step, _ in history), default=0),
        curves=_curves(history),
        recomputed={**recomputed, **_own(run, results)},
        wandb_id=str(snapshot.get("wandb", {}).get("id", "")),
        transcripts=_transcripts(evaluation),
        hidden=_hidden_curve(results),
        unsaid=_unsaid(evaluation),
        others=measure_all(others, results) if run.spec.phase == "confirm" else {},
    )


def _own(run: RunState, results: Results) -> dict[str, float]:
    """Return what a run was judged by, computed again, where it is more than success and its gain."""
    metric = run.spec.metric
    if not metric.kind:
        return {}
    try:
        found = values_of(metric, results)
    except Refused as error:
        raise ReportError(f"{metric.key} of run {run.run_id} cannot be computed again: {error}") from error
    told = {key: recorded for key, recorded in run.measurements.items() if key in found}
    for key, recorded in told.items():
        if abs(found[key].value - recorded.value) > _TOLERANCE:
            raise ReportError(
                f"{key} of run {run.run_id} is {recorded.value:.6f} in the event log, but its files give "
                f"{found[key].value:.6f}. No report is built on a number that does not recompute"
            )
    return {key: found[key].value for key in told}


def _unsaid(evaluation: Mapping[str, Any]) -> dict[str, int]:
    said = [episode.get("facts") or {} for episode in evaluation["final"]["episodes"]]
    names = sorted({name for facts in said for name in facts})
    lacking = {name: sum(name not in facts for facts in said) for name in names}
    return {name: count for name, count in lacking.items() if count}


def _hidden_curve(results: Results) -> tuple[tuple[float, float], ...]:
    if not results.during:
        return ()
    try:
        curve = by_episodes(results)
    except Refused:
        return ()
    return tuple(zip(curve.xs, curve.ys, strict=True))


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
    return _parse_object(run, name, data)


def _parse_object(run: RunState, name: str, data: bytes) -> dict[str, Any]:
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


def _recompute(run: RunState, evaluation: Mapping[str, Any]) -> dict[str, float]:
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
    if (gained := run.measurements.get(GAIN)) is not None:
        found = _share(run, evaluation, "final")[0] - _share(run, evaluation, "initial")[0]
        if abs(found - gained.value) > _TOLERANCE:
            raise ReportError(
                f"{GAIN} of run {run.run_id} is {gained.value:.6f} in the event log, but its evaluation file gives "
                f"{found:.6f}. No report is built on a number that does not recompute"
            )
        values[GAIN] = found
    return values


def _share(run: RunState, evaluation: Mapping[str, Any], part: str) -> tuple[float, int]:
    try:
        outcomes = [bool(episode["success"]) for episode in evaluation[part]["episodes"]]
    except (KeyError, TypeError) as error:
        raise ReportError(f"the evaluation of run {run.run_id} holds no {part} episodes; collect it again") from error
    return (sum(outcomes) / len(outcomes) if outcomes else math.nan), len(outcomes)


def _transcripts(evaluation: Mapping[str, Any]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    parts = {part: {entry["task_id"]: entry for entry in evaluation[part].get("transcripts", ())} for part in _WHEN}
    both = (task for task in parts["initial"] if task in parts["final"])
    return tuple((part, parts[part][task]) for task in both for part in _WHEN)


def _history(run: RunState, snapshot: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    try:
        return [(int(entry["step"]), dict(entry["metrics"])) for entry in snapshot["history"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"the snapshot of run {run.run_id} holds no readable history; collect it again") from error


def _curves(history: list[tuple[int, Mapping[str, Any]]]) -> dict[str, tuple[tuple[int, float], ...]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for step, metrics in history:
        for key, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(key, []).append((step, float(value)))
    return {key: tuple(points) for key, points in sorted(found.items())}
