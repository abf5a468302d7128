"""Updates of rows of several sizes, and what a large model would take.

What part of a step of a large model the backend's own work would be: a formula, from constants that were measured.

Nothing here was run at that size. Arithmetic is assumed: 6 N FLOP for each id of an update and 2 N for each id that is
read or sampled (Kaplan et al. 2020, section 2.1, without attention), at `flop_s`. A real generation is slower by far,
for it reads all weights for every token: so that the part that this gives is the largest that it can be. Constants are
of one CPU core and its memory, and of one rank and one replica.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from typing import (
    Any,
    Final,
)

from rig.spans import DEALT, ENGINE, MEASURED, RAY, ROWS, update_parts
from rig.verl_clock import ClockedVerl
from swarm.backends.protocols import Batch, TrainEpisode
from swarm.timelines.node import TrainRow

GOAL: Final = 0.05


@dataclass(frozen=True, slots=True)
class ScaleStep:
    """A step at scale; all of it is assumed, before anything was measured."""

    episodes: int = 1024
    calls: int = 4
    """Calls of an episode, one after another."""
    ids: int = 2048
    """Of an episode's row."""
    sampled: int = 1024
    parameters: float = 1e9
    weight_bytes: int = 2
    flop_s: float = 4e14
    """Of learner and replica: 40 % of the dense bf16 rate that an H100's maker states (989e12)."""

    @property
    def all_ids(self) -> int:
        """Ids of the batch."""
        return self.episodes * self.ids

    @property
    def arithmetic_s(self) -> float:
        """Seconds of rollout and update, one after the other."""
        return (6 + 2) * self.parameters * self.all_ids / self.flop_s


STEPS: Final = (ScaleStep(episodes=256), ScaleStep(), ScaleStep(episodes=4096))
JUDGED: Final = ScaleStep().episodes
"""Episodes of the step that the goal is about."""


def own_seconds(constants: Mapping[str, Any], step: ScaleStep) -> dict[str, float]:
    """Return the seconds that the backend adds to a step, by part.

    Of `constants`: `update` holds, for each part, seconds of a call, a row and an id; `publish` of a call and a byte;
    `rollout` of a call on its way and of a token in the replica's process.
    """
    update = {
        part: each["a call"] + each["a row"] * step.episodes + each["an id"] * step.all_ids
        for part, each in constants["update"].items()
    }
    published = constants["publish"]
    rollout = constants["rollout"]
    return {
        **update,
        "weights to the replica": published["a call"] + published["a byte"] * step.parameters * step.weight_bytes,
        "calls on their way": rollout["a call"] * step.calls,
        "tokens on their way": rollout["a token"] * step.sampled * step.episodes,
    }


def forecast(constants: Mapping[str, Any], step: ScaleStep) -> dict[str, Any]:
    """Return a step's assumptions, the seconds of its arithmetic and of the backend's own parts, and their share."""
    own = own_seconds(constants, step)
    added = sum(own.values())
    return {
        "assumed": asdict(step),
        "arithmetic, s": step.arithmetic_s,
        "own, s": own,
        "own, all, s": added,
        "part": added / (added + step.arithmetic_s),
    }


CONSTANTS = ("a call", "a row", "an id")


def fitted(points: Sequence[Mapping[str, Any]], part: str) -> dict[str, float]:
    """Return the seconds of a call, a row and an id: least squares of relative errors, none of them below 0."""
    from scipy.optimize import nnls

    taken = [max(point[part], 1e-9) for point in points]
    design = [[1 / s, point["rows"] / s, point["ids"] / s] for point, s in zip(points, taken, strict=True)]
    found, _ = nnls(design, [1.0] * len(points))
    return dict(zip(CONSTANTS, map(float, found), strict=True))


