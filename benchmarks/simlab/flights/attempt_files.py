"""What a simulated attempt leaves behind, in the real formats, before it is written: so that a trap may alter it.

The evaluations are files of the harness's evaluator, the outcome is an attempt's own; only the tracker's log is JSON
in place of W&B's format (`SimTracker` reads it). Which of the tasks were solved is spread evenly and means nothing;
their number is the world's.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any

from research.runs.files import AttemptFolder, AttemptSpec
from research.runs.wandb_log import TrackedRun, TrackingLate, TrackingUnreadable
from simlab.worlds.world import Configuration, Played, World
from studies.log.event_log import Clock
from swarm.environments.play import rounds
from swarm.environments.registry import environments

TRACKED = "tracked.json"
DURING = "evaluation-during.json"
SIMULATED = "simulated"
"""What marks files, labels and machines of this simulator."""
SEEN: Mapping[str, Any] = {
    "initial_policy": "0" * 64, "template": "1" * 64, "decoding": "temperature 1.0, top_p 1.0", "overlap": 0,
    "hardware": SIMULATED, "stillness": {"before": "0" * 64, "after": "0" * 64, "probs_tolerance": None},
}  # fmt: skip
"""Conditions that an attempt sees, the same in all of them unless a confound is planted."""
_STRIDE = 193
"""Prime, so that solved tasks are spread over all of them."""
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
    """Its evaluations during training, where its metric has a schedule."""
    log: str = "simulated attempt: training is over\n"
    code: int = 0
    """Exit code."""


Alter = Callable[[AttemptSpec, Played, SimulatedFiles], SimulatedFiles]
"""What a trap or a confound does to an attempt's remains."""


def unaltered(order: AttemptSpec, played: Played, remains: SimulatedFiles) -> SimulatedFiles:
    """Return the remains as they are."""
    return remains


def configuration(order: AttemptSpec) -> Configuration:
    """Return an order's job as a world reads it; a reward that is code counts as the field `reward`."""
    return {name: value for name, value in order.spec.job.items() if isinstance(value, bool | int | float | str)}


def remains(world: World, order: AttemptSpec, seconds: float) -> tuple[Played, SimulatedFiles]:
    """Return how a run went and what it leaves behind."""
    spec, steps = order.spec, int(order.spec.job["steps"])
    played = world.run(configuration(order), spec.seed, steps)
    final = played.search if spec.metric.split == "search" else played.hidden
    return played, SimulatedFiles(
        initial=evaluation(order, 0, played.initial),
        final=evaluation(order, steps, final),
        tracked=_tracked(order, played, steps),
        outcome={
            "status": "finished",
            "code": "ok",
            "reason": "",
            "seconds": seconds,
            "stages": {"train": seconds},
            "seen": SEEN,
        },
        during=_during(order, played, steps),
    )


def evaluation(order: AttemptSpec, version: int, share: float) -> dict[str, Any]:
    """Return an evaluator's answer in which a share of all episodes is solved."""
    return _evaluation(order, version, share, order.spec.metric.episodes, order.spec.seed)


def _during(order: AttemptSpec, played: Played, steps: int) -> dict[str, Any] | None:
    """Return what the evaluator during training wrote; None where the metric looks at nothing in between."""
    spec, schedule = order.spec, order.spec.metric.schedule
    if schedule is None:
        return None
    found = []
    for version in schedule.steps(spec.job):
        share = _of_batch(_success(played, version / steps), schedule.episodes, f"{order.tracking_id} during {version}")
        found.append(_evaluation(order, version, share, schedule.episodes, spec.seed + version))
    return {"evaluations": found}


def _evaluation(order: AttemptSpec, version: int, share: float, count: int, seed: int) -> dict[str, Any]:
    spec, solved = order.spec, round(share * count)
    episodes = [
        {"task_id": task, "sample": sample, "success": (number * _STRIDE + seed) % count < solved, "reward": 0.0}
        for number, (task, sample) in enumerate(_plays(spec.environment, spec.metric.split, count, seed))
    ]
    for episode in episodes:
        episode["reward"] = float(bool(episode["success"]))
    return {
        "environment": spec.environment, "split": spec.metric.split, "policy_version": version, "episodes": episodes,
    }  # fmt: skip


def write(folder: AttemptFolder, left: SimulatedFiles) -> None:
    """Write an attempt's remains into its folder; an outcome that names no hashes of its files gets the right ones."""
    folder.path.mkdir(parents=True, exist_ok=True)
    files = {
        folder.evaluation("initial"): left.initial,
        folder.evaluation("final"): left.final,
        folder.path / DURING: left.during,
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
        """Return what a tracked run logged; raises TrackingUnreadable."""
        try:
            value = json.loads((directory / TRACKED).read_text())
        except (OSError, ValueError) as error:
            raise TrackingUnreadable(f"expected a simulated log of {run_id} in {directory}; found none") from error
        visible = value.get("visible_at")
        if visible and self._clock() < datetime.fromisoformat(visible):
            raise TrackingLate(f"the simulated tracker does not show the log of {run_id} yet")
        history = {int(step): metrics for step, metrics in value["history"].items()}
        return TrackedRun(SIMULATED, value["group"], value["id"], value["config"], history, ended=True)


def _tracked(order: AttemptSpec, played: Played, steps: int) -> dict[str, Any]:
    history = {str(step): _metrics(order, played, step, steps) for step in range(1, steps + 1)}
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
    if played.course is not None:
        return played.course.at(share)
    if played.peak is None:
        return played.initial + (played.hidden - played.initial) * _risen(share)
    if share <= _HELD:
        return played.initial + (played.peak - played.initial) * _risen(min(1.0, share / _REACHED))
    fallen = min(1.0, (share - _HELD) / (_FALLEN - _HELD))
    return played.peak + (played.hidden - played.peak) * fallen


def _risen(share: float) -> float:
    return (1 - math.exp(-3 * share)) / (1 - math.exp(-3))


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
