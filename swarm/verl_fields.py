"""What a job says to the backend `verl` alone: where Ray is, how many processes learn and answer, functions of verl's.

Everything that other backends heed too (learning rate, clip, batch, dtype, ...) stands in the job itself.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from swarm.job_schema import Versioned
from swarm.verl_names import Named, require_known

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

    advantage_estimator: str | None = None
    """verl's own estimator of advantages by its name, computed by verl's function: grpo, grpo_vectorized, grpo_passk,
    reinforce_plus_plus, reinforce_plus_plus_baseline, rloo, rloo_vectorized, opo or gpg. It stands for the job's
    `algorithm`, which must then be the default. Default None: the job's `algorithm`."""
    policy_loss: str | None = None
    """verl's own policy loss by its name, computed by verl's function: vanilla, dppo_tv, dppo_kl, gspo, sapo, gpg,
    clip_cov, kl_cov, geo_mean or cispo. Default None: that of the job's other fields. A field of the job that the
    loss does not heed is refused (docs/cluster.md)."""
    rollout_correction: str | None = None
    """verl's own preset of off-policy weights and rejections by its name, such as decoupled_seq_is or
    bypass_ppo_clip_geo_rs (docs/cluster.md), computed by verl's function. It stands for the job's
    `rollout_correction`. Default None: the job's."""

    @model_validator(mode="after")
    def _known_to_verl(self) -> Self:
        if self.advantage_estimator is not None:
            require_known("advantage_estimator", self.advantage_estimator)
        if self.policy_loss is not None:
            require_known("policy_loss", self.policy_loss)
        if self.rollout_correction is not None:
            require_known("rollout_correction", self.rollout_correction)
        return self

    @property
    def named(self) -> Named:
        """The functions of verl's that the job names."""
        return Named(self.advantage_estimator, self.policy_loss, self.rollout_correction)

    @property
    def devices(self) -> int:
        """Devices that learners and replicas take together: each has its own."""
        return self.trainers + self.replicas * self.tensor_parallel


def taught(fields: VerlFields | None) -> dict[str, Any]:
    """Return what of the fields a step depends on."""
    return (fields or VerlFields()).model_dump(exclude=_SPREAD)
