"""What a job says to the backend `verl` alone: where Ray is, how many processes learn and answer, functions of verl's.

Everything that other backends heed too (learning rate, clip, batch, dtype, ...) stands in the job itself.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from swarm.canonical import Canonical
from swarm.verl_names import Named, require_known

_SPREAD = {"address", "trainers", "replicas", "tensor_parallel", "gpu_memory", "colocated"}
"""Fields that say where a training is computed, with any of which it may go on: no step depends on them."""


class CriticFields(Canonical):
    """How the critic of the estimator `gae` learns, and how its values become advantages."""

    added_fields: ClassVar = frozenset({"learning_rate", "clip_range", "discount", "gae_lambda"})

    learning_rate: float = Field(default=1e-5, ge=0, le=1)
    """The critic's step size, the same at each update: the job's schedule is the policy's. Default 1e-5."""
    clip_range: float = Field(default=0.5, gt=0, le=1e6)
    """How far a token's value may move from what it was when the update began before the loss has nothing more to gain
    by it, in units of the reward. Default 0.5."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """What a reward is worth one sampled token earlier. Default 1: all tokens of an episode are as near to it."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """How much of what came after a token, beyond the value of the next one, is in its advantage: 0 trusts the critic
    alone, 1 the reward alone. Default 1."""


class VerlFields(Canonical):
    """The fields of the backend `verl`."""

    added_fields: ClassVar = frozenset({
        "inference_engine", "gpu_memory", "colocated", "advantage_estimator", "policy_loss", "critic",
        "rollout_correction",
    })  # fmt: skip

    address: str | None = Field(default=None, min_length=1, max_length=256)
    """Address of a Ray cluster that runs, `HOST:PORT`. Default None: Ray is started on the server's machine, for this
    training alone."""
    trainers: int = Field(default=1, ge=1, le=4096)
    """Processes that learn, each with a device and a part of the weights (FSDP2). What a step learns does not depend on
    it. Default 1."""
    replicas: int = Field(default=1, ge=1, le=4096)
    """Engines that answer, each with a whole model. Default 1."""
    inference_engine: Literal["vllm"] = "vllm"
    """What generates in a replica (docs/cluster.md). Default vllm."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Devices that one replica is spread over. Default 1."""
    gpu_memory: float = Field(default=0.6, gt=0, lt=1)
    """Part of a GPU's memory that a replica takes, weights and key-value cache: there it stands for
    the job's `kv_cache_bytes`, which is of a CPU. Default 0.6."""
    colocated: bool = False
    """Whether each trainer shares a device with a replica, which gives its memory back while the trainers learn. It
    needs as many replicas as trainers, a tensor_parallel of 1 and the job's max_staleness of 0. Default False: each has
    its own."""

    advantage_estimator: str | None = None
    """verl's own estimator of advantages by its name, computed by verl's function: grpo, grpo_vectorized, grpo_passk,
    reinforce_plus_plus, reinforce_plus_plus_baseline, rloo, rloo_vectorized, opo, gpg, or gae, which has a critic. It
    stands for the job's `algorithm`, which must then be the default. Default None: the job's `algorithm`."""
    policy_loss: str | None = None
    """verl's own policy loss by its name, computed by verl's function: vanilla, dppo_tv, dppo_kl, gspo, sapo, gpg,
    clip_cov, kl_cov, geo_mean or cispo. Default None: that of the job's other fields. A field of the job that the
    loss does not heed is refused (docs/cluster.md)."""
    critic: CriticFields | None = None
    """What the estimator `gae` has of its own: how its critic, a second model with an optimiser of its own, learns.
    Default None: that of each field. Other estimators refuse it."""
    rollout_correction: str | None = None
    """verl's own preset of off-policy weights and rejections by its name, such as decoupled_seq_is or
    bypass_ppo_clip_geo_rs (docs/cluster.md), computed by verl's function. It stands for the job's
    `rollout_correction`. Default None: the job's."""

    @field_validator("critic")
    @classmethod
    def _saying_something(cls, value: CriticFields | None) -> CriticFields | None:
        """Return None for a critic of defaults alone: to say a default is to say nothing."""
        return None if value == CriticFields() else value

    @model_validator(mode="after")
    def _known_to_verl(self) -> Self:
        if self.advantage_estimator is not None:
            require_known("advantage_estimator", self.advantage_estimator)
        if self.policy_loss is not None:
            require_known("policy_loss", self.policy_loss)
        if self.rollout_correction is not None:
            require_known("rollout_correction", self.rollout_correction)
        return self

    @model_validator(mode="after")
    def _of_a_critic(self) -> Self:
        if self.critic is not None and not self.named.has_critic:
            found = self.advantage_estimator or "none"
            raise ValueError(f"verl.critic: expected verl.advantage_estimator gae, found {found}: leave the critic out")
        return self

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if self.colocated and (self.trainers != self.replicas or self.tensor_parallel != 1):
            raise ValueError(
                "verl.colocated: expected as many replicas as trainers and a tensor_parallel of 1, as one of each "
                f"shares a device; found {self.trainers} trainers, {self.replicas} replicas of {self.tensor_parallel}: "
                "make them so, or leave colocated out"
            )
        return self

    @property
    def named(self) -> Named:
        """The functions of verl's that the job names."""
        return Named(self.advantage_estimator, self.policy_loss, self.rollout_correction)

    @property
    def devices(self) -> int:
        """Devices that learners and replicas take together."""
        return self.trainers if self.colocated else self.trainers + self.replicas * self.tensor_parallel

    @property
    def placed(self) -> str:
        """What these devices are for, in words."""
        apart = f"{self.trainers} trainers, {self.replicas} replicas of {self.tensor_parallel}"
        return f"{apart}, one of each on a device in turns" if self.colocated else apart


def taught(fields: VerlFields | None) -> dict[str, Any]:
    """Return what of the fields a step depends on."""
    return (fields or VerlFields()).model_dump(exclude=_SPREAD)
