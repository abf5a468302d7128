"""A sandbox whose attempts are simulated, the files that they leave, and what goes wrong around them.

What goes wrong around simulated training, by a plan: which attempt ends how is a function of its names alone.

Rates are shares of attempts. A plan does not know what the loop makes of a fault; that is what it is for.

What a simulated attempt leaves behind, in the real formats, before it is written: so that a trap may alter it.

The evaluations are files of the harness's evaluator, the outcome is an attempt's own; only the tracker's log is JSON
in place of W&B's format (`SimTracker` reads it). Which of the tasks were solved is spread evenly and means nothing;
their number is the world's.

A sandbox whose attempts are simulated: they take simulated time, end as the world and the plan of faults say.

It stands behind the seam `sandboxes.Sandbox`, and its state is on disk, so that what was launched outlives a controller
that was killed: each launch and each end is a file, and every start is a line of `starts.log`, which is how a duplicate
would be seen. Nothing runs: an attempt whose time is over is written when somebody looks.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.wandb_log import TrackedRun
from sandboxes import Exit, Handle, SandboxError, SandboxSpec
from simlab.mechanisms import Mechanical
from simlab.sim_clock import BEGIN, SimClock
from simlab.worlds import Configuration, Planted, Played, World, risen
from studies.checks.conditions import CollectError
from studies.log.event_log import Clock
from studies.records.runs import is_untrained_run
from swarm.environments.play import rounds
from swarm.environments.registry import environments

Fault = Literal["none", "crash", "hang", "out_of_memory", "lost", "garbled", "lag", "duplicate"]


@dataclass(frozen=True, slots=True)
class Rates:
    """How often attempts end badly."""

    crash: float = 0.0
    """The process dies and says nothing."""
    hang: float = 0.0
    """It goes on until its time limit."""
    out_of_memory: float = 0.0
    lost: float = 0.0
    """It vanishes with its shim."""
    garbled: float = 0.0
    """It dies while it writes its outcome."""
    lag: float = 0.0
    """The tracker shows its log only `Faults.lag_s` later."""
    duplicate: float = 0.0
    """It ends twice: a second copy of it writes its results again, with other numbers, after they were collected."""


@dataclass(frozen=True, slots=True)
class Faults:
    """A plan of faults."""

    rates: Rates = Rates()
    seed: int = 0
    lag_s: float = 120.0
    refusing: tuple[tuple[float, float], ...] = ()
    """Stretches (seconds since the flight began) in which the sandbox starts nothing."""
    skew_s: float = 0.0
    """By how much two clocks of the installation differ."""

    def of(self, order: AttemptSpec) -> Fault:
        """Return what happens to an attempt."""
        label = repr((self.seed, order.spec.arm, order.spec.seed, order.spec.phase, order.attempt)).encode()
        left = int.from_bytes(hashlib.blake2b(label, digest_size=7).digest(), "big") / 2**56
        for entry in fields(self.rates):
            left -= getattr(self.rates, entry.name)
            if left < 0:
                return entry.name  # type: ignore[return-value]
        return "none"


NO_FAULTS = Faults()


TRACKED = "tracked.json"
SIMULATED = "simulated"
"""What marks files, labels and machines of this simulator."""
SEEN: Mapping[str, Any] = {
    "initial_policy": "0" * 64, "template": "1" * 64, "decoding": "temperature 1.0, top_p 1.0", "overlap": 0,
    "hardware": SIMULATED, "stillness": {"before": "0" * 64, "after": "0" * 64, "probs_tolerance": None},
}  # fmt: skip
"""Conditions that an attempt sees, the same in all of them unless a confound is planted."""
_REACHED, _HELD, _FALLEN = 0.5, 0.6, 0.8
"""Shares of a training by which one that collapses has reached its peak, begins to fall, and has fallen."""


@dataclass(frozen=True, slots=True)
class SimulatedFiles:
    """The files of an attempt that ended by itself; None is a file that is not there."""

    initial: dict[str, Any] | None
    final: dict[str, Any] | None
    tracked: dict[str, Any] | None
    outcome: dict[str, Any] | None
    during: dict[str, Any] | None = None
    log: str = "simulated attempt: training is over\n"
    code: int = 0
    """Exit code."""


Alter = Callable[[AttemptSpec, Played, SimulatedFiles], SimulatedFiles]
"""What a trap or a confound does to an attempt's remains."""


