"""The job: everything that decides what a swarm server trains, as one frozen, validated value.

Two jobs with equal fields describe the same training; nothing else (environment variables, client flags) changes what
is learned. How a field is added is in `swarm.canonical`; `ajet job explain` prints this file's descriptions.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, FiniteFloat, ValidationInfo, model_serializer, model_validator

from swarm.canonical import Canonical, is_record
from swarm.verl_config import SPREAD, VerlFields


@dataclass(frozen=True, slots=True)
class Tunable:
    """What a study may do with a job field that it may vary; `job.toml` has them and says what each of these means. The
    default is on the ladder, and a design without explicit values compares it, or a rung near it, with another one."""

    synonyms: tuple[str, ...]
    ladder: tuple[Any, ...]
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    apart: bool = False
    usual: Any = None


LONGEST_AGENT = 64
"""Bytes of an agent's name."""
TINY_CONTEXT = 2048
"""Tokens that a tiny model has positions for."""


def _check_name(name: str) -> str:
    if not name or len(name.encode()) > LONGEST_AGENT or not name.isprintable():
        raise ValueError(f"expected a name of 1 to {LONGEST_AGENT} bytes of printable characters, found {name[:80]!r}")
    return name


AgentName = Annotated[str, AfterValidator(_check_name)]

KNOB: Final = "environment."
"""Before the name of an environment's knob, where a job is written: `"environment.max_turns": 3`."""


class TinyModel(Canonical):
    """A tiny causal LM made on the spot from a seed: nothing is downloaded, and it is cached by its hash."""

    added_fields: ClassVar = frozenset({"head_size"})

    kind: Literal["tiny"] = "tiny"
    """Always `tiny`."""
    seed: int = 0
    """Seed of the initial weights and of the warm start's demonstrations. Default 0."""
    hidden_size: int = Field(default=64, ge=16, le=1024)
    """Width of the residual stream. Default 64: about 0.1 million parameters, trained in a minute on a core."""
    layers: int = Field(default=2, ge=1, le=24)
    """Decoder layers. Default 2."""
    warm_start_steps: int = Field(default=400, ge=0, le=20_000)
    """Supervised steps on a mediocre scripted player of the job's environment, before any RL. Default 400."""
    head_size: Literal[16, 32, 64] = 16
    """Numbers of an attention head; the model has as many heads as fit its width. Default 16, or 32 with the backend
    verl: vLLM on a CPU takes no fewer."""


class PathModel(Canonical):
    """A Hugging Face causal LM in a local folder (config, safetensors, tokenizer with a chat template)."""

    added_fields: ClassVar = frozenset({"warm_start_steps", "sha256"})

    kind: Literal["path"] = "path"
    """Always `path`."""
    path: str
    """Folder of the model: a path, or the name of a folder among the server's models."""
    warm_start_steps: int = Field(default=0, ge=0, le=20_000)
    """Supervised steps on demonstrations of the job's environment, before any RL: 16 plays each, AdamW at 2e-5, all
    weights, fp32. Default 0: none, and the environment needs no demonstrations."""
    sha256: str | None = None
    """Hash of the folder's configuration, weights, tokenizer and template. Default None: whatever lies there. A study
    writes it down when the folder is named and checks it before each attempt; a server does not."""


ModelSpec = Annotated[TinyModel | PathModel, Field(discriminator="kind")]


