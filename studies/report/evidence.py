"""The files behind a report, held to their hashes.

`gather` refuses (ReportError) a file of a collected run whose sha256 is not the one in the event log, and computes
every hidden measurement again. It also gives each kind of metric that nobody asked for, with the usual parameters: no
claim rests on them. A report takes its figures from here and its verdicts from the state.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from studies.checks.conditions import INITIAL, CollectError, read_collected
from studies.errors import ReportError
from studies.log.entries import RunState
from studies.log.event_log import lock_error
from studies.log.study import StudyState
from studies.metrics import Asked, Refused, Results
from studies.metrics.base import success_curve
from studies.metrics.registry import define_metric, kinds, values_of
from studies.records.design import SUCCESS as HIDDEN_SUCCESS
from studies.records.design import Metric

USUAL_THRESHOLD: Final = 0.7
"""Hidden success up to which other measures look, where the design names no threshold."""

NOT_GIVEN: Final = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)
"""What reading a metric raises off files that lack what it needs; of somebody's code, whatever it meets there."""
SUCCESS: Final = "critic/success/mean"
REWARDS: Final = "critic/rewards/mean"
BEFORE: Final = HIDDEN_SUCCESS + INITIAL
_TOLERANCE = 1e-9
_MOST_PLAYS: Final = 2
"""Plays of a run that a report quotes, of those that were kept."""