def unaltered(order: AttemptSpec, played: Played, remains: SimulatedFiles) -> SimulatedFiles:
    """Return the remains as they are."""
    return remains


def configuration(order: AttemptSpec) -> Configuration:
    """Return an order's job as a world reads it; code counts as the field of its slot, with its source as the value."""
    job = {name: value for name, value in order.spec.job.items() if isinstance(value, bool | int | float | str)}
    return {**job, **order.spec.sources}


def remains(world: World, order: AttemptSpec, seconds: float) -> tuple[Played, SimulatedFiles]:
    """Return how a run went and what it leaves behind."""
    spec, steps = order.spec, int(order.spec.job["steps"])
    if isinstance(world, Planted):  # what is recorded was evaluated on as many as it was
        world = replace(world, episodes=spec.metric.episodes)
    played = world.run(configuration(order), spec.seed, steps)
    final = played.search if spec.metric.split == "search" else played.hidden
    return played, SimulatedFiles(
        initial=None if order.initial_sha256 else evaluation(order, 0, played.initial, world=world),
        final=None if is_untrained_run(spec) else evaluation(order, steps, final, world=world),
        during=_during(order, replace(played, hidden=final), steps, world) if order.evaluate_after else None,
        tracked=_tracked(order, played, steps, world),
        outcome={
            "status": "finished",
            "code": "ok",
            "reason": "",
            "seconds": seconds,
            "stages": {"train": seconds},
            "seen": SEEN,
        },
    )


def _during(order: AttemptSpec, played: Played, steps: int, world: World) -> dict[str, Any]:
    schedule = order.spec.metric.schedule
    assert schedule is not None
    count, seed = schedule.episodes, order.spec.task_seed
    made = [
        evaluation(order, version, _success(played, version / steps), (count, seed + version), world=world)
        for version in order.evaluate_after
    ]
    return {"evaluations": made}


def evaluation(
    order: AttemptSpec, version: int, share: float, drawn: tuple[int, int] | None = None, world: World | None = None
) -> dict[str, Any]:
    """Return an evaluator's answer in which a share of all episodes is solved; `drawn`: how many, by which seed.

    A world with a mechanism says which tasks are solved, and what plays show besides.
    """
    spec = order.spec
    count, seed = drawn or (spec.metric.episodes, spec.task_seed)
    plays, episodes = _plays(spec.environment, spec.metric.split, count, seed), []
    able: Sequence[int] = range(count)
    told: Callable[..., dict[str, Any]] | None = None
    if isinstance(world, Mechanical):
        able = world.solvable([task for task, _ in plays])
        told = partial(world.play, configuration(order), spec.seed, version)
    solved = set(Random(f"{version} {spec.seed}").sample(able, min(len(able), round(share * count))))
    for number, (task, sample) in enumerate(plays):
        success = number in solved
        shown = {"reward": float(success)} if told is None else told(number, success=success)
        episodes.append({"task_id": task, "sample": sample, "success": success, **shown})
    return {
        "environment": spec.environment, "split": spec.metric.split, "policy_version": version, "episodes": episodes,
    }  # fmt: skip


