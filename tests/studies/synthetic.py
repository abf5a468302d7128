"""Synthetic studies for tests: the events and files a real study would leave, with made-up numbers.

Nothing here was measured. Values come from a seeded generator, so that every test sees the same study.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from studies import Event, EventLog, HeadMoved, StudyState, fold, judge_hypothesis
from studies.log.event import EventType
from studies.log.event_log import LOCK_FILE, write_lock
from studies.proof import Discrepancy, verify
from studies.records.alpha import AlphaAllocation, AlphaLedgers
from studies.records.base import canonical
from studies.records.design import BUILT_IN, REWARD, Arm, Budget, Design, Hypothesis, Metric, Price, RunSpec
from studies.records.procedure import Prediction
from studies.records.runs import Measurement
from studies.records.verdict import Verdict
from studies.report import Report, build_report
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.rules import judge

STUDY = "s-synthetic"
TOPIC = "Does a larger group size make GRPO learn the guessing game faster?"
EPISODES = 512


def append(log: EventLog, study: str, type: EventType, payload: Mapping[str, Any], *, actor: str = "system") -> Event:
    """Append an event after the last one there is; another writer's is waited for."""
    while True:
        event = log.compose(study, type, payload, after=log.last(study), actor=actor)
        try:
            log.append(event)
        except HeadMoved:
            continue
        return event


def event_hash(event: Event) -> str:
    """Return what `event.hash` must be: sha256 of canonical([study, seq, ts, actor, type, payload, prev_hash])."""
    values = [event.study, event.seq, event.ts, event.actor, event.type.value, event.payload, event.prev_hash]
    return hashlib.sha256(canonical(values).encode()).hexdigest()


class Ticking:
    def __init__(self, step_s: float = 1.5) -> None:
        self.now = datetime(2031, 3, 4, 9, 30, tzinfo=UTC)
        self.step = timedelta(seconds=step_s)

    def __call__(self) -> datetime:
        self.now += self.step
        return self.now


def staked(design: Design) -> AlphaAllocation:
    return AlphaLedgers.begin(1, design.alpha).allocate(design)


def hypothesis(identity: str = "h1", treatment: Any = 16, **changes: Any) -> Hypothesis:
    values: dict[str, Any] = {
        "id": identity, "variable": "group_size", "control": 4, "treatment": treatment, "direction": "increase",
        "statement": f"A group size of {treatment} solves more hidden tasks than a group size of 4.",
        "mechanism": "A larger group gives a better baseline, so that advantages are less noisy.",
        "prediction": Prediction(low=0.02, high=0.2, level=0.8, probability=0.7),
    }  # fmt: skip
    return Hypothesis(**(values | changes))


def base_job(**changes: Any) -> dict[str, Any]:
    job = {
        "environment": "guess", "algorithm": "grpo", "backend": "local", "steps": 40, "episodes_per_step": 128,
        "group_size": 4, "learning_rate": 1e-3, "temperature": 1.0, "epochs": 1, "minibatches": 1,
        "clip_ratio": 0.2, "kl_coef": 0.0, "entropy_coef": 0.0, "normalize_advantage": True,
        "model": {"kind": "tiny", "seed": 0, "hidden_size": 64, "layers": 2, "warm_start_steps": 400},
        "max_tokens": 16, "max_context": 256, "max_concurrency": 64,
    }  # fmt: skip
    return job | changes


