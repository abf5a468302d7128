"""Fakes behind the study loop's seams: a planner with a script, a sandbox whose attempts end as told.

Attempts leave the real files, except for the W&B log, whose place `tracked.json` takes (`read_fake_tracking`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from research.design.pricing import Pricing
from research.planners.context import Check, PlannerContext, PlannerTurn
from research.proposals.actions import Conclude, Propose, ProposeDesign, ProposedHypothesis
from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.wandb_log import TrackedRun
from sandboxes import Exit, Handle, SandboxError, SandboxSpec
from studies import EventLog, EventType
from studies.records.design import RunSpec
from studies.records.runs import ENGINE_GONE, SERVER_AWAY, is_untrained_run
from swarm.environments.play import rounds
from swarm.environments.registry import environments
from swarm.job import Job
from tests.research.factories import make_claim
from tests.studies.synthetic import append

BASE = Job(steps=3, backend="fake")
H100 = "NVIDIA H100 80GB HBM3"
FakeTool = Callable[[str, str], None]
"""Puts a tool on PATH: its name, and the shell that it runs."""
PRICING = Pricing(lambda job: 10.0, parallel=2, overhead_s=0.0, basis="made up")
TREATMENT_RATE = 0.75
CONTROL_RATE = 0.25


class ManualClock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


LARGER_GROUP = make_claim(control=8, statement="A larger group helps.", predicted_high=0.6, probability=0.7)


ANSWERED = "The question is answered."


class ScriptedPlanner:
    name = "scripted"
    model: str | None = None

    def __init__(self, seeds: int = 3, environment: str = "guess", *claims: ProposedHypothesis) -> None:
        self.asked: list[str] = []
        self.shown: list[PlannerContext] = []
        self._seeds = seeds
        self._environment = environment
        self._claims = claims or (LARGER_GROUP,)

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        self.asked.append(digest.stage)
        self.shown.append(digest)
        match digest.stage:
            case "propose":
                return PlannerTurn(Propose(hypotheses=self._claims))
            case "design":
                return PlannerTurn(ProposeDesign(environment=self._environment, seeds_per_arm=self._seeds))
            case "conclude":
                return PlannerTurn(Conclude(reason=ANSWERED))


def create_study(
    log: EventLog,
    study: str,
    *,
    budget_s: float = 600.0,
    parallel: int = 2,
    max_runs: int | None = None,
    topic: str = "Does a larger group help?",
    planner: str = "scripted",
    model: str | None = None,
    approve: str = "none",
    **settings: Any,
) -> None:
    payload = {
        "topic": topic,
        "planner": {"name": planner, "model": model},
        "settings": {
            "budget_s": budget_s, "max_runs": max_runs, "parallel": parallel, "approve": approve,
            **{name: value for name, value in settings.items() if value is not None},
        },
        "command": ["ajet", "research", "..."],
        "versions": {"python": "3"},
        "machine": {"cpus": 2, "memory_gib": 8, "platform": "test"},
        "worked_s": 0.0,
    }  # fmt: skip
    append(log, study, EventType.STUDY_CREATED, payload, actor="user")


def rate(spec: RunSpec) -> float:
    """Return the hidden success a scripted run reaches: by its arm, with a little of its seed."""
    base = TREATMENT_RATE if spec.job["group_size"] == 16 else CONTROL_RATE
    return base + (spec.seed % 16) / 512


def evaluation(
    spec: RunSpec, policy_version: int, success: float, count: int | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Return an evaluator's answer in which the first `success` of all episodes are solved."""
    count = count or spec.metric.episodes
    tasks = environments()[spec.environment].tasks(spec.metric.split)
    chosen = rounds(tasks, count, spec.task_seed if seed is None else seed)
    plays = [(task.id, sample) for sample, part in enumerate(chosen) for task in part]
    episodes = [
        {"task_id": task, "sample": sample, "success": solved, "reward": float(solved)}
        for (task, sample), solved in zip(plays, (i < round(success * count) for i in range(count)), strict=True)
    ]
    return {
        "environment": spec.environment, "split": spec.metric.split, "policy_version": policy_version,
        "episodes": episodes,
    }  # fmt: skip