class Tracking(Canonical):
    """Where the server logs its metrics: a Weights & Biases run, written offline unless told otherwise."""

    added_fields: ClassVar = frozenset({"tags", "also"})

    project: str = "ajet"
    """W&B project. Default `ajet`."""
    group: str | None = None
    """W&B group; a study puts its id here, so that all its runs stand together."""
    name: str | None = None
    """Display name of the W&B run."""
    run_id: str | None = None
    """W&B run id; given by the harness so that the run can be found again."""
    directory: str = "."
    """Folder under which W&B writes its `wandb/` folder. Empty: `tracking` in the server's own folder, whose files it
    hands out (`GET /files`)."""
    mode: Literal["offline", "online"] = "offline"
    """`offline` (default) sends nothing anywhere; `online` needs a logged-in user on the server's machine."""
    config: Mapping[str, Any] = Field(default_factory=dict)
    """Extra config entries (study, design hash, arm, ...) stored with the run."""
    tags: tuple[str, ...] = ()
    """Tags of the run, of 64 characters at most; a study gives its id, the arm and the phase. Default: none."""
    also: tuple[Literal["trackio", "mlflow"], ...] = ()
    """Trackers that are told the same beside W&B, each in a store of its own in the folder (docs/wandb.md). What fails
    there is logged and stops nothing. Default: none."""


_APART = {"tracking"}
"""Fields that train nothing: jobs that differ in them are the same."""
_MAY_CHANGE = {
    "checkpoint_every", "checkpoints_kept", "lease_ttl_s", "drain_timeout_s", "micro_batch_tokens",
    "gradient_checkpointing", "max_concurrency", "kv_cache_bytes", "evaluate_after", "eval_every",
    "evaluation_episodes",
}  # fmt: skip
"""Fields with which a training that was begun with others may go on: what a step learns does not depend on them."""


def default_learning_rate(model: ModelSpec, lora_rank: int) -> float:
    """Return the step size of a job that names none: a pretrained model breaks at the tiny one's."""
    if not isinstance(model, PathModel):
        return 1e-3
    return 5e-4 if lora_rank else 2e-5


