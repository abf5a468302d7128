"""The job: everything that decides what a swarm server trains, as one frozen, validated value.

Two jobs with equal fields describe the same training; nothing else (environment variables, client flags)
changes what is learned. A field that a study may vary carries a `Tunable`: the words it is known by in the
field and the values worth trying. `ajet job explain` prints this file's descriptions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


@dataclass(frozen=True, slots=True)
class Tunable:
    """Marks a job field that a study may vary.

    `synonyms` are how people name it in a topic (lower case). `ladder` holds sensible values in ascending
    order (for a switch: False, True); the default is one of them, and a design without explicit values
    compares the default with a neighbour on the ladder.
    """

    synonyms: tuple[str, ...]
    ladder: tuple[Any, ...]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TinyModel(_Frozen):
    """A tiny causal LM made on the spot from a seed: nothing is downloaded, and it is cached by its hash."""

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


class PathModel(_Frozen):
    """A Hugging Face causal LM in a local folder (config, safetensors, tokenizer with a chat template)."""

    kind: Literal["path"] = "path"
    """Always `path`."""
    path: str
    """Folder of the model."""


ModelSpec = Annotated[TinyModel | PathModel, Field(discriminator="kind")]


class Tracking(_Frozen):
    """Where the server logs its metrics: a Weights & Biases run, written offline unless told otherwise."""

    project: str = "ajet"
    """W&B project. Default `ajet`."""
    group: str | None = None
    """W&B group; a study puts its id here, so that all its runs stand together."""
    name: str | None = None
    """Display name of the W&B run."""
    run_id: str | None = None
    """W&B run id; given by the harness so that the run can be found again."""
    directory: str = "."
    """Folder under which W&B writes its `wandb/` folder."""
    mode: Literal["offline", "online"] = "offline"
    """`offline` (default) sends nothing anywhere; `online` needs a logged-in user on the server's machine."""
    config: Mapping[str, Any] = Field(default_factory=dict)
    """Extra config entries (study, design hash, arm, ...) stored with the run."""