def during(spec: RunSpec, before: float, success: float) -> dict[str, Any]:
    rise, count = (success - before) / spec.job["steps"], spec.metric.schedule.episodes
    made = [
        evaluation(spec, step, before + rise * step, count, spec.task_seed + step)
        for step in spec.job["evaluate_after"]
    ]
    return {"evaluations": made}


def write_results(
    folder: AttemptFolder, order: AttemptSpec, success: float, seconds: float = 5.0, before: float = 0.2
) -> None:
    """Leave behind what a finished attempt leaves behind; it says that it took so many seconds."""
    spec = order.spec
    folder.path.mkdir(parents=True, exist_ok=True)
    if not order.initial_sha256:  # else it was copied here
        folder.evaluation("initial").write_text(json.dumps(evaluation(spec, 0, before)))
    if not is_untrained_run(spec):
        folder.evaluation("final").write_text(json.dumps(evaluation(spec, spec.job["steps"], success)))
    counted = {"batch/episodes": spec.job["episodes_per_step"], "timing_s/step": 1.0} if spec.metric.schedule else {}
    history = {
        step: {"critic/rewards/mean": 0.1 * step, "critic/success/mean": 0.1 * step, **counted}
        for step in range(1, spec.job["steps"] + 1)
    }
    if spec.job.get("evaluate_after"):
        folder.evaluation("during").write_text(json.dumps(during(spec, before, success)))
    tracked = {"id": order.tracking_id, "config": order.names(), "history": history}
    (folder.path / "tracked.json").write_text(json.dumps(tracked))
    outcome = {"status": "finished", "code": "ok", "reason": "", "seconds": seconds, "stages": {"train": seconds}}
    folder.outcome.write_text(json.dumps(outcome))


def read_fake_tracking(directory: Path, run_id: str) -> TrackedRun:
    value = json.loads((directory / "tracked.json").read_text())
    history = {int(step): metrics for step, metrics in value["history"].items()}
    return TrackedRun("ajet", value["config"]["study"], value["id"], value["config"], history, ended=True)


ENDS = {"died": Exit("error", -9), "lost": Exit("lost", None), "timeout": Exit("timeout", -15)}
Script = Callable[[AttemptSpec], str]
"""How an attempt ends: `ok`, `failed`, `crashed` (after one step), `crashed late`, `engine gone`, `server away`,
`died`, `lost`, `timeout`, `foreign`, `garbled`, `endless`, or `never`."""


@dataclass
class FakeSandbox:
    """Attempts that take `polls` looks and then end as `script` says; counts how often each was started.

    With a clock all looks at one moment are one, so that whoever looks again after a kill sees what was to be seen.
    """

    script: Script = lambda order: "ok"
    polls: int = 1
    clock: Callable[[], datetime] | None = None
    now: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    """The world's clock, by which attempts ran for others."""
    rate: Callable[[RunSpec], float] = rate
    begins: Callable[[RunSpec], float] = lambda spec: 0.2
    seconds: float = 5.0
    """What a finished attempt says it took."""
    words: str = "x"
    """Why one crashed."""
    starts: Counter[str] = field(default_factory=Counter)
    handles: dict[str, FakeHandle] = field(default_factory=dict)
    others: list[FakeOther] = field(default_factory=list)
    most_at_once: int = 0

    def run(self, spec: SandboxSpec) -> Handle:
        assert spec.trusted
        if spec.name not in self.handles:
            self.starts[spec.name] += 1
            self.handles[spec.name] = FakeHandle(spec.name, AttemptFolder(spec.directory), self)
            self.most_at_once = max(self.most_at_once, sum(h.ended is None for h in self.handles.values()))
        return self.handles[spec.name]

    def occupy(self, study: str, launched: datetime) -> FakeOther:
        other = FakeOther(study, launched)
        self.others.append(other)
        return other

    def adopt(self, name: str) -> Handle | None:
        return self.handles.get(name) or next((other for other in self.others if other.name == name), None)

    def list(self) -> list[Handle]:
        return [*self.handles.values(), *self.others]


