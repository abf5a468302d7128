"""An engine over replicas on a cluster of Ray, of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swarm.backends.verl.generating.actor import RayReplica
from swarm.backends.verl.generating.draws import Draws
from swarm.backends.verl.generating.engine import ReplicatedEngine
from swarm.backends.verl.generating.engines.model_folder import vocabulary_of
from swarm.backends.verl.generating.engines.spec import ReplicaSpec


def make_engine(
    spec: ReplicaSpec, replicas: int, options: Callable[[int], Mapping[str, Any]], draws: Draws | None = None
) -> ReplicatedEngine:
    """Return an engine, not started; `options` are Ray's for a replica's actor by its number, as where it is placed.

    Ray is joined or started by whoever calls, before `start`. BackendError where the folder has no model.
    """
    return ReplicatedEngine(
        lambda number, life: RayReplica(spec, number, life, options(number)),
        replicas,
        spec.max_context,
        vocabulary_of(Path(spec.folder)),
        draws=draws,
    )
