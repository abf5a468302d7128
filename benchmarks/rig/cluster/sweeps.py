"""Updates of rows of several sizes, and publications: what they take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from rig.cluster.clocked import ClockedVerl
from rig.cluster.costs import fitted
from rig.cluster.parts import DEALT, ENGINE, RAY, update_parts

SWEPT = (DEALT, RAY, ENGINE)
"""Parts of an update that grow with its rows and ids alone, whatever the model."""


def swept(verl: ClockedVerl, sizes: Sequence[tuple[int, int]], repeats: int) -> dict[str, Any]:
    """Return what updates of synthetic rows (number, ids of each) cost: medians, and constants by part."""
    points = [{"rows": rows, "ids": rows * ids, **_point(verl, rows, ids, repeats)} for rows, ids in sizes]
    return {"points": points, "constants": {part: fitted(points, part) for part in SWEPT}}


def _point(verl: ClockedVerl, rows: int, ids: int, repeats: int) -> dict[str, float]:
    from swarm.backends.verl.learning.loss import SharedLoss

    learner = verl.backend.learner
    found: dict[str, list[float]] = {part: [] for part in SWEPT}
    for repeat in range(repeats + 1):
        own = _rows(rows, ids, repeat)
        nothing, weights = [0.0] * rows, [1.0 / (rows * ids)] * rows
        learner.group.call_all("begin", SharedLoss(verl.backend.job, learner.version), timeout_s=600, undoable=False)
        verl.taken()
        begun = time.perf_counter()
        learner.group.call("gradient", verl.dealt(own, nothing, weights), timeout_s=600)
        whole = time.perf_counter() - begun
        parts = update_parts(*verl.taken(), whole)
        learner.group.call_all("undo", timeout_s=600)
        verl.taken()
        if repeat:  # the first one warms up
            for part in SWEPT:
                found[part].append(parts[part])
    return {part: median(values) for part, values in found.items()}


def _rows(number: int, ids: int, seed: int) -> list[Any]:
    """Return rows of random ids, the second half of each sampled."""
    import torch

    from swarm.backends.algorithms.rows import Row

    drawn = torch.Generator().manual_seed(seed)
    places = torch.arange(ids // 2, ids)
    return [
        Row(
            episode=row, group="g", ids=torch.randint(5, 60, (ids,), generator=drawn), places=places,
            targets=torch.randint(5, 60, (len(places),), generator=drawn), rollout=torch.full((len(places),), -4.0),
            versions=torch.zeros(len(places), dtype=torch.long),
        )
        for row in range(number)
    ]  # fmt: skip


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
        exported.append(sum(end - start for name, start, end in verl.taken()[1] if name.endswith("exported")))
    buckets = [ray.get(bucket) for bucket in backend.learner.exported()]
    size = sum(weight.nbytes for bucket in buckets for weight in bucket.values())
    return {"bytes": size, "seconds": median(whole[1:]), "of that in the learner": median(exported[1:])}