@dataclass
class FakeContainers:
    gone: bool = False
    held: list[Mapping[str, str]] = field(default_factory=list)
    reaped: list[Mapping[str, str]] = field(default_factory=list)

    def reap(self, labels: Mapping[str, str]) -> list[str]:
        if self.gone:
            raise SandboxError("expected a Docker Engine; found none that answers")
        self.reaped.append(labels)
        found = [held for held in self.held if labels.items() <= held.items()]
        self.held = [held for held in self.held if held not in found]
        return [str(held) for held in found]

    def adopt(self, name: str) -> None:
        """None of them was ever launched."""


@dataclass
class FakeOther:
    study: str
    launched: datetime
    ended: datetime | None = None

    @property
    def name(self) -> str:
        return f"ajet-{self.study}-{self.launched.timestamp()}"

    @property
    def labels(self) -> Mapping[str, str]:
        return {"study": self.study, "run_id": "r", "attempt": "1"}

    def run_times(self) -> tuple[float, float | None]:
        return self.launched.timestamp(), None if self.ended is None else self.ended.timestamp()

    def poll(self) -> Exit | None:
        return None if self.ended is None else Exit("finished", 0)

    def stop(self, grace_s: float = 5.0) -> Exit:
        raise AssertionError("no study may end another one's training")


class FakeHandle:
    def __init__(self, name: str, folder: AttemptFolder, sandbox: FakeSandbox) -> None:
        self.name = name
        self.ended: Exit | None = None
        self.stops = 0
        self._folder = folder
        self._order = AttemptSpec.model_validate_json(folder.spec.read_text())
        self._sandbox = replace(sandbox)
        self._left = sandbox.polls
        self.labels: Mapping[str, str] = self._order.labels()
        self._began = sandbox.now()
        self._over: datetime | None = None
        self._seen = sandbox.clock() if sandbox.clock else None

    def run_times(self) -> tuple[float, float | None]:
        if self.ended is not None:
            self._over = self._over or self._sandbox.now()
        return self._began.timestamp(), None if self._over is None else self._over.timestamp()

    def poll(self) -> Exit | None:
        clock = self._sandbox.clock
        if clock and self._seen == clock():
            return self.ended
        self._seen = clock() if clock else None
        if self.ended is None:
            if self._left > 0:
                self._left -= 1
            else:
                self.ended = self._end(self._sandbox.script(self._order))
        return self.ended

    def _end(self, how: str) -> Exit | None:
        match how:
            case "ok":
                spec = self._order.spec
                sandbox = self._sandbox
                write_results(self._folder, self._order, sandbox.rate(spec), sandbox.seconds, sandbox.begins(spec))
                return Exit("finished", 0)
            case "foreign":
                write_results(self._folder, self._order.model_copy(update={"attempt": 99}), 1.0)
                return Exit("finished", 0)
            case "failed":
                return self._failed("server_died")
            case "crashed" | "crashed late":
                return self._failed("client_died", step=1 if how == "crashed" else 3, reason=self._sandbox.words)
            case "engine gone" | "server away":
                return self._failed(ENGINE_GONE if how == "engine gone" else SERVER_AWAY)
            case "garbled":
                self._folder.outcome.write_text('{"status": "fini')
                return Exit("finished", 0)
            case "endless":
                write_results(self._folder, self._order, self._sandbox.rate(self._order.spec))
                said = json.loads(self._folder.outcome.read_text())
                self._folder.outcome.write_text(json.dumps({**said, "seconds": 1e300}))
                return Exit("finished", 0)
            case _:
                return ENDS.get(how)

    def _failed(self, code: str, **more: int | str) -> Exit:
        outcome = {"status": "failed", "code": code, "reason": "x", "seconds": 1.0, "stages": {}, **more}
        self._folder.outcome.write_text(json.dumps(outcome))
        return Exit("error", 1)

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        return self.poll()

    def logs(self, *, tail_bytes: int = 65_536) -> str:
        return "the last words"

    def stop(self, grace_s: float = 5.0) -> Exit:
        self.stops += 1
        self.ended = self.ended or Exit("stopped", -15)
        return self.ended


def gpus(count: int) -> str:
    """Return what a `nvidia-smi` runs that names so many GPUs."""
    return "\n".join(f"echo '{index}, GPU-{index}aaaaaaa-bbbb, {H100}, 81559'" for index in range(count))