def write(folder: AttemptFolder, left: SimulatedFiles) -> None:
    """Write an attempt's remains into its folder; an outcome that names no hashes of its files gets the right ones."""
    folder.path.mkdir(parents=True, exist_ok=True)
    files = {
        folder.evaluation("initial"): left.initial,
        folder.evaluation("final"): left.final,
        folder.evaluation("during"): left.during,
        folder.path / TRACKED: left.tracked,
    }
    texts = {path: text_of(value) for path, value in files.items() if value is not None}
    for path, text in texts.items():
        path.write_text(text)
    if left.outcome is not None:
        hashes = {path.name: sha256(text) for path, text in texts.items()}
        folder.outcome.write_text(json.dumps({"files": hashes, **left.outcome}))


def text_of(value: Mapping[str, Any]) -> str:
    """Return a file's text."""
    return json.dumps(value)


def sha256(text: str) -> str:
    """Return the hash of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


class SimTracker:
    """Reads the simulated tracker, which may show a log only some time after its run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, directory: Path, run_id: str) -> TrackedRun:
        """Return what a tracked run logged; CollectError where there is none."""
        try:
            value = json.loads((directory / TRACKED).read_text())
        except (OSError, ValueError) as error:
            raise CollectError(
                "tracking_unreadable", f"expected a simulated log of {run_id} in {directory}; found none"
            ) from error
        visible = value.get("visible_at")
        if visible and self._clock() < datetime.fromisoformat(visible):
            raise CollectError(
                "tracking_unreadable", f"the simulated tracker does not show the log of {run_id} yet", late=True
            )
        history = {int(step): metrics for step, metrics in value["history"].items()}
        return TrackedRun(SIMULATED, value["group"], value["id"], value["config"], history, ended=True)


def _tracked(order: AttemptSpec, played: Played, steps: int, world: World) -> dict[str, Any]:
    history = {str(step): _metrics(order, played, step, steps) for step in range(1, steps + 1)}
    if isinstance(world, Mechanical):
        for step, metrics in history.items():
            metrics |= world.logged(configuration(order), order.spec.seed, int(step), metrics)
    return {
        "id": order.tracking_id, "group": order.study, "config": {**order.names(), SIMULATED: True}, "history": history,
        "summary": {},
    }  # fmt: skip


def _metrics(order: AttemptSpec, played: Played, step: int, steps: int) -> dict[str, float]:
    """Return a training step's metrics as a server logs them; a collapse shows from the middle on."""
    share = step / steps
    broken = played.collapsed and share > _HELD
    episodes = float(order.spec.job["episodes_per_step"])
    success = _of_batch(_success(played, share), episodes, f"{order.tracking_id} {step}")
    return {
        "critic/rewards/mean": success,
        "critic/success/mean": success,
        "actor/ppo_kl": 5.0 if broken else 0.01,
        "actor/grad_norm": 40.0 if broken else 1.0,
        "actor/entropy": 0.01 if broken else 1.0 - 0.3 * share,
        "response_length/mean": 6.0,
        "batch/constant_groups": 0.0,
        "batch/groups": episodes / float(order.spec.job["group_size"]),
        "batch/episodes": episodes,
        "tokens/generated": 28.0 * episodes,
        "tokens/trained": 28.0 * episodes,
        "lease/begun": episodes,
        "lease/aborted": 0.0,
        "timing_s/step": 2.0,
    }


def _success(played: Played, share: float) -> float:
    """Return the success of the policy after a share of training: it rises; one that collapses falls, and stays down.

    A run that collapses has risen to its peak by the middle of its training, and is at its end by the last fifth.
    """
    if played.peak is None:
        return played.initial + (played.hidden - played.initial) * risen(share)
    if share <= _HELD:
        return played.initial + (played.peak - played.initial) * risen(min(1.0, share / _REACHED))
    fallen = min(1.0, (share - _HELD) / (_FALLEN - _HELD))
    return played.peak + (played.hidden - played.peak) * fallen


def _of_batch(success: float, episodes: float, label: str) -> float:
    """Return the share of a step's episodes that are solved, as chance has it for this label (normally)."""
    noise = Random(label).gauss(0.0, math.sqrt(max(0.0, success * (1 - success)) / episodes))
    return round(min(1.0, max(0.0, success + noise)), 6)