def design(hypotheses: tuple[Hypothesis, ...] | None = None, seeds: int = 5, **changes: Any) -> Design:
    claims = hypotheses or (hypothesis(),)
    arms: tuple[Arm, ...] = changes.pop("arms", ())
    if not arms:
        values = dict.fromkeys([claims[0].control, *(claim.treatment for claim in claims)])
        arms = tuple(Arm(name=f"group_size={value}", overrides={"group_size": value}) for value in values)
    given: dict[str, Any] = {
        "question": TOPIC, "environment": "guess", "base_job": base_job(),
        "arms": arms, "control_arm": arms[0].name, "hypotheses": claims,
        "seeds": tuple(random.Random(11).sample(range(1, 10**6), seeds)),
        "metric": Metric(meaning=f"share of {EPISODES} hidden tasks solved after the last step", episodes=EPISODES),
        "exclusions": ("NAN", "CLIENT_CRASH"),
        "budget": Budget(wall_clock_s=900, max_runs=None),
        "price": Price(
            runs=len(arms) * seeds, parallel=2, seconds_per_run=75.0, total_s=len(arms) * seeds * 37.5,
            basis="40 steps of 128 episodes at 80 episodes a second",
        ),
    }  # fmt: skip
    return Design(**(given | changes))


def judged(
    claim: Hypothesis, control: Mapping[str, float], treatment: Mapping[str, float], *, alpha: float = 0.05
) -> Verdict:
    chosen = design((claim,), alpha=alpha)
    arms = {arm.name: runs_of(values) for arm, values in zip(chosen.arms, (control, treatment), strict=True)}
    return judge(JudgeInput(staked(chosen), claim.id, arms, look=1))


def runs_of(values: Mapping[str, float] | Sequence[float], prefix: str = "", seeds: int = 0, **more: Any) -> ArmData:
    """Return an arm's runs with these values, by their names or numbered under a prefix, with the seeds 0, 1, ..."""
    runs = dict(values) if isinstance(values, Mapping) else {f"{prefix}-{n}": value for n, value in enumerate(values)}
    extra = [*more.get("excluded", {}), *more.get("worst", {})]
    return ArmData(runs, {run: n for n, run in enumerate(runs)} | {run: 100 + n for n, run in enumerate(extra)}, **more)


SOURCE = "def reward(task, messages, outcome):\n    return outcome['reward']\n"


def coded_design(source: str = SOURCE, hypotheses: tuple[Hypothesis, ...] | None = None, **changes: Any) -> Design:
    claims = hypotheses or (hypothesis("h1", variable=REWARD, control=BUILT_IN, treatment="dense"),)
    arms = tuple(Arm(name=f"reward={name}", overrides={REWARD: name}) for name in (BUILT_IN, "dense"))
    given: dict[str, Any] = {"arms": arms, "control_arm": arms[0].name, "code": {"dense": source}}
    return design(claims, **(given | changes))


