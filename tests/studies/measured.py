"""Synthetic studies that are judged by any kind of metric: their files hold evaluations before, during and after
training, and every number in the log is read off those files by the kind, as the harness reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from studies import Event
from studies.checks.conditions import extract_conditions, mean_facts
from studies.log.event import EventType
from studies.metrics import Asked, Results, kind_named, other_environment
from studies.metrics.registry import values_of
from studies.records.design import Design, Metric, RunSpec, Schedule
from studies.records.procedure import Prediction
from studies.records.runs import Measurement, confirm_spec
from tests.studies.synthetic import Synthetic, design, hypothesis

STEPS, BATCH, HELD = 40, 128, 256
HORIZON = STEPS * BATCH


def metric(kind: str, threshold: float | None = None, of: str = "") -> Metric:
    """Return a metric of the guessing game, which says of each play how many turns it took."""
    return kind_named(kind).define(
        Asked(
            measures="the number is found", episodes=HELD, horizon=HORIZON, horizon_s=90.0, threshold=threshold,
            schedule=Schedule(every=512, episodes=64), of=of, tokens=200, facts={"turns": (8.0, 1.0)},
        )
    )  # fmt: skip


def measured_design(chosen: Metric, seeds: int = 5, **changes: Any) -> Design:
    span = abs(chosen.best - chosen.worst)
    low, high = (0.0, 0.3 * span) if chosen.higher_is_better else (-0.3 * span, 0.0)
    claim = hypothesis(
        direction="increase" if chosen.higher_is_better else "decrease",
        prediction=Prediction(low=low, high=high, probability=0.7),
    )
    given: dict[str, Any] = {"metric": chosen, "test": "welch", "shared_seeds": True}
    return design((claim,), seeds, **(given | changes))


@dataclass
class MeasuredStudy(Synthetic):
    """`slowness` is after which share of the training an arm has made two thirds of its way to its top."""

    slowness: dict[str, float] = field(default_factory=lambda: {"group_size=4": 0.45, "group_size=16": 0.2})
    collapsed: dict[str, int] = field(default_factory=dict)
    """How many of an arm's first runs lose again what they had learned."""
    stuck: dict[str, int] = field(default_factory=dict)
    """How many of an arm's first runs never rise above a half."""
    ends: dict[str, float] = field(default_factory=dict)
    """Where an arm's training ends, if not near 0.9."""
    counts: dict[str, int] = field(default_factory=dict)

    def spec(self, arm: str, seed: int) -> RunSpec:
        return confirm_spec(self.study, self.design, self.design.hash(), self.design.arm(arm), seed)

    def collect(self, spec: RunSpec, attempt: int = 1, steps: int | None = None) -> Event:
        number = self.counts[spec.arm] = self.counts.get(spec.arm, 0) + 1
        stuck = number <= self.stuck.get(spec.arm, 0)
        share = self._course(spec, falls=number <= self.collapsed.get(spec.arm, 0), top=0.5 if stuck else None)
        history = [self._row(step, share(step)) for step in range(1, STEPS + 1)]
        schedule = spec.metric.schedule
        looks = schedule.steps(spec.job) if schedule is not None else ()
        size = schedule.episodes if schedule is not None else HELD
        initial, final = (self._part(step, share(step), HELD) for step in (0, STEPS))
        during = [self._part(step, share(step), size) for step in looks]
        elsewhere = other_environment(spec.metric, spec.job)
        other = None if elsewhere is None else {**self._part(STEPS, share(STEPS) / 2, HELD), "environment": elsewhere}
        snapshot = {**self._snapshot(spec, attempt, 0.3, 0.6, STEPS), "history": history}
        evaluation = {"run_id": spec.run_id, "attempt": attempt, "initial": initial, "final": final}
        more = {name: part for name, part in (("during", during), ("other", other)) if part}
        written = self._write("snapshot", snapshot, spec)
        whole = self._write("evaluation", {**evaluation, **more}, spec)
        collected = self.append(
            EventType.RUN_COLLECTED, run_id=spec.run_id, attempt=attempt, seconds=1.2,
            snapshot={**written, "steps": STEPS}, evaluation={**whole, "episodes": 2 * HELD},
            conditions=extract_conditions(history, initial, final), facts=mean_facts(final),
        )  # fmt: skip
        results = Results(initial, final, during, history, other)
        for key, (value, n) in values_of(spec.metric, results).items():
            record = Measurement(run_id=spec.run_id, key=key, value=value, n=n, sha256=whole["sha256"])
            self.append(EventType.MEASUREMENT_RECORDED, **record.model_dump(mode="json"))
        return collected

    def _course(self, spec: RunSpec, falls: bool, top: float | None) -> Any:
        start, top = 0.2, (top or self.ends.get(spec.arm, 0.9)) + self.rng.gauss(0, self.sd / 2)
        slow = self.slowness.get(spec.arm, 0.3) * STEPS * math.exp(self.rng.gauss(0, 0.12))

        def share(step: float) -> float:
            risen = start + (top - start) * (1 - math.exp(-step / slow))
            fallen = max(0.0, (step - 0.6 * STEPS) / (0.3 * STEPS)) * 0.9 if falls else 0.0
            return min(1.0, max(0.0, risen * (1 - min(0.9, fallen))))

        return share

    def _row(self, step: int, share: float) -> dict[str, Any]:
        seen = min(1.0, max(0.0, share + self.rng.gauss(0, 0.03)))
        numbers = {"critic/success/mean": seen, "critic/rewards/mean": seen, "batch/episodes": float(BATCH)}
        return {"step": step, "metrics": {**numbers, "timing_s/step": 2.0 + self.rng.random() / 10}}

    def _part(self, version: int, share: float, of: int) -> dict[str, Any]:
        solved = round(min(1.0, max(0.0, share + self.rng.gauss(0, math.sqrt(share * (1 - share) / of)))) * of)
        episodes = [
            {"task_id": f"t-{n}", "sample": 0, "success": n < solved, "reward": float(n < solved)} for n in range(of)
        ]
        return {"environment": "guess", "split": "hidden", "policy_version": version, "episodes": episodes}
