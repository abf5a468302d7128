"""One training step, from a batch to new weights, over whatever computes log-probs and gradients.

Each optimiser step is normalised over its own minibatch of whole episodes, however a backend cuts it; weight 0 changes
nothing. A failed update, such as one with a loss or gradient that is not finite, is a BackendError and leaves weights,
optimiser, order and version as they were. A backend implements the abstract methods of `PolicyLearner`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swarm.algorithms.advantages import call_advantages
from swarm.algorithms.losses import MismatchGuard, minibatches, token_weights
from swarm.algorithms.objective import Objective, UpdateCost, UpdateSums, advantage_metrics
from swarm.algorithms.rows import Row, flatten_tokens, tokens_by_call, train_rows
from swarm.backends.protocols import Batch, NotFinite, TrainEpisode
from swarm.job import Job
from swarm.rendering.messages import BackendError

CPU = torch.device("cpu")


def step_size(job: Job, version: int) -> float:
    """Return AdamW's step size for the update of `version`: as `transformers.get_scheduler` has it after warm-up."""
    if version < job.lr_warmup_steps:
        return job.learning_rate * version / job.lr_warmup_steps
    if job.lr_schedule == "constant":
        return job.learning_rate
    done = min(1.0, (version - job.lr_warmup_steps) / max(1, job.steps - job.lr_warmup_steps))
    falling = 1 - done if job.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return job.learning_rate * (job.lr_final_fraction + (1 - job.lr_final_fraction) * falling)


@dataclass(slots=True)
class PolicyUpdate:
    """What one update works on and counts: `rows` and `advantages` stand as `episodes` do."""

    episodes: Sequence[TrainEpisode]
    rows: Sequence[Sequence[Row]]
    advantages: Sequence[float]
    step_size: float
    cost: UpdateCost
    sums: UpdateSums
    norms: list[float] = field(default_factory=list)
    """Of the gradient, before it was clipped, at each optimiser step so far."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Those that a backend adds."""

    @property
    def all_rows(self) -> list[Row]:
        return [row for own in self.rows for row in own]


