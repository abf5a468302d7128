"""A job's fields for the verl backend, and the names that verl has.

The names of advantage estimators, policy losses and rollout corrections are exactly those of verl 0.9.1, known without
it. A name that this backend cannot compute says which one to take; a field of the job that a name leaves without a
meaning is refused. Options of verl's engine and vLLM's are passed on by their own names, where they break no promise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from swarm.canonical import Canonical


@dataclass(frozen=True, slots=True)
class Estimator:
    """How rewards become advantages. `refused`: what it needs, and which one to take; "" where it is computed."""

    refused: str = ""
    normalizes: bool = False
    """Whether it heeds the job's `normalize_advantage`."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss of the policy. `refused`: as an estimator's."""

    refused: str = ""
    clips: bool = True
    """Whether it heeds `clip_ratio` and `clip_ratio_high`."""
    dual_clips: bool = False
    """Whether it heeds `dual_clip`."""
    weighs: bool = True
    """Whether it heeds `loss_weighting`: else each episode weighs the same."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Off-policy weights and rejections. `loss`: of one that bypasses the proximal policy, which is a loss itself;
    `refused`: as an estimator's."""

    loss: PolicyLoss | None = None
    refused: str = ""


ESTIMATORS: Final[Mapping[str, Estimator]] = {
    "grpo": Estimator(normalizes=True),
    "grpo_vectorized": Estimator(normalizes=True),
    "grpo_passk": Estimator(normalizes=True),
    "reinforce_plus_plus": Estimator(),
    "reinforce_plus_plus_baseline": Estimator(),
    "rloo": Estimator(),
    "rloo_vectorized": Estimator(),
    "opo": Estimator(),
    "gpg": Estimator(),
    "gae": Estimator("a critic, which this backend does not have; take a baseline of the group, such as rloo or grpo,"),
    "remax": Estimator("the reward of a greedy answer to each task; take rloo"),
    "optimal_token_baseline": Estimator("the sum of squared probabilities at each token; take opo"),
    "tir_optimal_token_baseline": Estimator("the sum of squared probabilities at each token; take opo"),
    "gdpo": Estimator("several rewards of each episode; take grpo"),
}
_WHOLE: Final = "to see the whole minibatch in each micro-batch"
POLICY_LOSSES: Final[Mapping[str, PolicyLoss]] = {
    "vanilla": PolicyLoss(dual_clips=True),
    "dppo_tv": PolicyLoss(),
    "dppo_kl": PolicyLoss(),
    "gspo": PolicyLoss(f"{_WHOLE}; take the job's algorithm gspo"),
    "sapo": PolicyLoss(clips=False, weighs=False),
    "gpg": PolicyLoss(clips=False),
    "clip_cov": PolicyLoss(f"{_WHOLE}; take vanilla"),
    "kl_cov": PolicyLoss(f"{_WHOLE}; take vanilla"),
    "geo_mean": PolicyLoss(f"{_WHOLE}; take the job's algorithm gspo"),
    "cispo": PolicyLoss(),
    "dro": PolicyLoss("a dro_beta, for which a job has no field; take cispo"),
    "bypass_mode": PolicyLoss("a rollout correction; take verl.rollout_correction bypass_ppo_clip"),
}
_DECOUPLED: Final = (
    "token_is", "seq_is", "token_icepop", "seq_is_rs", "geo_rs", "geo_rs_seq_tis", "geo_rs_token_tis", "k3_rs",
    "k3_rs_seq_tis", "k3_rs_token_tis",
)  # fmt: skip
_CLIP: Final = PolicyLoss(dual_clips=True)
_REINFORCE: Final = PolicyLoss(clips=False)
_CLIP_REJECTED: Final = Correction(_CLIP, f"{_WHOLE}; take bypass_ppo_clip")
_REINFORCE_BY_SEQUENCES: Final = Correction(_REINFORCE, f"{_WHOLE}; take bypass_pg_token_icepop")
CORRECTIONS: Final[Mapping[str, Correction]] = {
    **{f"decoupled_{name}": Correction() for name in _DECOUPLED},
    "bypass_ppo_clip": Correction(_CLIP),
    "bypass_ppo_clip_geo_rs": _CLIP_REJECTED,
    "bypass_ppo_clip_k3_rs": _CLIP_REJECTED,
    "bypass_pg_is": _REINFORCE_BY_SEQUENCES,
    "bypass_pg_token_icepop": Correction(_REINFORCE),
    "bypass_pg_geo_rs": _REINFORCE_BY_SEQUENCES,
    "bypass_pg_geo_rs_seq_tis": _REINFORCE_BY_SEQUENCES,
    "bypass_pg_geo_rs_token_tis": _REINFORCE_BY_SEQUENCES,
    "disabled": Correction(),
}
_TABLES: Final[Mapping[str, Mapping[str, Estimator | PolicyLoss | Correction]]] = {
    "advantage_estimator": ESTIMATORS,
    "policy_loss": POLICY_LOSSES,
    "rollout_correction": CORRECTIONS,
}
VLLM_OPTIONS: Final = frozenset({
    "async_scheduling", "attention_backend", "block_size", "cudagraph_capture_sizes", "disable_cascade_attn",
    "disable_custom_all_reduce", "enable_chunked_prefill", "enable_prefix_caching", "enforce_eager", "kv_cache_dtype",
    "long_prefill_token_threshold", "max_num_batched_tokens", "num_gpu_blocks_override", "optimization_level",
    "performance_mode", "quantization",
})  # fmt: skip
"""Arguments of vLLM's engine that are passed on as they are: they change how fast it answers, and how exactly."""
ENGINE_OPTIONS: Final = frozenset({"full_determinism", "reshard_after_forward"})
"""Options of verl's FSDP engine that are passed on; many others work on packed rows alone."""
_REFUSED: Final[Mapping[str, str]] = {
    "model": "the job's `model`",
    "dtype": "the job's `dtype`",
    "max_model_len": "the job's `max_context`",
    "max_num_seqs": "the job's `max_concurrency`",
    "seed": "the job's `seed`",
    "kv_cache_memory_bytes": "the job's `kv_cache_bytes`",
    "tensor_parallel_size": "verl.tensor_parallel",
    "gpu_memory_utilization": "verl.gpu_memory",
    "enable_sleep_mode": "verl.colocated",
    "param_offload": "verl.colocated",
    "optimizer_offload": "verl.colocated",
    "mixed_precision": "the job's `dtype`",
    "enable_gradient_checkpointing": "the job's `gradient_checkpointing`",
    "lora_rank": "the job's `lora_rank`",
    "pipeline_parallel_size": "verl.tensor_parallel: a replica's devices are counted by it",
    "data_parallel_size": "verl.replicas",
    "enable_expert_parallel": "nothing yet: models with experts are refused",
    "logprobs_mode": "nothing: answers carry the log-probs of what is drawn from",
    "speculative_config": "nothing: each id carries the log-prob of the weights that sampled it",
    "trust_remote_code": "nothing: no code of a model runs outside a container",
    "attn_implementation": "nothing: it is sdpa, of whose memory --check gives account",
    "cpu_offload_gb": "nothing: vLLM takes no new weights beside it",
    "kv_offloading_size": "nothing: what is on the host would outlive its weights",
    "fsdp_size": "nothing: a checkpoint's shards are of all trainers, so that any number of them goes on",
    "ulysses_sequence_parallel_size": "nothing: it takes packed rows, and here they are padded",
    "use_remove_padding": "nothing: it takes flash attention to pay, and here rows are padded",
    "use_fused_kernels": "nothing: they know no head but a plain product",
    "strategy": "nothing: it is fsdp2",
}
"""What stands for an option that is not passed on."""
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
        for kind, known in (("vllm", VLLM_OPTIONS), ("engine", ENGINE_OPTIONS)):
            for name in sorted(set(getattr(self, kind)) - known):
                instead = _REFUSED.get(name, f"one of {', '.join(sorted(known))}")
                raise ValueError(f"verl.{kind}: {name} is not passed on; expected in its place {instead}")
        if odd := [name for name, value in self.engine.items() if not isinstance(value, bool)]:
            raise ValueError(f"verl.engine.{odd[0]}: expected true or false, found {self.engine[odd[0]]}")
        for kind, table in _TABLES.items():
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
        return self.rollout_correction is not None and CORRECTIONS[self.rollout_correction].loss is not None

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
        kind = CORRECTIONS[preset].loss if preset is not None else None
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