def other_metrics(state: StudyState) -> tuple[Metric, ...]:
    design = state.design
    if design is None:
        return ()
    jobs = [{**design.base_job, **arm.overrides} for arm in design.arms]

    def most(*fields: str) -> int:
        """Return the largest product of these fields over the jobs; 0 where none says."""
        told = ([job.get(field) for field in fields] for job in jobs)
        return max(math.prod(value if isinstance(value, int) else 0 for value in values) for values in told)

    walls = [seen.wall_s for run in state.runs_in("confirm") if (seen := run.conditions) is not None]
    own = design.metric
    asked = Asked(
        measures="it is solved", episodes=own.episodes, horizon=max(1, most("steps", "episodes_per_step")),
        horizon_s=max((seconds for seconds in walls if seconds), default=None),
        threshold=own.threshold or USUAL_THRESHOLD, tokens=most("max_context") or None,
    )  # fmt: skip
    others = dict[str, Metric]()
    shared = any(run.untrained for run in state.runs_in("confirm"))  # then gains differ as what is gained does
    told = (kind for kind in kinds().values() if kind.evaluates and not (shared and kind.reads_initial))
    for kind in (kind for kind in told if "of" not in kind.takes):
        for threshold in (None, asked.threshold) if "threshold" in kind.takes else (None,):
            try:
                metric = define_metric(kind, replace(asked, threshold=threshold))
            except Refused:
                continue
            if metric.threshold == threshold:  # else it is a threshold of something else than success
                others[metric.key] = metric
    looked = own.schedule is not None  # without looks during training there is no course to read
    return tuple(metric for key, metric in others.items() if key != own.key and (looked or metric.schedule is None))


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What a collected run's files say: by metric its (step, value) pairs, by key what its episodes give anew."""

    files: tuple[tuple[str, str], ...]
    curves: Mapping[str, tuple[tuple[int, float], ...]]
    recomputed: Mapping[str, float]
    transcripts: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Plays that the evaluator kept, by task: (`initial` or `final`, the task's id and its messages)."""
    hidden: tuple[tuple[float, float], ...] = ()
    """Hidden success by training episodes, where it was evaluated during training."""
    tasks: Mapping[str, float] = field(default_factory=dict)
    """Share of the plays after training of each hidden task that solved it; of a run of the confirmation."""
    others: Mapping[str, float] = field(default_factory=dict)
    """What its files give of metrics that nobody asked for, by key."""


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


def gather(state: StudyState, folder: Path) -> Evidence:
    """Read and check the files of every valid collected run. Raise ReportError naming run and file."""
    others = other_metrics(state)
    runs = {run.run_id: _evidence(run, folder, others) for run in state.runs.values() if run.status == "collected"}
    return Evidence(runs, lock_error(state, folder), others)


def gather_rounds(state: StudyState, folder: Path) -> dict[int, Evidence]:
    """Return the evidence of every round by its number; raise ReportError as `gather` does."""
    return {each.round: gather(each, folder) for each in state.every_round}


def _evidence(run: RunState, folder: Path, others: tuple[Metric, ...]) -> RunEvidence:
    collected = run.collected or {}
    snapshot, evaluation = _read(run, "snapshot", folder), _read(run, "evaluation", folder)
    if snapshot.get("design_hash") != (expected := run.spec.design_hash):
        raise ReportError(f"the snapshot of run {run.run_id} was made under another design than {expected[:12]}")
    try:
        history = [(int(entry["step"]), dict(entry["metrics"])) for entry in snapshot["history"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"the snapshot of run {run.run_id} holds no readable history; collect it again") from error
    for part in ("initial", "final"):
        with suppress(KeyError, TypeError):
            if [bool(episode["success"]) for episode in evaluation[part]["episodes"]]:
                continue
        raise ReportError(f"the evaluation of run {run.run_id} holds no {part} episodes; collect it again")
    results = Results.of(snapshot, evaluation, run.conditions.stopped_by if run.conditions else None)
    hidden: tuple[tuple[float, float], ...] = ()
    if results.during:
        with suppress(Refused):
            curve = success_curve(results)
            hidden = tuple(zip(curve.xs, curve.ys, strict=True))
    curves: dict[str, list[tuple[int, float]]] = {}
    for step, metrics in history:
        for key, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                curves.setdefault(key, []).append((step, float(value)))
    measured, plays = dict[str, float](), dict[str, list[bool]]()
    if run.spec.phase == "confirm":
        for metric in others:
            with suppress(*NOT_GIVEN):
                measured[metric.key] = values_of(metric, results)[metric.key].value
        for episode in evaluation["final"]["episodes"]:
            plays.setdefault(str(episode.get("task_id")), []).append(bool(episode["success"]))
    kept = {part: {p["task_id"]: p for p in evaluation[part].get("transcripts", ())} for part in ("initial", "final")}
    both = [task for task in kept["initial"] if task in kept["final"]][:_MOST_PLAYS]
    return RunEvidence(
        files=tuple((collected[name]["path"], collected[name]["sha256"]) for name in ("snapshot", "evaluation")),
        curves={key: tuple(points) for key, points in sorted(curves.items())},
        recomputed=_recompute(run, results),
        transcripts=tuple((part, kept[part][task]) for task in both for part in kept),
        hidden=hidden,
        tasks={task: fmean(solved) for task, solved in plays.items()},
        others=measured,
    )


def _recompute(run: RunState, results: Results) -> dict[str, float]:
    try:
        found = values_of(run.spec.metric, results)
    except Refused as error:
        raise ReportError(f"{run.spec.metric.key} of run {run.run_id} cannot be computed again: {error}") from error
    known = {key: recorded for key, recorded in run.measurements.items() if key in found}
    for key, recorded in known.items():
        value, n = found[key]
        if n != recorded.n or abs(value - recorded.value) > _TOLERANCE:
            raise ReportError(
                f"{key} of run {run.run_id} is {recorded.value:.6f} of {recorded.n} episodes in the event log, but its "
                f"files give {value:.6f} of {n}. No report is built on a number that does not recompute"
            )
    return {key: found[key].value for key in known}


def _read(run: RunState, name: str, folder: Path) -> dict[str, Any]:
    record = (run.collected or {})[name]
    try:
        data = read_collected(folder, record)
    except CollectError as error:
        raise ReportError(
            f"run {run.run_id}: {error.reason}. Restore the file from a backup; no report is built without it"
        ) from error
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ReportError(f"the {name} of run {run.run_id} is no JSON ({error}); collect the run again") from error
    if not isinstance(value, dict) or value.get("run_id") != run.run_id:
        raise ReportError(f"the {name} of run {run.run_id} is not about this run; collect the run again")
    return value