@lru_cache(maxsize=256)
def _plays(environment: str, split: str, count: int, seed: int) -> tuple[tuple[str, int], ...]:
    """Return the tasks that the seed draws, as the evaluator does, in the split's order within each round."""
    tasks = environments()[environment].tasks("search" if split == "search" else "hidden")
    place = _places(environment, split)
    drawn = (sorted((task.id for task in part), key=place.__getitem__) for part in rounds(tasks, count, seed))
    return tuple((task, sample) for sample, part in enumerate(drawn) for task in part)


@cache
def _places(environment: str, split: str) -> dict[str, int]:
    tasks = environments()[environment].tasks("search" if split == "search" else "hidden")
    return {task.id: number for number, task in enumerate(tasks)}


STARTS = "starts.log"
_SHORT = 0.4
"""Share of its time after which an attempt that goes wrong does so."""


class SimSandbox:
    """Simulated attempts under a folder. `alter` may change what one leaves behind."""

    def __init__(
        self, root: Path, world: World, clock: SimClock, *, faults: Faults = NO_FAULTS, alter: Alter = unaltered
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.world = world
        self.clock = clock
        self.faults = faults
        self.alter = alter

    def run(self, spec: SandboxSpec) -> Handle:
        """Launch an attempt, or adopt it; SandboxError while the plan lets nothing start."""
        if (found := self.adopt(spec.name)) is not None:
            return found
        passed = (self.clock.true - BEGIN).total_seconds()
        if any(begin <= passed < end for begin, end in self.faults.refusing):
            raise SandboxError("expected a sandbox that starts attempts; the simulated one refuses for a while")
        self._launch(spec)
        return SimHandle(self, spec.name)

    def adopt(self, name: str) -> Handle | None:
        """Return the handle of an attempt that was launched, or None."""
        return SimHandle(self, name) if (self.root / name / "launch.json").exists() else None

    def list(self) -> list[Handle]:
        """Return all attempts, oldest first."""
        found = [path.parent for path in self.root.glob("*/launch.json")]
        return [SimHandle(self, path.name) for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]

    def starts(self) -> Counter[str]:
        """Return how often each attempt was started."""
        path = self.root / STARTS
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def running(self) -> dict[str, datetime]:
        """Return the attempts that nobody has seen end, with the moment each of them will."""
        launched = (path.parent for path in self.root.glob("*/launch.json"))
        return {
            path.name: datetime.fromisoformat(_read(path / "launch.json")["ends"])
            for path in launched
            if not (path / "end.json").exists()
        }

    def _launch(self, spec: SandboxSpec) -> None:
        order = AttemptSpec.model_validate_json(AttemptFolder(spec.directory).spec.read_text())
        neighbours = len(self.running())
        seconds, fault = self._seconds(order, neighbours), self.faults.of(order)
        limit = spec.time_limit_s or float("inf")
        takes = min(limit, seconds * (_SHORT if fault in ("crash", "out_of_memory", "lost", "garbled") else 1.0))
        takes = limit if fault == "hang" else takes
        value = {
            "directory": str(spec.directory), "labels": {**spec.labels, SIMULATED: "true"}, "fault": fault,
            "seconds": seconds, "neighbours": neighbours, "over": seconds > limit,
            "began": self.clock.true.isoformat(), "ends": (self.clock.true + timedelta(seconds=takes)).isoformat(),
        }  # fmt: skip
        with open(self.root / STARTS, "a") as starts:
            starts.write(f"{spec.name}\n")
        (self.root / spec.name).mkdir()
        _write(self.root / spec.name / "launch.json", value)

    def _seconds(self, order: AttemptSpec, neighbours: int) -> float:
        steps = int(order.spec.job["steps"])
        return self.world.seconds(configuration(order), steps, neighbours)


class SimHandle:
    """A simulated attempt."""

    def __init__(self, sandbox: SimSandbox, name: str) -> None:
        self.name = name
        self._sandbox = sandbox
        self._folder = sandbox.root / name
        self._launch: dict[str, Any] = _read(self._folder / "launch.json")

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the spec's labels."""
        return dict(self._launch["labels"])

    def run_times(self) -> tuple[float, float | None]:
        """Return when it was launched and when its time was over, in simulated Unix seconds; None while it runs."""
        began, ends = (datetime.fromisoformat(self._launch[key]).timestamp() for key in ("began", "ends"))
        return began, None if self.poll() is None else ends

    def poll(self) -> Exit | None:
        """Return how it ended, or None while it goes on."""
        if (self._folder / "end.json").exists():
            return self._end()
        if self._sandbox.clock.true < datetime.fromisoformat(self._launch["ends"]):
            return None
        ended = self._finish()
        _write(self._folder / "end.json", {"reason": ended.reason, "code": ended.code})
        return ended

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Let simulated time pass until it ends, or `timeout_s` is over."""
        clock, ends = self._sandbox.clock, datetime.fromisoformat(self._launch["ends"])
        clock.advance_to(ends if timeout_s is None else min(ends, clock.true + timedelta(seconds=timeout_s)))
        return self.poll()

    def logs(self, *, tail_bytes: int = 65_536) -> str:
        """Return the end of what it said."""
        path = self._folder / "output.log"
        text = path.read_bytes() if path.exists() else b""
        return text[-tail_bytes:].decode(errors="replace")

    def stop(self, grace_s: float = 5.0) -> Exit:
        """End it; what had ended stays as it was, and a second copy of it may still write (`duplicate`)."""
        if (ended := self.poll()) is None:
            ended = Exit("stopped", -15)
            _write(self._folder / "end.json", {"reason": ended.reason, "code": ended.code})
        return ended

    def _end(self) -> Exit:
        found = _read(self._folder / "end.json")
        if self._launch["fault"] == "duplicate" and found["reason"] == "finished":
            self._end_again()
        return Exit(found["reason"], found["code"])

    def _finish(self) -> Exit:
        fault: Fault = self._launch["fault"]
        if fault == "hang" or self._launch["over"]:
            return Exit("timeout", -15)
        if fault == "lost":
            return Exit("lost", None)
        if fault == "out_of_memory":
            return Exit("out_of_memory", 137)
        if fault == "crash":
            self._say("simulated attempt: Traceback (most recent call last): the simulated process died\n")
            return Exit("error", -9)
        if fault == "garbled":
            AttemptFolder(self._directory).outcome.write_text('{"status": "fini')
            return Exit("finished", 0)
        left = self._remains()[1]
        if fault == "lag" and left.tracked is not None:
            visible = self._sandbox.clock.true + timedelta(seconds=self._sandbox.faults.lag_s)
            left = replace(left, tracked={**left.tracked, "visible_at": visible.isoformat()})
        write(AttemptFolder(self._directory), left)
        self._say(left.log)
        return Exit("finished" if left.code == 0 else "error", left.code)

    def _end_again(self) -> None:
        """Write other results over those that were collected."""
        order, left = self._remains()
        forged = evaluation(order, int(order.spec.job["steps"]), 1.0)
        write(AttemptFolder(self._directory), replace(left, final=forged))

    def _remains(self) -> tuple[AttemptSpec, SimulatedFiles]:
        order = AttemptSpec.model_validate_json(AttemptFolder(self._directory).spec.read_text())
        played, left = remains(self._sandbox.world, order, self._launch["seconds"])
        return order, self._sandbox.alter(order, played, left)

    def _say(self, text: str) -> None:
        (self._folder / "output.log").write_text(text)

    @property
    def _directory(self) -> Path:
        return Path(self._launch["directory"])


def _read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_bytes())
    return value


def _write(path: Path, value: Mapping[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    os.replace(draft, path)
