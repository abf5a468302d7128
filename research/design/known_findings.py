"""What one study found, read from its log and its verified files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from research.design.noise_bank import metric_key, model_key
from research.installation.base_job import APART, parse_job, without_model_path
from studies import StudyState
from studies.proof import DOES_NOT_FOLLOW, verdict_fault
from studies.records.base import JsonValue, Record, canonical, digest
from studies.records.design import MODEL, Hypothesis, Metric
from studies.records.procedure import Phase
from studies.records.statements import metric_name, model_name, sentences
from studies.records.verdict import Verdict
from studies.verdicts.wording import deciding_interval
from swarm.job import Job, TinyModel

KnownVerdict = Literal["supported", "refuted", "equivalent", "inconclusive", "invalid", "does not follow"]
"""A verdict, or that it does not follow from the files any more: then nothing else is said of it."""


class FindingConditions(Record):
    """Where a finding holds."""

    environment: str
    model: str
    """What people call the model that is trained."""
    model_key: str
    """Key of the model and of what trains it, as in the noise bank."""
    metric: str
    """Key of the metric with all that its values depend on."""
    metric_name: str
    job: str
    """Digest of the job under all arms, whatever the compared fields, the seed and the schedule of evaluations are."""
    fields: Mapping[str, JsonValue]
    """What that job has otherwise than a job that says nothing, but for model, environment and compared fields."""


class KnownFinding(Record):
    """A verdict that stands, of any study and round."""

    study: str
    round: int
    hypothesis: str
    phase: Phase
    """`replicate` for the same comparison in another setting."""
    claim: str
    """What was put to the test, a sentence by code."""
    variable: str
    control: JsonValue
    treatment: JsonValue
    verdict: KnownVerdict
    estimate: float | None
    """Treatment minus control, in the metric's own unit; None where there is none."""
    low: float | None
    high: float | None
    level: float | None
    """Level of the interval that decided, from `low` to `high`."""
    n_control: int
    n_treatment: int
    exploratory: bool
    """Whether an amendment after the first result touched it."""
    lock: str
    """Hash of the lock that it was judged under."""
    conditions: FindingConditions
    doubt: str = ""
    """Why the verdict does not follow; empty where it does."""

    @property
    def name(self) -> str:
        again = "" if self.phase == "confirm" else f"/{self.phase}"
        return f"{self.study}/{self.round}/{self.hypothesis}{again}"

    @property
    def compared(self) -> tuple[str, tuple[str, ...], str]:
        """What was compared, whichever arm was the control: variable, values in a fixed order, metric."""
        values = sorted((self.control, self.treatment), key=_sort_key)
        return self.variable, tuple(map(canonical, values)), self.conditions.metric

    @property
    def sign(self) -> int:
        """1 where the later value, in the order of `compared`, is said to have the higher metric, -1 where the lower
        one, 0 where no difference is claimed."""
        if self.verdict not in ("supported", "refuted") or not self.estimate:
            return 0
        return 1 if (self.estimate > 0) == self._in_order else -1

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval, turned to be of the later value minus the earlier one in the order of `compared`."""
        if self.low is None or self.high is None:
            return None
        return (self.low, self.high) if self._in_order else (-self.high, -self.low)

    @property
    def _in_order(self) -> bool:
        return _sort_key(self.treatment) >= _sort_key(self.control)


def _sort_key(value: JsonValue) -> tuple[bool, float, str]:
    """Return where a value stands among others: numbers by size, then all else by its text."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, canonical(value)


def findings_of(state: StudyState, folder: Path) -> tuple[KnownFinding, ...]:
    """Return what each round of a study found; a verdict that does not follow from `folder` stands without numbers."""
    findings = []
    for entry in state.rounds:
        for claim in entry.design.hypotheses if entry.design is not None else ():
            verdict = entry.verdict_on(claim.id)
            settled = [verdict] if verdict is not None and entry.is_settled(claim.id) else []
            again = [other for other in entry.replications if other.hypothesis == claim.id]
            findings += [_build_finding(entry, claim, verdict, folder) for verdict in (*settled, *again)]
    return tuple(findings)


def _build_finding(state: StudyState, claim: Hypothesis, verdict: Verdict, folder: Path) -> KnownFinding:
    design = state.design
    assert design is not None
    job = {**design.base_job, "environment": design.environment}
    if verdict.phase == "replicate" and design.replication is not None:
        job |= {**design.replication.overrides, "environment": design.replication.environment}
    environment, why = str(job["environment"]), verdict_fault(state, folder, verdict)
    least = design.promise.effect if design.promise else None
    follows = why is None
    interval = deciding_interval(design, verdict) if follows else None
    return KnownFinding(
        study=state.id, round=state.round, hypothesis=claim.id, phase=verdict.phase,
        claim=sentences([claim], environment, least, design.metric)[0],
        variable=claim.variable, control=claim.control, treatment=claim.treatment,
        verdict=verdict.verdict if follows else DOES_NOT_FOLLOW,
        estimate=_finite_or_none(verdict.estimate) if follows else None,
        low=None if interval is None else _finite_or_none(interval.low),
        high=None if interval is None else _finite_or_none(interval.high),
        level=None if interval is None else interval.level,
        n_control=verdict.n_control, n_treatment=verdict.n_treatment, exploratory=verdict.exploratory,
        lock=str(state.design_hash), conditions=_build_conditions(job, design.metric, claim), doubt=why or "",
    )  # fmt: skip


def _build_conditions(job: Mapping[str, Any], metric: Metric, claim: Hypothesis) -> FindingConditions:
    recorded, apart = parse_job(job), {*APART, *claim.declared}
    if recorded is None:
        known, alike, usual = dict(job), dict(job), Job.default_fields(TinyModel())
    else:
        known, alike = recorded.model_dump(mode="json"), without_model_path(recorded).value()
        usual = Job.default_fields(recorded.model, recorded.lora_rank)
    shown = sorted(known.keys() - {*apart, MODEL, "environment"})
    return FindingConditions(
        environment=str(job["environment"]),
        model="compared" if MODEL in claim.declared else model_name(known.get(MODEL, {})),
        model_key=digest(known.get(MODEL))[:16] if recorded is None else model_key(recorded),
        metric=metric_key(metric),
        metric_name=metric_name(metric),
        job=digest({name: value for name, value in alike.items() if name not in apart})[:16],
        fields={name: known[name] for name in shown if known[name] != usual.get(name)},
    )


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
