"""What a job says to the backend `verl` alone: where Ray is, and how many processes learn and answer.

Everything that other backends heed too (learning rate, clip, batch, dtype, ...) stands in the job itself.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from swarm.job_schema import Versioned

_SPREAD = {"address", "trainers", "replicas", "tensor_parallel", "gpu_memory"}
"""Fields that say where a training is computed, with any of which it may go on: no step depends on them."""


class VerlFields(Versioned):
    """The fields of the backend `verl`."""

    first_fields: ClassVar[frozenset[str]] = frozenset({"address", "trainers", "replicas", "tensor_parallel"})

    address: str | None = Field(default=None, min_length=1, max_length=256)
    """Address of a Ray cluster that runs, `HOST:PORT`. Default None: Ray is started on the server's machine, for this
    training alone."""
    trainers: int = Field(default=1, ge=1, le=4096)
    """Processes that learn, each with a device and a part of the weights (FSDP2). What a step learns does not depend on
    it. Default 1."""
    replicas: int = Field(default=1, ge=1, le=4096)
    """vLLM engines that answer, each with a whole model. Default 1."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Devices that one replica is spread over. Default 1."""
    gpu_memory: float = Field(default=0.6, gt=0, lt=1)
    """Part of a GPU's memory that a replica takes, weights and key-value cache: there it stands for
    the job's `kv_cache_bytes`, which is of a CPU. Default 0.6."""

    @property
    def devices(self) -> int:
        """Devices that learners and replicas take together: each has its own."""
        return self.trainers + self.replicas * self.tensor_parallel


def taught(fields: VerlFields | None) -> dict[str, Any]:
    """Return what of the fields a step depends on."""
    return (fields or VerlFields()).model_dump(exclude=_SPREAD)
