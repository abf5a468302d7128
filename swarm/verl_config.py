"""A job's fields for the verl backend, and the names that verl has.

`verl_config.toml` has the names of advantage estimators, policy losses and rollout corrections that verl 0.9.1 has. One
that this backend cannot compute says which one to take; a field of the job that a name leaves without a meaning is
refused. Options of verl's engine and vLLM's are passed on by their own names, where they break no promise.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from swarm.canonical import Canonical


@dataclass(frozen=True, slots=True)
class VerlFunction:
    """An advantage estimator, a policy loss or a rollout correction of verl's."""

    refused: str = ""
    """What it needs, and which one to take; "" where it is computed."""
    normalizes: bool = False
    """Whether an estimator heeds the job's `normalize_advantage`."""
    bypasses: bool = False
    """Whether a correction bypasses the proximal policy: it is a loss itself."""
    clips: bool = True
    """Whether a loss heeds `clip_ratio` and `clip_ratio_high`."""
    dual_clips: bool = False
    """Whether a loss heeds `dual_clip`."""
    weighs: bool = True
    """Whether a loss heeds `loss_weighting`: else each episode weighs the same."""


_TABLES: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FUNCTIONS: Final[Mapping[str, Mapping[str, VerlFunction]]] = {
    kind: {name: VerlFunction(**fields) for name, fields in _TABLES[kind].items()}
    for kind in ("advantage_estimator", "policy_loss", "rollout_correction")
}
ESTIMATORS, POLICY_LOSSES, CORRECTIONS = _FUNCTIONS.values()
SPREAD: Final = {
    "address", "trainers", "replicas", "tensor_parallel", "gpu_memory", "colocated", "vllm", "engine",
}  # fmt: skip
"""Fields that say where and how fast a training is computed, with any of which it may go on: no step's rule depends on
them, and each token carries the log-prob that it was sampled with."""


class VerlFields(Canonical):
    """The fields of the backend `verl`."""

    added_fields: ClassVar = frozenset({
        "inference_engine", "gpu_memory", "colocated", "advantage_estimator", "policy_loss",
        "rollout_correction", "vllm", "engine",
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
    reinforce_plus_plus, reinforce_plus_plus_baseline, rloo, rloo_vectorized, opo or gpg. It stands for the job's
    `algorithm`, which must then be the default. Default None: the job's `algorithm`."""
    policy_loss: str | None = None
    """verl's own policy loss by its name, computed by verl's function: vanilla, dppo_tv, dppo_kl, sapo, gpg or
    cispo. Default None: that of the job's other fields. A field of the job that the
    loss does not heed is refused (docs/cluster.md)."""
    rollout_correction: str | None = None
    """verl's own preset of off-policy weights and rejections by its name, such as decoupled_seq_is or
    bypass_ppo_clip (docs/cluster.md), computed by verl's function. It stands for the job's
    `rollout_correction`. Default None: the job's."""
    vllm: Mapping[str, bool | int | FiniteFloat | str | tuple[int, ...]] = Field(default_factory=dict, max_length=32)
    """Arguments of vLLM's engine by vLLM's own names, such as {"max_num_batched_tokens": 16384} (docs/verl.md has those
    that are passed on). Default: none."""
    engine: Mapping[str, bool | int] = Field(default_factory=dict, max_length=32)
    """Options of verl's engine that learns by verl's own names, such as {"reshard_after_forward": false}
    (docs/verl.md). Default: none."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        for kind, known in _TABLES["passed_on"].items():
            for name in sorted(set(getattr(self, kind)).difference(known)):
                instead = _TABLES["instead"].get(name, f"one of {', '.join(known)}")
                raise ValueError(f"verl.{kind}: {name} is not passed on; expected in its place {instead}")
        if odd := [name for name, value in self.engine.items() if not isinstance(value, bool)]:
            raise ValueError(f"verl.engine.{odd[0]}: expected true or false, found {self.engine[odd[0]]}")
        for kind, table in _FUNCTIONS.items():
            if (name := getattr(self, kind)) is None:
                continue
            if name not in table:
                there = ", ".join(known for known, each in table.items() if not each.refused)
                raise ValueError(f"verl.{kind}: expected one of {there}; found {name!r}")
            if needs := table[name].refused:
                raise ValueError(f"verl.{kind}: {name} needs {needs} instead")
        if self.colocated and (self.trainers != self.replicas or self.tensor_parallel != 1):
            raise ValueError(
                "verl.colocated: expected as many replicas as trainers and a tensor_parallel of 1, as one of each "
                f"shares a device; found {self.trainers} trainers, {self.replicas} replicas of {self.tensor_parallel}: "
                "make them so, or leave colocated out"
            )
        return self

    @property
    def bypass(self) -> bool:
        """Whether the correction takes the policy that sampled for the proximal one, and is the loss itself."""
        return self.rollout_correction is not None and CORRECTIONS[self.rollout_correction].bypasses

    @property
    def loss(self) -> str | None:
        """The name under which verl has the loss; None where it is this project's."""
        return "bypass_mode" if self.bypass else self.policy_loss

    def require_meaning(self, changed: Mapping[str, Any]) -> None:
        """Raise ValueError for one of `changed`, fields not at their default, that the names leave without meaning."""
        estimator, loss, preset = self.advantage_estimator, self.policy_loss, self.rollout_correction
        correction = f"verl.rollout_correction {preset}"
        if self.bypass and loss is not None:
            raise ValueError(
                f"verl.policy_loss {loss!r} means nothing with {correction}, "
                f"which is a loss itself: leave one of the two out, or name a correction that begins with decoupled_"
            )
        without: dict[str, list[str]] = {}
        if estimator is not None:
            own = ["algorithm"] if ESTIMATORS[estimator].normalizes else ["algorithm", "normalize_advantage"]
            without[f"verl.advantage_estimator {estimator}"] = own
        kind = CORRECTIONS[preset] if preset is not None and self.bypass else None
        if kind is None and loss is not None:
            kind = POLICY_LOSSES[loss]
        if kind is not None:
            algorithm = changed.get("algorithm")
            # a part of two algorithms is in the loss: gspo's ratios, and dr_grpo's weights
            of_loss = algorithm == "gspo" or (algorithm == "dr_grpo" and not kind.weighs)
            without[correction if self.bypass else f"verl.policy_loss {loss}"] = [
                *([] if kind.clips else ["clip_ratio", "clip_ratio_high"]),
                *([] if kind.dual_clips else ["dual_clip"]),
                *([] if kind.weighs else ["loss_weighting"]),
                *(["algorithm"] if of_loss else []),
            ]
        if preset is not None:
            without[correction] = [*without.get(correction, ()), "rollout_correction", "correction_cap"]
        for said, meaningless in without.items():
            for name in meaningless:
                if name in changed:
                    raise ValueError(f"{name} {changed[name]!r} means nothing with {said}: leave one of the two out")

    @property
    def devices(self) -> int:
        return self.trainers if self.colocated else self.trainers + self.replicas * self.tensor_parallel

    @property
    def placed(self) -> str:
        apart = f"{self.trainers} trainers, {self.replicas} replicas of {self.tensor_parallel}"
        return f"{apart}, one of each on a device in turns" if self.colocated else apart
