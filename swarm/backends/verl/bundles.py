"""GPUs that a rank and a replica share: Ray keeps one for each pair, and both of the pair see it as their only one.

Promises: GPUs are waited for within a bound, and kept for nobody else until they are freed. Ray counts halves of a GPU
and bounds no memory: who shares one takes turns. Knows nothing of what is placed.
"""

from __future__ import annotations

from typing import Any, Final

from swarm.backends.protocols import BackendError

FREE_S: Final = 120.0
"""Seconds within which so many GPUs must be free."""


class Bundles:
    """A placement group of Ray's with a bundle of one GPU for each pair."""

    def __init__(self, count: int, seconds: float = FREE_S) -> None:
        """Keep so many GPUs, on as few nodes as have room; BackendError where they are not free within `seconds`."""
        from ray.util.placement_group import placement_group

        self._group = placement_group([{"GPU": 1}] * count, strategy="PACK")
        if not self._group.wait(seconds):
            self.free()
            raise BackendError(
                f"verl.colocated: expected {count} GPUs that are free in the Ray cluster within {seconds:.0f} s, found "
                "too many taken: end what else is on it, or lower verl.trainers and verl.replicas"
            )

    def options(self, number: int) -> dict[str, Any]:
        """Return Ray's options of an actor on half of the GPU of a pair; cores are shared, not counted."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
        return {"num_cpus": 0, "num_gpus": 0.5, "scheduling_strategy": strategy}

    def free(self) -> None:
        """Give the GPUs back, and end what is still on them."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self._group)