@dataclass
class Synthetic:
    """Writes a study's events and files step by step; `state()` folds what was written so far."""

    folder: Path
    study: str = STUDY
    topic: str = TOPIC
    means: dict[str, float] = field(default_factory=lambda: {"group_size=4": 0.52, "group_size=16": 0.66})
    sd: float = 0.03
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = EventLog(f"sqlite:///{self.folder / 'events.db'}", clock=Ticking())
        sa.event.listen(self.log._engine, "checkout", lambda c, *_: c.execute("PRAGMA synchronous=OFF"))  # no disk
        self.design = design()

    def append(self, type: EventType, **payload: Any) -> Event:
        return append(self.log, self.study, type, payload)

    def state(self) -> StudyState:
        return fold(self.log.read(self.study))

    def create(self, planner: dict[str, Any] | None = None, **changes: Any) -> Event:
        given: dict[str, Any] = {
            "topic": self.topic,
            "planner": planner or {"name": "rules", "model": None},
            "settings": {"budget_s": 900.0, "max_runs": None, "parallel": 2, "approve": "none"},
            "command": ["ajet", "research", self.topic, "--budget", "15m"],
            "versions": {"ajet": "0.1.0", "python": "3.11.9", "torch": "2.6.0", "wandb": "0.20.0"},
            "machine": {"cpus": 2, "memory_gib": 7.6, "platform": "Linux-x86_64"},
        }
        return self.append(EventType.STUDY_CREATED, **(given | changes))

    def lock(self, chosen: Design | None = None) -> Design:
        self.design = chosen or self.design
        for claim in self.design.hypotheses:
            self.append(EventType.HYPOTHESIS_PROPOSED, **claim.model_dump(mode="json"))
        self.append(
            EventType.PLANNER_ACTED, action="design", tries=1, tokens={"prompt": 812, "completion": 304},
            rejected=[], note="",
        )  # fmt: skip
        lock = write_lock(self.folder, self.design)
        self.append(EventType.DESIGN_LOCKED, design=self.design.model_dump(mode="json"), hash=lock, file=LOCK_FILE)
        self.append(EventType.MODEL_PREPARED, sha256="ab" * 32, seconds=6.4)
        return self.design

    def spec(self, arm: str, seed: int) -> RunSpec:
        chosen = next(a for a in self.design.arms if a.name == arm)
        return RunSpec(
            study=self.study, design_hash=self.design.hash(), arm=arm, seed=seed, environment=self.design.environment,
            job={**self.design.base_job, **chosen.job_overrides, "seed": seed}, metric=self.design.metric,
            code=self.design.code.get(chosen.slots.get("reward", "")),
        )  # fmt: skip

    def plan(self, other: Design | None = None) -> list[RunSpec]:
        """Plan every run; with `other`, under a design that was not the one locked."""
        self.design = other or self.design
        specs = [self.spec(arm.name, seed) for seed in self.design.seeds for arm in self.design.arms]
        return [self.put(spec) for spec in specs]

    def put(self, spec: RunSpec) -> RunSpec:
        self.append(EventType.RUN_PLANNED, run_id=spec.run_id, spec=spec.model_dump(mode="json"))
        return spec

    def launch(self, spec: RunSpec, attempt: int = 1, **more: Any) -> Event:
        name = f"{spec.run_id}-{attempt}"
        return self.append(EventType.ATTEMPT_LAUNCHED, run_id=spec.run_id, attempt=attempt, name=name, **more)

    def end(
        self, spec: RunSpec, attempt: int = 1, status: str = "finished", code: str = "", reason: str = "", **more: Any
    ) -> Event:
        return self.append(
            EventType.ATTEMPT_ENDED, run_id=spec.run_id, attempt=attempt, status=status, code=code, reason=reason,
            seconds=round(70 + 9 * self.rng.random(), 1), **more,
        )  # fmt: skip

    def collect(self, spec: RunSpec, attempt: int = 1, steps: int | None = None) -> Event:
        steps = steps or int(spec.job["steps"])
        start = 0.31 + self.rng.gauss(0, 0.012)
        end = min(1.0, max(0.0, self.means.get(spec.arm, 0.55) + self.rng.gauss(0, self.sd)))
        snapshot = self._write("snapshot", self._snapshot(spec, attempt, start, end, steps), spec)
        evaluation = self._write("evaluation", self._evaluation(spec, attempt, start, end), spec)
        collected = self.append(
            EventType.RUN_COLLECTED, run_id=spec.run_id, attempt=attempt, seconds=1.2,
            snapshot={**snapshot, "steps": steps}, evaluation={**evaluation, "episodes": EPISODES},
        )  # fmt: skip
        for key, share in (("hidden/success", end), ("hidden/success/initial", start)):
            value = round(share * EPISODES) / EPISODES
            record = Measurement(run_id=spec.run_id, key=key, value=value, n=EPISODES, sha256=evaluation["sha256"])
            self.append(EventType.MEASUREMENT_RECORDED, **record.model_dump(mode="json"))
        return collected

    def run(self, spec: RunSpec, attempt: int = 1) -> Event:
        self.launch(spec, attempt)
        self.end(spec, attempt)
        return self.collect(spec, attempt)

    def run_all(self, specs: Iterable[RunSpec]) -> StudyState:
        for spec in specs:
            self.run(spec)
        return self.state()

    def judge(self) -> None:
        self.say(*(claim.id for claim in self.design.hypotheses))

    def say(self, *names: str, look: int = 1, then: str = "", **how: Any) -> list[Verdict]:
        """Write the verdicts on these claims at a look, and what is decided after each where something is."""
        found = []
        for name in names:
            found.append(judge_hypothesis(self.state(), name, look=look, **how))
            self.append(EventType.VERDICT_COMPUTED, **json.loads(found[-1].model_dump_json()))
            if then:
                self.append(EventType.DECISION_TAKEN, rule="r", action=then, reason="x", hypothesis=name, look=look)
        return found

    def veto(self, name: str = "h1", reason: str = "given up") -> Event:
        return self.append(EventType.HYPOTHESIS_VETOED, hypothesis=name, reason=reason)

    def amend(self, kind: str = "accept", reason: str = "Known and harmless.", **values: Any) -> Event:
        return self.append(EventType.DESIGN_AMENDED, amendment={"kind": kind, "reason": reason, **values})

    def report(self) -> Report:
        built = build_report(self.state(), self.folder)
        self.append(EventType.REPORT_BUILT, **built.payload())
        return built

    def drifts(self) -> tuple[Discrepancy, ...]:
        return verify(self.study, self.log.read_unverified(self.study), self.folder).drifts

    def give_up(self, spec: RunSpec, code: str, reason: str = "made up for a test") -> Event:
        return self.append(EventType.RUN_INVALIDATED, run_id=spec.run_id, code=code, reason=reason)

    def conclude(self) -> StudyState:
        self.append(
            EventType.DECISION_TAKEN, rule="all verdicts are in", action="conclude", reason="every hypothesis is judged"
        )
        self.append(EventType.STUDY_CONCLUDED, reason="every hypothesis is judged")
        return self.state()

    def begin(self, chosen: Design | None = None, **created: Any) -> list[RunSpec]:
        self.create(**created)
        self.lock(chosen)
        return self.plan()

    def whole(self, chosen: Design | None = None, **created: Any) -> StudyState:
        self.run_all(self.begin(chosen, **created))
        self.judge()
        return self.conclude()

    def _write(self, kind: str, value: Any, spec: RunSpec) -> dict[str, str]:
        data = canonical(value).encode()
        path = Path("runs") / spec.run_id / f"{kind}.json"
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(data)
        return {"path": path.as_posix(), "sha256": hashlib.sha256(data).hexdigest()}

    def _snapshot(self, spec: RunSpec, attempt: int, start: float, end: float, steps: int) -> dict[str, Any]:
        def success(step: int) -> float:
            share = start + (end - start) * (1 - math.exp(-3.2 * step / steps)) / (1 - math.exp(-3.2))
            return min(1.0, max(0.0, share + self.rng.gauss(0, 0.035)))

        history = [
            {"step": step, "metrics": {"critic/success/mean": success(step), "critic/rewards/mean": success(step)}}
            for step in range(1, steps + 1)
        ]
        run = f"{spec.run_id}-{attempt}"
        wandb = {"project": "ajet", "group": self.study, "id": run, "config": {"seed": spec.seed}}
        return {
            "run_id": spec.run_id, "attempt": attempt, "design_hash": spec.design_hash, "wandb": wandb,
            "history": history,
        }  # fmt: skip

    def _evaluation(self, spec: RunSpec, attempt: int, start: float, end: float) -> dict[str, Any]:
        def part(share: float, version: int) -> dict[str, Any]:
            solved = round(share * EPISODES)
            episodes = [
                {"task_id": f"t-{n}", "sample": 0, "success": n < solved, "reward": float(n < solved)}
                for n in range(EPISODES)
            ]
            return {"environment": "guess", "split": "hidden", "policy_version": version, "episodes": episodes}

        return {"run_id": spec.run_id, "attempt": attempt, "initial": part(start, 0), "final": part(end, 40)}


def studies(quick: int, full: int) -> pytest.MarkDecorator:
    """Run a test of a statistical level with a few simulated studies, and with many where all tests run."""
    return pytest.mark.parametrize("studies", [quick, pytest.param(full, marks=pytest.mark.full)])
