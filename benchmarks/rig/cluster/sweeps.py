"""Updates of rows of several sizes, and publications: what they take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any

from rig.cluster.clocked import ClockedVerl
from rig.cluster.costs import fitted
from rig.cluster.parts import DEALT, ENGINE, MEASURED, RAY, ROWS, update_parts
from swarm.backends.protocols import Batch, TrainEpisode
from swarm.timelines.node import TrainRow

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
