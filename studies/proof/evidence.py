"""Files of runs against the log: measurements, counts and conditions are computed again from snapshot and evaluation.

What was not recorded claims nothing, but for a run's curve where a rule of collapse is locked: without it a collapsed
run would count. Alarms and kinds of tasks need code that this room does not import: of kinds the sums are checked, of
alarms whether a run that they are said to have ended is short of steps.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from studies.checks.conditions import CollectError, extract_conditions, mean_facts, play_variance, read_collected
from studies.log.entries import RunState
from studies.log.study import StudyState
from studies.metrics import Refused, Results, other_environment
from studies.metrics.registry import values_of
from studies.records.runs import EVIDENCE_CODES

UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What reading a value raises that lacks what it must hold, or holds something else."""
FILES: Final = ("snapshot", "evaluation")
_JUDGED: Final = ("confirm", "replicate")


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Something stored that is not what it must be. `place` is a file, an event or a record; `difference` a clause."""

    place: str
    difference: str

    def __str__(self) -> str:
        return f"{self.place}: {self.difference}"


@dataclass(slots=True)
class Findings:
    """A verification under way."""

    drifts: list[Discrepancy] = field(default_factory=list)
    held: Counter[str] = field(default_factory=Counter)
    """How many of what were checked and held, by a noun in the singular."""
    notes: list[str] = field(default_factory=list)
    """What was not checked and why, and what a reader should know; one sentence each."""

    def drift(self, place: str, difference: str) -> None:
        found = Discrepancy(place, difference)
        if found not in self.drifts:
            self.drifts.append(found)

    def check(self, what: str, place: str, difference: str | None) -> None:
        if difference is None:
            self.held[what] += 1
        else:
            self.drift(place, difference)

    @contextmanager
    def catch_unreadable(self, place: str) -> Iterator[None]:
        """Take note of a drift where something stored cannot be read as what it must be."""
        try:
            yield
        except UNREADABLE as error:
            cause = " ".join(str(error).split())
            self.drift(place, f"it lacks what it must hold, or holds something else ({type(error).__name__}: {cause})")

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def check_files(state: StudyState, folder: Path, findings: Findings) -> None:
    design = state.locked_design
    for run in state.all_runs.values():
        if run.collected is None:
            continue
        snapshot, evaluation = (_load_collected(run, run.collected[kind], folder, findings) for kind in FILES)
        if snapshot is not None and evaluation is not None:
            source, untrained = state.every_run.get(run.untrained) if run.untrained else None, None
            if source is not None and source.collected is not None:
                with suppress(CollectError, *UNREADABLE):
                    untrained = json.loads(read_collected(folder, source.collected["evaluation"]))["initial"]
            whole = _CollectedRun(run, run.collected, snapshot, evaluation, findings, untrained)
            with findings.catch_unreadable(f"the files of run {run.run_id}"):
                whole.check_snapshot()
                whole.check_evaluation()
                whole.check_measurements()
                whole.check_conditions()
        if design is None or design.collapse is None or run.spec.phase not in _JUDGED:
            continue
        place = f"run.collected of {run.run_id}"
        with findings.catch_unreadable(place):
            place, recorded = f"{place}, conditions", run.collected.get("conditions") or {}
            if recorded.get("course") is None:
                findings.drift(place, "it holds no course, by which the locked rule says whether the run collapsed")
            steps, planned, by = recorded.get("steps"), run.spec.job["steps"], recorded.get("stopped_by")
            if steps is not None and (by is None) != (steps == planned):
                findings.drift(place, f"stopped_by is {by!r}, of a run of {steps} steps where {planned} were planned")


def _load_collected(
    run: RunState, record: Mapping[str, Any], folder: Path, findings: Findings
) -> dict[str, Any] | None:
    name = str(record["path"])
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        findings.drift(name, "it lies outside the study's folder")
        return None
    if path.exists() and not path.is_file():
        findings.drift(name, "it is no plain file")
        return None
    difference, data = None, b""
    try:
        data = path.read_bytes()
        if (sha256 := hashlib.sha256(data).hexdigest()) != record["sha256"]:
            difference = f"expected the sha256 {record['sha256'][:12]} of the log, found {sha256[:12]}"
    except OSError as error:
        difference = f"it cannot be read: {error.strerror or error}"
    if difference and run.invalid is not None and run.invalid[0] in EVIDENCE_CODES:
        findings.note(f"{name}: {difference}; run {run.run_id} was given up for that.")
        return None
    findings.check("file", name, difference)
    if difference:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        findings.drift(name, f"it is no JSON: {error}")
        return None
    if isinstance(value, dict):
        return value
    findings.drift(name, "it holds no JSON object")
    return None


@dataclass(frozen=True, slots=True)
class _CollectedRun:
    """A run with what the log says was collected of it (`record`), and the two files."""

    run: RunState
    record: Mapping[str, Any]
    snapshot: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    findings: Findings
    untrained: Mapping[str, Any] | None
    """The evaluation of the untrained policy that it has as its own before training."""

    def check_snapshot(self) -> None:
        run, snapshot, wandb = self.run, self.snapshot, self.snapshot["wandb"]
        place = str(self.record["snapshot"]["path"])
        named = {
            "run_id": (snapshot["run_id"], run.run_id), "attempt": (snapshot["attempt"], self.record["attempt"]),
            "design_hash": (snapshot["design_hash"], run.spec.design_hash), "group": (wandb["group"], run.spec.study),
            "study": (snapshot.get("study", run.spec.study), run.spec.study),
            "seed": (wandb["config"]["seed"], run.spec.seed),
        }  # fmt: skip
        self._compare(place, named)
        steps = [row["step"] for row in snapshot["history"]]
        counted = {"steps": (self.record["snapshot"].get("steps", len(steps)), len(steps))}
        self._compare(f"run.collected of {run.run_id}, snapshot", counted)
        if steps != list(range(1, len(steps) + 1)):
            self.findings.drift(place, f"its steps are not 1 to {len(steps)}")

    def check_evaluation(self) -> None:
        run, evaluation, metric = self.run, self.evaluation, self.run.spec.metric
        place = str(self.record["evaluation"]["path"])
        named = {
            "run_id": (evaluation["run_id"], run.run_id),
            "attempt": (evaluation["attempt"], self.record["attempt"]),
            "study": (evaluation.get("study") or run.spec.study, run.spec.study),
        }
        self._compare(place, named)
        if evaluation.get("study") is None:
            self.findings.note("Evaluations of an earlier version name their run, not their study.")
        for name in ("initial", "final"):
            episodes = metric.episodes if name == "final" or self.untrained is None else len(self.untrained["episodes"])
            self._check_part(f"{place}, {name}", evaluation[name], episodes)
        if self.untrained is not None and evaluation["initial"] != self.untrained:
            self.findings.drift(f"{place}, initial", f"it is not the evaluation before training of {run.untrained}")
        schedule, during = metric.schedule, evaluation.get("during", ())
        steps, last = () if schedule is None else schedule.steps(run.spec.job), evaluation["final"]["policy_version"]
        versions = [part["policy_version"] for part in during]
        self._compare(place, {"evaluated after": (versions, [step for step in steps if step < last])})
        for part in during:
            episodes = 0 if schedule is None else schedule.episodes
            self._check_part(f"{place}, after step {part['policy_version']}", part, episodes)
        other, environment = evaluation.get("other"), other_environment(metric, run.spec.job)
        self._compare(place, {"an evaluation on another environment": (other is not None, environment is not None)})
        if other is not None and environment is not None:
            self._check_part(f"{place}, other", other, metric.episodes, environment)
            self._compare(f"{place}, other", {"version": (other["policy_version"], last)})

    def _check_part(self, place: str, part: Mapping[str, Any], episodes: int, environment: str = "") -> None:
        plays = {(episode["task_id"], episode["sample"]) for episode in part["episodes"]}
        of = {
            "environment": (part["environment"], environment or self.run.spec.environment),
            "split": (part["split"], self.run.spec.metric.split),
            "episodes": (len(part["episodes"]), episodes),
            "different plays": (len(plays), episodes),
        }
        self._compare(place, of)

    def check_measurements(self) -> None:
        run, metric = self.run, self.run.spec.metric
        stopped_by = (self.record.get("conditions") or {}).get("stopped_by")
        try:
            values = values_of(metric, Results.of(self.snapshot, self.evaluation, stopped_by))
        except Refused as error:
            self.findings.drift(f"{metric.key} of run {run.run_id}", str(error))
            return
        for key, measurement in run.measurements.items():
            fault, (value, n) = None, values.get(key, (None, 0))
            if value is None:
                fault = f"expected one of {', '.join(values)}, which can be computed from its files"
            elif measurement.sha256 != self.record["evaluation"]["sha256"]:
                fault = "it is bound to another file than the evaluation that it is computed from"
            elif (measurement.value, measurement.n) != (value, n):
                fault = f"{measurement.value} of {measurement.n} episodes in the log, {value} of {n} by its evaluation"
            self.findings.check("measurement", f"measurement {key} of run {run.run_id}", fault)

    def check_conditions(self) -> None:
        initial, final = self.evaluation["initial"], self.evaluation["final"]
        place = f"run.collected of {self.run.run_id}"
        counted, played = self.record["evaluation"].get("episodes"), len(initial["episodes"]) + len(final["episodes"])
        if counted is not None and counted not in (played, len(final["episodes"])):
            self.findings.drift(f"{place}, evaluation", f"episodes is {counted}, its file holds {played}")
        recorded = self.record.get("conditions") or {}
        computed = extract_conditions(self.snapshot["history"], initial, final)
        both = {name: (recorded[name], value) for name, value in computed.items() if recorded.get(name) is not None}
        both["untrained"] = recorded.get("untrained"), self.run.untrained or None
        self._compare(f"{place}, conditions", both)
        if (known := self.record.get("play_variance")) is not None:
            self._compare(place, {"play_variance": (known, play_variance(final))})
        stored, facts = self.record.get("facts", {}), mean_facts(final)
        names = stored.keys() | facts.keys() if stored else ()
        self._compare(f"{place}, facts", {name: (stored.get(name), facts.get(name)) for name in names})
        if kinds := self.record.get("kinds"):
            sums = [sum(kind[at] for kind in kinds.values()) for at in (0, 1)]
            solved = sum(bool(episode["success"]) for episode in final["episodes"])
            self._compare(f"{place}, kinds", {"solved": (sums[0], solved), "played": (sums[1], len(final["episodes"]))})

    def _compare(self, place: str, pairs: Mapping[str, tuple[Any, Any]]) -> None:
        for name, (stored, expected) in pairs.items():
            numbers = isinstance(stored, float) and isinstance(expected, float)
            if not (math.isclose(stored, expected, rel_tol=1e-9, abs_tol=1e-12) if numbers else stored == expected):
                self.findings.drift(place, f"{name} is {stored!r}, expected {expected!r}")