class PolicyLearner(ABC):
    """Implements `Learner.update`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._objective = Objective(job)
        self._guard = MismatchGuard(job.mismatch_limit)
        self._order = torch.Generator().manual_seed(job.seed)
        self.use_devices: Callable[[], AbstractContextManager[None]] = nullcontext
        """What an update computes within: its turn, where it shares devices with what generates."""

    @property
    @abstractmethod
    def version(self) -> int: ...
    @abstractmethod
    def _compute_logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> Iterable[tuple[Row, Tensor]]:
        """Yield each row, in any order, with the log-probs (K,) of its tokens: of present weights, or the reference."""

    @abstractmethod
    def _begin_steps(self, *, undoable: bool) -> None:
        """Prepare for optimiser steps; `undoable`: one may fail after another was made."""

    @abstractmethod
    def _gradient(self, rows: Sequence[Row], weights: Sequence[float], update: PolicyUpdate) -> None:
        """Leave the gradient of a minibatch's rows with the optimiser, and count it in `update.sums` and its cost.
        `weights`: of a token, by episode. Raises NotFinite where the loss is no finite number."""

    @abstractmethod
    def _step(self, size: float, *, last: bool) -> float:
        """Clip the gradient and change the weights by it; return the norm it had. Not finite: nothing is changed."""

    @abstractmethod
    def _undo_steps(self) -> None:
        """Put weights and optimiser back as they were at `_begin_steps`."""

    @abstractmethod
    def _keep_steps(self) -> None:
        """End an update all of whose steps were made: what `_undo_steps` needs may be forgotten."""

    def update(self, batch: Batch) -> dict[str, float]:
        if not batch.episodes:
            raise BackendError(f"step {batch.step}: expected a batch of episodes, found none")
        # those of weight 0 belong to no group and train nothing
        batch = replace(batch, episodes=tuple(episode for episode in batch.episodes if episode.weight > 0))
        rows = train_rows(batch.episodes)
        counts = [tokens_by_call(own) for own in rows]
        given = [episode.advantage for episode in batch.episodes if episode.advantage is not None]
        values, by_call = (given, {}) if given else self._advantages(batch.episodes, counts)
        for number, advantages in by_call.items():
            for row in rows[number]:
                if row.calls is not None:
                    row.advantages = torch.tensor([advantages[call] for call in row.calls.tolist()])
        update = PolicyUpdate(
            episodes=batch.episodes, rows=rows, advantages=values, step_size=step_size(self._job, self.version),
            cost=UpdateCost(sum(sum(own.values()) for own in counts)),
            sums=UpdateSums(self.version, self._job.correction_cap),
        )  # fmt: skip
        with self.use_devices():
            self._fill_logprobs(update)
            self._train(update)
        update.sums.add(grad_norm=torch.tensor(update.norms, dtype=torch.float64).sum())
        return {
            **update.sums.metrics(),
            **advantage_metrics(update.advantages),
            **update.cost.metrics(),
            **update.metrics,
            "actor/lr": update.step_size,
        }

    def _advantages(
        self, episodes: Sequence[TrainEpisode], counts: Sequence[Mapping[int, int]]
    ) -> tuple[list[float], Mapping[int, Mapping[int, float]]]:
        return call_advantages(self._job, episodes, counts)

    def _fill_logprobs(self, update: PolicyUpdate) -> None:
        rows = update.all_rows
        if self._job.kl_coef > 0:
            with update.cost.measure("ref"):
                for row, logprobs in self._compute_logprobs(rows, reference=True):
                    row.reference = logprobs
        if self._needs_proximal(rows):
            with update.cost.measure("old_log_prob"):
                for row, logprobs in self._compute_logprobs(rows):
                    row.proximal = logprobs

    def _needs_proximal(self, rows: Sequence[Row]) -> bool:
        return self._objective.needs_proximal(stale=any(bool((row.versions != self.version).any()) for row in rows))

    def _train(self, update: PolicyUpdate) -> None:
        order = self._order.get_state()
        steps = [
            chosen
            for _ in range(self._job.epochs)
            for chosen in minibatches(len(update.episodes), self._job.minibatches, self._order)
        ]
        try:
            with update.cost.measure("update_actor"):
                self._begin_steps(undoable=len(steps) > 1)
                counts = [sum(len(row.targets) for row in own) for own in update.rows]
                for number, minibatch in enumerate(steps, 1):
                    rows = [row for episode in minibatch for row in update.rows[episode]]
                    shares = [0.0] * len(counts)
                    for episode in minibatch:
                        shares[episode] = update.episodes[episode].weight
                    self._gradient(rows, token_weights(self._job, counts, shares), update)
                    if number == 1:
                        self._guard.check(update.sums.mismatch, update.sums.fresh)
                    norm = self._step(update.step_size, last=number == len(steps))
                    if not math.isfinite(norm):
                        raise NotFinite(f"the gradient's norm is {norm}: the update was refused, the weights kept")
                    update.norms.append(norm)
                    update.sums.steps = number
            self._keep_steps()
        except Exception:
            self._order.set_state(order)
            self._undo_steps()
            raise

    def _fill_sequences(
        self, rows: Sequence[Row], weights: Sequence[float], update: PolicyUpdate, *, spread: bool
    ) -> None:
        for row in rows:
            row.sequence = None
        if rows and spread and self._objective.needs_sequences:
            scored = list(self._compute_logprobs(rows))
            parts = [(present, flatten_tokens([row], update.advantages, weights, CPU)) for row, present in scored]
            for (row, _), sequence in zip(scored, self._objective.sequences(parts), strict=True):
                row.sequence = sequence

    def _facts(self) -> dict[str, Any]:
        return {"version": self.version, "lora_rank": self._job.lora_rank, "mismatch": self._guard.above}

    def _require_rank(self, folder: Path, facts: Mapping[str, Any]) -> None:
        rank = facts.get("lora_rank", 0)
        if rank != self._job.lora_rank:
            raise BackendError(
                f"the checkpoint {folder} is of lora_rank {rank}, the job of {self._job.lora_rank}: "
                f"load it into the job that wrote it"
            )