def spread_knobs(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a job's fields with each knob as a field of its own."""
    knobs = fields.pop("environment_args", None) or {}
    return fields | {f"{KNOB}{name}": knobs[name] for name in sorted(knobs)}


class Job(Canonical):
    """What a swarm server trains: model, environment, algorithm, batch, optimiser and limits."""

    added_fields: ClassVar = frozenset({
        "start_from", "missing_stream", "missing_stream_s", "mask_truncated", "evaluate_after", "eval_every",
        "evaluation_episodes", "verl", "train_agents", "external_advantages", "environment_args",
        "lineage",
    })  # fmt: skip

    environment: str = "guess"
    """Name of the environment the model is warm-started on and the built-in agents play. Default `guess`."""
    environment_args: Mapping[str, bool | int | FiniteFloat | str] = Field(default_factory=dict, max_length=32)
    """What knobs of the environment (`ajet env show`) are set to, written as fields: "environment.max_turns": 3.
    Warm starts are played without them. Default: each knob's own."""
    model: ModelSpec = Field(default_factory=TinyModel)
    """The trainable model: made on the spot (`tiny`), or of a folder: {"kind": "path", "path": "/models/mine"}."""
    start_from: str | None = Field(default=None, min_length=1, max_length=4096)
    """Folder that `ajet swarm export-model` wrote, or any of the same architecture and tokenizer as `model`: a path
    from `/` on, or a name among the server's models. Training begins with its weights in place of `model`'s; optimiser,
    schedule and steps begin anew. Default None: the weights of `model`, warm start and all."""
    backend: str = Field(default="local", min_length=1, max_length=64)
    """Name of what generates and learns. `local` (default): torch, one module shared by engine and learner. `fake`:
    scripted, for tests; learns nothing. `verl`: verl's learners and vLLM's engines on Ray, for what one
    machine cannot hold (docs/cluster.md). Installed packages may bring more, by the entry points `ajet.backends`; a
    server refuses a name that is none of them."""
    algorithm: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gspo"] = "grpo"
    """Policy-gradient algorithm: how rewards become advantages, and what the clip holds.
    `grpo` (default): reward less its group's mean, over the group's standard deviation; the clip holds each token's
    probability ratio (arXiv 2402.03300). `dr_grpo`: without the deviation, and every token weighs the same constant
    (arXiv 2503.20783). `rloo`: reward less the mean of the group's others (arXiv 2402.14740). `reinforce_pp`: the
    reward, whitened over the whole batch's tokens; `reinforce_pp_baseline`: less its group's mean before that
    (REINFORCE++, arXiv 2501.03262). `gspo`: grpo's advantages; the clip holds the whole episode's ratio, the
    geometric mean of its tokens' (arXiv 2507.18071), which wants a `clip_ratio` of about 3e-4."""
    seed: int = 0
    """Seeds sampling and the order of tasks; the model's own seed is apart. Default 0."""

    steps: int = Field(default=40, ge=1, le=1_000_000)
    """Training steps (policy updates from one batch each). Default 40."""
    episodes_per_step: int = Field(default=128, ge=2, le=65_536)
    """Episodes in one batch; the number of tasks in it is this over `group_size`. Default 128."""
    group_size: int = Field(default=8, ge=2, le=1024)
    """Episodes of one task in a batch; their mean reward is the baseline of each. Default 8."""
    learning_rate: float = Field(default=1e-3, ge=0, le=1)
    """AdamW's step size, after warm-up. Default 1e-3 for the tiny model; for a model of a folder 5e-4 with LoRA, 2e-5
    where all weights train (large models want 1e-6 to 1e-5). With 0 everything runs and nothing is learned, which
    checks the plumbing: the status then says whether the weights are bit-equal to those before."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the step size goes on after warm-up, over the job's `steps`: `constant` (default), or down to
    `lr_final_fraction` of it along a line or half a cosine."""
    lr_warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Training steps over which the step size rises from 0 along a line. Default 0."""
    lr_final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Part of the step size that is left when all steps are done, where the schedule is not constant. Default 0."""
    temperature: float = Field(default=1.0, gt=0, le=5)
    """Sampling temperature of training episodes; the learner applies the same. Default 1.0."""
    epochs: int = Field(default=1, ge=1, le=64)
    """Passes of the optimiser over one batch. Default 1."""
    minibatches: int = Field(default=1, ge=1, le=1024)
    """Optimiser steps a batch is split into per epoch. Nothing is dropped to make a batch divide evenly: minibatches
    may differ by an episode. Default 1: purely on-policy."""
    clip_ratio: float = Field(default=0.2, gt=0, le=10)
    """Half-width of the trust region on the probability ratio (PPO's epsilon). Default 0.2."""
    clip_ratio_high: float | None = Field(default=None, gt=0, le=10)
    """Upper half-width where it is to differ from `clip_ratio` (DAPO's clip-higher, arXiv 2503.14476). Default None:
    the same."""
    dual_clip: float | None = Field(default=None, gt=1, le=100)
    """Largest ratio that counts where the advantage is negative (dual-clip PPO, arXiv 1912.09729; 3 is usual).
    Default None: no such bound."""
    kl_coef: float = Field(default=0.0, ge=0, le=10)
    """Weight of the KL to the initial policy. Default 0: off, no reference model is kept."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Per-token estimate of that KL (Schulman 2020), on the sampled tokens: `k1` the log ratio (unbiased, but its
    gradient is zero on average: a number to watch), `k2` half its square, `k3` (default) unbiased and never
    negative."""
    entropy_coef: float = Field(default=0.0, ge=0, le=10)
    """Weight of the entropy bonus. Default 0."""
    normalize_advantage: bool = True
    """Divide a group's advantages by their standard deviation; heeded by `grpo` and `gspo`, the other algorithms fix it
    themselves. Default True."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW's decoupled weight decay. Default 0."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm. Default 1.0."""

    batch_rule: Literal["groups", "varied_groups", "episodes"] = "groups"
    """When a batch is enough. `groups` (default): episodes_per_step / group_size tasks, each with a full group.
    `varied_groups`: the same number of full groups whose rewards are not all equal; a group with equal rewards is
    filtered out (counted as drop_constant_group) and another one begins. `episodes`: the first episodes_per_step
    episodes to end, of whatever tasks; those of one task are one group, of any size. Under the first two rules a group
    that lacks members and that nobody plays for lease_ttl_s is dropped (drop_partial_group)."""
    surplus_groups: int = Field(default=0, ge=0, le=65_536)
    """Groups admitted beyond what a batch needs, so that no step waits for the slowest. The first to be whole make the
    batch; what is left over stays, one policy version older, and comes first in the next batch. Under the batch rule
    `episodes`: times group_size episodes. Default 0: exactly what is needed is admitted, and every batch is of one
    policy version."""
    pool_bytes: int = Field(default=1 << 30, ge=1 << 16)
    """Most bytes of captured tokens that ended episodes may hold while they wait for their batch; beyond it the oldest
    are dropped (drop_pool_bytes) and their places are free again. Counted are 40 bytes for a token of context and 80
    for a sampled one. Where a batch's worth of episodes is dropped before one batch is there, the server fails and
    says that the bound is too small. Default 1 GiB."""
    streams: Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """Shares of the streams in each batch, by name, in any unit: {"math": 40, "code": 60}. The server admits groups by
    deficit round robin, so that what a batch's whole groups leave over is made up in the next: 40/30/30 of ten groups
    are 4/3/3 in every batch. A batch waits for every stream that has a share, however slow it is, and whether it plays
    or not. Shares may be changed while training. Default none: every stream is admitted as it comes."""
    missing_stream: Literal["wait"] = "wait"
    """What becomes of the places of a stream that has a share and plays nothing. `wait` (default, and all there is):
    the batch waits until it plays or its share is taken from it."""
    missing_stream_s: float = Field(default=60.0, ge=60, le=60)
    """Always 60: jobs on record have it, and nothing depends on it."""
    loss_weighting: Literal["episode", "token"] = "episode"
    """What weighs one in the loss: each `episode` (default), however many timelines and tokens it has, or each sampled
    `token`. An episode's own weight, given at its end, multiplies either. `dr_grpo` fixes it itself: each token weighs
    1 / max_context of an episode."""
    merging: Literal["auto", "tree", "linear", "none"] = "auto"
    """How the calls of an episode are merged for training; what is learned is the same. `none`: a row for each call.
    `linear`: calls that continue one another are one row. `tree`: what the rows of a group share is computed once,
    on a CPU alone. `auto` (default): `tree` where that saves at least an eighth of the tokens, on a CPU, and the model
    allows it, else `linear`."""
    micro_batch_tokens: int = Field(default=2048, ge=16, le=10_000_000)
    """Most tokens, padding included, in one forward and backward; what a step learns does not depend on it, its memory
    does, and an update for which it runs out is made again with half as many. A longer row goes alone, in a tree with
    what shares most of it. Default 2048: enough to fill a laptop's kernels."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the rest again: less memory, about a third more
    time. Default False."""
    lora_rank: int = Field(default=0, ge=0, le=1024)
    """Rank of the LoRA adapter (arXiv 2106.09685) that is trained on all linear layers in place of the weights. Default
    0: the weights themselves are trained."""
    lora_alpha: float = Field(default=32.0, gt=0, le=10_000)
    """The adapter's output is scaled by this over its rank. Default 32."""

    max_staleness: int = Field(default=0, ge=0, le=16)
    """Policy versions by which a trained token may be older than the weights it updates. 0 (default): a strict barrier;
    rollout and update alternate. 1 and more: they overlap. While one batch is learned the next ones, up to as many,
    are rolled out; generations that an update catches go on under the new weights."""
    rollout_correction: Literal["off", "truncate", "mask"] = "truncate"
    """What corrects for tokens that another policy sampled than the one an update begins with. `truncate` (default):
    each token's loss is weighed by the ratio of the two probabilities, at most `correction_cap`. `mask`: the same
    between 1 / `correction_cap` and `correction_cap`, and tokens outside are not trained. `off`: no weight; the clip
    compares with the policy that sampled."""
    correction_cap: float = Field(default=2.0, gt=1, le=1000)
    """Bound on that ratio. Default 2."""
    mismatch_limit: float = Field(default=1.1, gt=1, le=1000)
    """The training stops when learner and engine disagree: when, over tokens sampled by the very weights an update
    begins with, the mean of exp |difference of log-probs| is above this for 3 steps in a row, not
    counting steps with fewer than 32 such tokens. Default 1.1."""
    foreign_sampling: Literal["refuse", "neutralise"] = "refuse"
    """What a training call gets that asks for a sampling policy which is not the job's (another temperature, top_p,
    logit_bias, a forced tool, a response format, ...): `refuse` (default) answers 400 and names the field;
    `neutralise` samples as the job says and counts it."""

    max_tokens: int = Field(default=16, ge=1, le=1_000_000)
    """Most tokens one call may generate unless it asks for fewer, or less is left of `max_context`. Default 16."""
    mask_truncated: bool = False
    """Answers that a limit on tokens ended are not learned, as in DAPO's overlong filtering (arXiv 2503.14476, section
    3.4); their episodes' rewards count in the group's baseline as before. Default false."""
    max_context: int = Field(default=TINY_CONTEXT, ge=16, le=10_000_000)
    """Most tokens of prompt and answer together. Default 2048 for a tiny model, as many as it takes; 256 for a model of
    a folder, whose key-value cache grows with it: agents with tools want thousands."""
    max_concurrency: int = Field(default=64, ge=1, le=4096)
    """Sequences the engine advances at once, where `kv_cache_bytes` has room for as many. Default 64."""
    kv_cache_bytes: int = Field(default=4 << 30, ge=1 << 16)
    """Most bytes the engine's key-value cache takes. A sequence takes max_context tokens' worth; with room for fewer
    than max_concurrency of them, fewer advance at once. Default 4 GiB."""
    engine: Literal["slots"] = "slots"
    """Always `slots`: the local backend's engine, over a slot of its key-value cache for each sequence."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the local backend computes. `auto` (default): cuda, else mps, else cpu, whichever is there first."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Element type of the weights that serve and of activations. The optimiser's own copy is float32 either way.
    Default float32."""
    lease_ttl_s: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds without a call or heartbeat after which an episode is fenced and its slot is given away."""
    drain_timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds without a call or heartbeat after which a straggler is fenced, so that it does not hold the step up.
    Stragglers are the open episodes that a full batch waits for, once at least half as many have ended as the batch
    takes; one that is heard of is kept as long as its own client gave it (`timeout_s` of its begin). Once a batch is
    full the place of an episode whose team is undecided is given away after as long, and an evaluation's call that
    runs into an update is waited for as long. Default 30."""
    checkpoint_every: int = Field(default=20, ge=1)
    """Steps between checkpoints; the last step always writes one. Default 20."""
    checkpoints_kept: int = Field(default=2, ge=1, le=1000)
    """Checkpoints kept; older ones go, and with them the tokens of the samples they consumed. Default 2."""
    evaluate_after: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(), max_length=1000)
    """Steps, in growing order, after each of which training waits until `evaluation_episodes` evaluation episodes have
    ended that were played with its weights; no training episode begins meanwhile. Default: none. Somebody has to play
    them: a study's evaluator does, or `swarm.environments evaluate --during`."""
    eval_every: int | None = Field(default=None, ge=1, le=1_000_000)
    """Training waits so after each so-many-th step, the last one too where it is one. A checkpoint is saved before each
    such evaluation, and the one that was evaluated best is kept until another is better: its score is the best of
    several noisy ones, and so too high (docs/checkpoints.md). Default None: no such evaluations. Not together with
    `evaluate_after`, which names its steps one by one and keeps no best. `ajet client run --evaluations` plays
    them."""
    evaluation_episodes: int = Field(default=64, ge=1, le=65_536)
    """Evaluation episodes that training waits for after each step of `evaluate_after` or `eval_every`. Default 64."""
    external_advantages: bool = False
    """Before each update training waits for the advantages of the batch's episodes, which a client computes from their
    rewards in place of the algorithm (`GET` and `POST /advantages`; `swarm.environments play --slot`); the algorithm
    still says what the clip holds. Default false."""
    lineage: str | None = Field(default=None, min_length=1, max_length=128)
    """Tells this training from others of the same job on one server: each name is a training with checkpoints and steps
    of its own. A study that trains on servers elsewhere gives it. With it a server loads no model folder but one of
    `sha256`. Default None."""
    verl: VerlFields | None = None
    """What the backend `verl` has of its own: Ray's address, how many learn and answer.
    Default None: that of each field. Other backends refuse it."""
    train_agents: tuple[AgentName, ...] = Field(default=(), max_length=32)
    """Which agents of an episode are trained, by the names that they send with their calls (docs/swarm.md). Calls of
    others, and of those that say no name, are context alone. Default: all calls are trained."""
    tracking: Tracking | None = None
    """Where metrics go; None logs to the server's own log only."""

    @model_validator(mode="before")
    @classmethod
    def _gather_knobs(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not (knobs := knobs_of(value)):
            return value
        rest = {name: held for name, held in value.items() if not name.startswith(KNOB)}
        return {**rest, "environment_args": {**(rest.get("environment_args") or {}), **knobs}}

    # without a return type, which would be all that the schema of a job says
    _spread_knobs = model_serializer(mode="wrap")(lambda self, dump: spread_knobs(dump(self)))

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        batch, steps, after, every = self.episodes_per_step, self.steps, list(self.evaluate_after), self.eval_every
        agents = list(self.train_agents)
        checks = (
            (batch % self.group_size, "episodes_per_step must be a multiple of group_size",
             f"{batch} and {self.group_size}"),
            (self.minibatches > batch,
             "minibatches must be at most episodes_per_step, as each has one episode at least",
             f"{self.minibatches} and {batch}"),
            (self.lr_warmup_steps > steps, "lr_warmup_steps must be at most steps, or learning_rate is never reached",
             f"{self.lr_warmup_steps} and {steps}"),
            (after != sorted(set(after)), "evaluate_after must be steps in growing order", after),
            (after and every is not None, "expected evaluate_after or eval_every",
             f"both ({after} and {every}): leave one of them out"),
            (every is not None and every > steps, "expected an eval_every of at most steps, or nothing is evaluated",
             f"{every} and {steps}"),
            (len(set(agents)) < len(agents), "expected each name in train_agents once", agents),
        )  # fmt: skip
        for wrong, expected, found in checks:
            if wrong:
                raise ValueError(f"{expected}; found {found}")
        return self

    @model_validator(mode="after")
    def _check_verl(self) -> Self:
        if self.verl is not None and self.backend != "verl":
            raise ValueError(f"`verl` holds fields of the backend verl; found the backend {self.backend!r}")
        if self.backend == "verl" and not 0.01 <= self.temperature <= 2:
            raise ValueError(f"the backend verl samples at temperatures from 0.01 to 2; found {self.temperature:g}")
        if self.backend == "verl" and self.merging == "tree":
            raise ValueError("the backend verl learns rows, no trees: merging auto, linear or none; found 'tree'")
        if self.verl is not None and self.verl.colocated and self.max_staleness:
            raise ValueError(
                "verl.colocated: expected a max_staleness of 0, as learners and replicas take turns on their devices; "
                f"found {self.max_staleness}: make it 0, or leave colocated out"
            )
        if self.verl is not None:
            known = type(self).model_fields.items()
            defaults = {name: field.get_default(call_default_factory=True) for name, field in known}
            # by value: a record says every field, and would be refused for what nobody asked
            self.verl.require_meaning(
                {name: getattr(self, name) for name, default in defaults.items() if getattr(self, name) != default}
            )
        return self

    @model_validator(mode="after")
    def _fill_model_defaults(self, info: ValidationInfo) -> Self:
        """Fill what depends on the model and backend; what a record says of a tiny model's heads stands."""
        model, own = self.model, self.__dict__  # of a value that nobody has seen yet
        asked = is_record(info) or "head_size" in model.model_fields_set
        if self.backend == "verl" and isinstance(model, TinyModel) and not asked:
            own["model"] = model.model_copy(update={"head_size": 32})
        if isinstance(model, PathModel) and "max_context" not in self.model_fields_set:
            own["max_context"] = 256
        if "learning_rate" not in self.model_fields_set:
            own["learning_rate"] = default_learning_rate(model, self.lora_rank)
        return self

    @classmethod
    def default_fields(cls, model: ModelSpec, lora_rank: int = 0) -> dict[str, Any]:
        """Return, as JSON values, what fields are where a job of this model does not say them."""
        own = {"model": TinyModel().model_dump(mode="json"), "lora_rank": cls().lora_rank}
        return {**cls(model=model, lora_rank=lora_rank).model_dump(mode="json"), **own}

    @property
    def tasks_per_step(self) -> int:
        """Groups in one batch."""
        return self.episodes_per_step // self.group_size

    @property
    def verl_fields(self) -> VerlFields:
        """`verl`, or its defaults where that says nothing."""
        return self.verl or VerlFields()

    @property
    def sequences_at_once(self) -> int:
        """Most sequences that engines advance at once, all replicas together."""
        return self.max_concurrency * (self.verl_fields.replicas if self.backend == "verl" else 1)

    def trains(self, agent: str) -> bool:
        """Return whether calls of an agent of this name, "" where it says none, are trained."""
        return not self.train_agents or agent in self.train_agents

    def keeps_best_of(self, step: int) -> bool:
        """Return whether the checkpoint of a step is one of those of which the best is kept, by `eval_every`."""
        return self.eval_every is not None and step > 0 and step % self.eval_every == 0

    def evaluates_after(self, step: int) -> bool:
        """Return whether training waits after a step until its weights were evaluated."""
        return self.keeps_best_of(step) or (step in self.evaluate_after and step < self.steps)

    def canonical(self) -> str:
        """Return the canonical JSON of the job: sorted keys, no spaces, `tracking` left out (it trains nothing)."""
        return json.dumps(self._without(_APART), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """Return the sha256 of `canonical()`, in hex: a field that is added later does not change it."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def equals(self, other: "Job") -> bool:
        """Return whether both mean the same training."""
        return self._without(_APART) == other._without(_APART)

    def continues(self, other: "Job") -> bool:
        """Return whether a training that `other` began goes on under this job: `steps` may differ, unless the learning
        rate's schedule runs over them, and what no step depends on (checkpoints, timeouts, memory, processes)."""
        may = _APART | _MAY_CHANGE | {"verl"} | ({"steps"} if self.lr_schedule == "constant" else set())
        mine, theirs = (job.verl_fields.model_dump(exclude=SPREAD) for job in (self, other))
        return self._without(may) == other._without(may) and mine == theirs

    def differences(self, other: "Job") -> tuple[str, ...]:
        """Return in words where this job is not `other`, field by field."""
        mine, theirs = (job.model_dump(mode="json", exclude=_APART) for job in (self, other))
        pairs = ((name, mine.get(name), theirs.get(name)) for name in {**mine, **theirs})  # of knobs only what is set
        return tuple(f"{name} {own!r}, not {other!r}" for name, own, other in pairs if own != other)

    def _without(self, fields: set[str]) -> dict[str, Any]:
        return {name: content for name, content in self.value().items() if name not in fields}


def knobs_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the fields of a job, as they are written, say of the environment's knobs, by the knobs' names."""
    return {name.removeprefix(KNOB): value for name, value in fields.items() if name.startswith(KNOB)}


@cache
def tunables() -> Mapping[str, Tunable]:
    """Return the fields of `Job` a study may vary, by field name, in the job's order."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for own in table.values():
        own |= {name: tuple(own[name]) for name in ("synonyms", "ladder")}
        own["values"] = {value: tuple(names) for value, names in own.get("values", {}).items()}
    return {name: Tunable(**own) for name, own in table.items()}