def line(small: Mapping[str, float], large: Mapping[str, float]) -> dict[str, float]:
    """Return seconds of a publication and of each byte, by the line through two."""
    a_byte = (large["seconds"] - small["seconds"]) / (large["bytes"] - small["bytes"])
    return {"a call": small["seconds"] - a_byte * small["bytes"], "a byte": a_byte}


SWEPT = (ROWS, DEALT, RAY, ENGINE, MEASURED)
"""Parts of an update that grow with its rows and ids alone, whatever the model."""
MOST_S = 600.0


def swept(verl: ClockedVerl, sizes: Sequence[tuple[int, int]], repeats: int) -> dict[str, Any]:
    """Return what updates of synthetic rows (number, ids of each) cost: medians, and constants by part."""
    points = [{"rows": rows, "ids": rows * ids, **_point(verl, rows, ids, repeats)} for rows, ids in sizes]
    return {"points": points, "constants": {part: fitted(points, part) for part in SWEPT}}


def _point(verl: ClockedVerl, rows: int, ids: int, repeats: int) -> dict[str, float]:
    found: dict[str, list[float]] = {part: [] for part in SWEPT}
    for repeat in range(repeats + 1):
        parts = _parts(verl, _batch(rows, ids, repeat))
        if repeat:  # the first one warms up
            for part in SWEPT:
                found[part].append(parts[part])
    return {part: median(values) for part, values in found.items()}


def _parts(verl: ClockedVerl, batch: Batch) -> dict[str, float]:
    """Return the parts of an update up to its gradient, which is forgotten: no weight changes."""
    from swarm.algorithms.objective import UpdateSums, batch_metrics
    from swarm.backends.verl.losses import ObjectiveLoss

    learner, job, episodes = verl.backend.learner, verl.backend.job, len(batch.episodes)
    learner.group.call_all("begin", ObjectiveLoss(job, learner.version), timeout_s=MOST_S, undoable=False)
    verl.taken()
    begun = time.perf_counter()
    update = learner._begin(batch)
    dealt = verl.dealt(update.all_rows, update.advantages, [1 / episodes] * episodes)
    (share,) = learner.group.call("gradient", dealt, timeout_s=MOST_S)
    with verl.spans.measured(MEASURED):
        sums = UpdateSums(learner.version, job.correction_cap)
        sums.merge(share.sums)
        sums.metrics()
        batch_metrics(batch, update.advantages)
    parts = update_parts(*verl.taken(), time.perf_counter() - begun)
    learner.group.call_all("undo", timeout_s=MOST_S)
    verl.taken()
    return parts


def _batch(number: int, ids: int, seed: int) -> Batch:
    """Return episodes of one row of random ids, the second half of each sampled, in groups of 8."""
    drawn, half = Random(seed), ids // 2
    row = ((0,) * half + (1,) * (ids - half), (0.0,) * half + (-4.0,) * (ids - half))
    versions = (-1,) * half + (0,) * (ids - half)
    return Batch(
        1,
        tuple(
            TrainEpisode(f"e{place}", f"g{place // 8}", drawn.random(),
                         (TrainRow(tuple(drawn.choices(range(5, 60), k=ids)), row[0], row[1], versions),))
            for place in range(number)
        ),
    )  # fmt: skip


def published(verl: ClockedVerl, times: int) -> dict[str, float]:
    """Return the median seconds of sending all weights to the replica, of that in the learner, and their bytes."""
    import ray

    whole, exported = [], []
    backend = verl.backend
    for _ in range(times + 1):
        verl.taken()
        begun = time.perf_counter()
        backend.publish()
        whole.append(time.perf_counter() - begun)
        exported.append(sum(end - start for name, start, end in verl.taken()[1] if name.endswith("export_weights")))
    buckets = [ray.get(bucket) for bucket in backend.learner.export_weights()]
    size = sum(weight.nbytes for bucket in buckets for weight in bucket.values())
    return {"bytes": size, "seconds": median(whole[1:]), "of that in the learner": median(exported[1:])}