class Job(_Frozen):
    """What a swarm server trains: model, environment, algorithm, batch, optimiser and limits."""

    environment: str = "guess"
    """Name of the environment the model is warm-started on and the built-in agents play. Default `guess`."""
    model: ModelSpec = Field(default_factory=TinyModel)
    """The trainable model: made on the spot (`tiny`) or read from a folder (`path`)."""
    backend: Literal["local", "fake"] = "local"
    """`local`: torch, one module shared by engine and learner. `fake`: scripted, for tests; learns nothing."""
    algorithm: Literal["grpo"] = "grpo"
    """Policy-gradient algorithm. `grpo`: group-relative advantages (arXiv 2402.03300), clipped ratio."""
    seed: int = 0
    """Seeds sampling and the order of tasks; the model's own seed is apart. Default 0."""

    steps: Annotated[int, Tunable(("training steps", "steps", "longer training", "train longer"), (20, 40, 80))] = (
        Field(default=40, ge=1, le=1_000_000)
    )
    """Training steps (policy updates from one batch each). Default 40."""
    episodes_per_step: Annotated[
        int,
        Tunable(("episodes per step", "batch size", "batchsize", "rollout batch", "batch"), (32, 64, 128, 256)),
    ] = Field(default=128, ge=2, le=65_536)
    """Episodes in one batch; the number of tasks in it is this over `group_size`. Default 128."""
    group_size: Annotated[
        int,
        Tunable(
            ("group size", "group sizes", "rollouts per prompt", "rollouts per task", "samples per prompt",
             "samples per task", "num_repeat", "num generations", "group"),
            (2, 4, 8, 16),
        ),
    ] = Field(default=8, ge=2, le=1024)  # fmt: skip
    """Episodes of one task in a batch; their mean reward is the baseline of each. Default 8."""
    learning_rate: Annotated[
        float,
        Tunable(("learning rate", "learning rates", "lr", "step size"), (3e-4, 1e-3, 3e-3)),
    ] = Field(default=1e-3, gt=0, le=1)
    """AdamW's step size, constant. Default 1e-3 (for the tiny model; large models want 1e-6 to 1e-5)."""
    temperature: Annotated[
        float, Tunable(("sampling temperature", "rollout temperature", "temperature"), (0.7, 1.0, 1.3))
    ] = Field(default=1.0, gt=0, le=5)
    """Sampling temperature of training episodes; the learner applies the same. Default 1.0."""
    epochs: Annotated[
        int, Tunable(("ppo epochs", "update epochs", "epochs per batch", "epochs", "sample reuse"), (1, 2, 4))
    ] = Field(default=1, ge=1, le=64)
    """Passes of the optimiser over one batch. Default 1."""
    minibatches: Annotated[int, Tunable(("minibatches", "mini-batches", "mini batches", "minibatch"), (1, 2, 4))] = (
        Field(default=1, ge=1, le=1024)
    )
    """Optimiser steps a batch is split into per epoch. Nothing is dropped to make a batch divide evenly: minibatches
    may differ by an episode, and a learner that needs a multiple fills up with episodes of weight 0. Default 1:
    purely on-policy."""
    clip_ratio: Annotated[
        float, Tunable(("clip ratio", "clip range", "clipping", "ppo clip", "clip"), (0.1, 0.2, 0.4))
    ] = Field(default=0.2, gt=0, le=10)
    """Half-width of the trust region on the probability ratio (PPO's epsilon). Default 0.2."""
    kl_coef: Annotated[
        float,
        Tunable(("kl coefficient", "kl penalty", "kl regularization", "kl regularisation", "kl"), (0.0, 0.01, 0.1)),
    ] = Field(default=0.0, ge=0, le=10)
    """Weight of the KL to the initial policy (k3 estimator). Default 0: off, no reference model is kept."""
    entropy_coef: Annotated[
        float, Tunable(("entropy bonus", "entropy coefficient", "entropy regularization", "entropy"), (0.0, 0.01))
    ] = Field(default=0.0, ge=0, le=10)
    """Weight of the entropy bonus. Default 0."""
    normalize_advantage: Annotated[
        bool,
        Tunable(
            ("advantage normalization", "advantage normalisation", "std normalization", "std normalisation",
             "normalizing advantages", "dr. grpo", "dr grpo"),
            (False, True),
        ),
    ] = True  # fmt: skip
    """Divide a group's advantages by their standard deviation (GRPO); False is Dr. GRPO's choice. Default True."""
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
    are 4/3/3 in every batch. Places of a stream that plays nothing are held until drain_timeout_s after all others are
    done, then lent and made up later (at most one batch). Shares may be changed while training. Default none: every
    stream is admitted as it comes."""
    loss_weighting: Literal["episode", "token"] = "episode"
    """What weighs one in the loss: each `episode` (default), however many timelines and tokens it has, or each sampled
    `token`. An episode's own weight, given at its end, multiplies either."""
    foreign_sampling: Literal["refuse", "neutralise"] = "refuse"
    """What a training call gets that asks for a sampling policy which is not the job's (another temperature, top_p,
    logit_bias, a forced tool, a response format, ...): `refuse` (default) answers 400 and names the field;
    `neutralise` samples as the job says and counts it."""

    max_tokens: int = Field(default=16, ge=1, le=1_000_000)
    """Most tokens one call may generate unless it asks for fewer. Default 16."""
    max_context: int = Field(default=256, ge=16, le=10_000_000)
    """Most tokens of prompt and answer together. Default 256."""
    max_concurrency: int = Field(default=64, ge=1, le=4096)
    """Sequences the engine advances at once. Default 64."""
    lease_ttl_s: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds without a call or heartbeat after which an episode is fenced and its slot is given away."""
    drain_timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    """Once a batch is full: seconds without a model call after which an open episode is fenced (and the place of one
    whose team is undecided is given away), so that it does not hold the step up. An evaluation's call that runs into
    an update is waited for as long. Default 30."""
    checkpoint_every: int = Field(default=20, ge=1)
    """Steps between checkpoints; the last step always writes one. Default 20."""
    checkpoints_kept: int = Field(default=2, ge=1, le=1000)
    """Checkpoints kept; older ones go, and with them the tokens of the samples they consumed. Default 2."""
    tracking: Tracking | None = None
    """Where metrics go; None logs to the server's own log only."""

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        if self.episodes_per_step % self.group_size:
            raise ValueError(
                f"episodes_per_step must be a multiple of group_size; "
                f"found {self.episodes_per_step} and {self.group_size}"
            )
        return self

    @property
    def tasks_per_step(self) -> int:
        """Groups in one batch."""
        return self.episodes_per_step // self.group_size

    def canonical(self) -> str:
        """Return the canonical JSON of the job: sorted keys, no spaces, `tracking` left out (it trains nothing)."""
        value = self.model_dump(mode="json", exclude={"tracking"})
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """Return the sha256 of `canonical()`, in hex."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def tunables() -> dict[str, Tunable]:
    """Return the fields of `Job` a study may vary, by field name, in the job's order."""
    found: dict[str, Tunable] = {}
    for name, field in Job.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, Tunable):
                found[name] = mark
    return found
