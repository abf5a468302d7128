"""The local learner: GRPO on the policy's own module, so that new weights serve at once.

Promises: every optimiser step is normalised over its own minibatch of whole episodes, by the job's loss weighting and
however it is cut into micro-batches; minibatches are as equal as they can be, so that none needs filling up; an
episode of weight 0 changes nothing at all; an update that meets a loss or gradient that is not finite raises
BackendError and leaves weights, optimiser and version as they were; `load` after `save` continues bit-exactly on a CPU.
Does not know how rows were captured or when it is called; it holds the policy's lock while it changes weights.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swarm.backends.local import checkpoint, grpo
from swarm.backends.local.metrics import Sums, batch_metrics
from swarm.backends.local.micro import MicroBatch, padded_rows
from swarm.backends.local.objective import Objective
from swarm.backends.local.policy import Policy
from swarm.backends.local.rows import Row, flat_tokens, train_rows, weighty
from swarm.backends.protocols import BackendError, Batch, TrainEpisode
from swarm.job import Job


class LocalLearner:
    """Implements `Learner`. `generators` are saved and restored with it: whatever else draws in this backend."""

    def __init__(self, policy: Policy, job: Job, generators: Mapping[str, torch.Generator]) -> None:
        self._policy = policy
        self._job = job
        self._objective = Objective(job)
        self._order = torch.Generator().manual_seed(job.seed)
        self._generators = {"order": self._order, **generators}
        self._parameters: dict[str, torch.nn.Parameter] = dict(policy.model.named_parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=job.learning_rate, weight_decay=job.weight_decay, fused=True
        )
        self._reference = Policy(copy.deepcopy(policy.model), policy.device) if job.kl_coef > 0 else None

    @property
    def version(self) -> int:
        """Policy version of the present weights."""
        return self._policy.version

    def update(self, batch: Batch) -> Mapping[str, float]:
        """Make one training step: `epochs` passes over the batch, each in `minibatches` optimiser steps."""
        begun = time.perf_counter()
        if not batch.episodes:
            raise BackendError(f"step {batch.step}: expected a batch of episodes, found none")
        batch = weighty(batch)
        values = grpo.group_advantages(
            [episode.reward for episode in batch.episodes],
            [episode.group for episode in batch.episodes],
            normalize=self._job.normalize_advantage,
        )
        with self._policy.rewriting():
            sums = self._train(batch.episodes, values) if batch.episodes else Sums()
            self._policy.version += 1
        return {
            **sums.metrics(),
            **batch_metrics(batch, values),
            "actor/lr": self._job.learning_rate,
            "timing_s/update_actor": time.perf_counter() - begun,
        }

    def save(self, folder: Path) -> None:
        """Write weights, optimiser, generators and version to `folder`, atomically."""
        with self._policy.lock.reading():
            state = self._optimizer.state_dict()["state"]
            names = list(self._parameters)
            sets = {
                "model": dict(self._parameters),
                "optimizer": {f"{names[i]}/{key}": value for i, slot in state.items() for key, value in slot.items()},
                "random": {name: generator.get_state() for name, generator in self._generators.items()},
            }
            checkpoint.write(folder, checkpoint.Checkpoint(sets, {"version": self._policy.version}))

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; raise BackendError, and change nothing, if it is not whole or does not fit."""
        saved = checkpoint.read(folder)
        model, random = saved.sets.get("model", {}), saved.sets.get("random", {})
        fits = {name: value.shape for name, value in model.items()} == {
            name: value.shape for name, value in self._parameters.items()
        }
        if not fits or set(random) != set(self._generators):
            raise BackendError(f"the checkpoint {folder} is of another model: load it into the job that wrote it")
        with self._policy.rewriting(), torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(model[name])
            self._load_optimizer(saved.sets.get("optimizer", {}))
            for name, generator in self._generators.items():
                generator.set_state(random[name])
            self._policy.version = int(saved.facts["version"])

    def _load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        index = {name: i for i, name in enumerate(self._parameters)}
        state: dict[int, dict[str, Tensor]] = {}
        for path, value in tensors.items():
            name, key = path.rsplit("/", 1)
            state.setdefault(index[name], {})[key] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _train(self, episodes: Sequence[TrainEpisode], values: Sequence[float]) -> Sums:
        several = self._job.epochs * self._job.minibatches > 1
        before = self._snapshot() if several else None
        rows, sums = train_rows(episodes), Sums()
        try:
            for _ in range(self._job.epochs):
                for chosen in self._minibatches(len(episodes)):
                    weights = self._weights(episodes, rows, set(chosen))
                    self._optimize([row for number in chosen for row in rows[number]], values, weights, sums)
        except BackendError:
            if before is not None:
                self._restore(before)
            raise
        return sums

    def _weights(
        self, episodes: Sequence[TrainEpisode], rows: Sequence[Sequence[Row]], chosen: set[int]
    ) -> list[float]:
        """Return the weight of a token of each episode in a minibatch of the `chosen` ones; 0 for all others."""
        return grpo.token_weights(
            [sum(len(row.targets) for row in own) for own in rows],
            [episode.weight if number in chosen else 0.0 for number, episode in enumerate(episodes)],
            self._job.loss_weighting,
        )

    def _snapshot(self) -> tuple[list[Tensor], dict[str, Any]]:
        return [value.detach().clone() for value in self._parameters.values()], copy.deepcopy(
            self._optimizer.state_dict()
        )

    @torch.no_grad()
    def _restore(self, before: tuple[list[Tensor], dict[str, Any]]) -> None:
        for parameter, value in zip(self._parameters.values(), before[0], strict=True):
            parameter.copy_(value)
        self._optimizer.load_state_dict(before[1])

    def _minibatches(self, episodes: int) -> Iterator[list[int]]:
        """Yield near-equal parts of a fresh permutation of the episodes: none dropped, none empty."""
        parts = min(self._job.minibatches, episodes)
        order = torch.randperm(episodes, generator=self._order) if parts > 1 else torch.arange(episodes)
        for part in order.tensor_split(parts):
            yield part.tolist()

    def _optimize(self, rows: Sequence[Row], values: Sequence[float], weights: Sequence[float], sums: Sums) -> None:
        """Make one optimiser step over the rows of whole episodes."""
        self._optimizer.zero_grad()
        for micro in padded_rows(rows, self._job.micro_batch_tokens):
            loss = self._loss(micro, values, weights, sums)
            if not math.isfinite(loss.item()):
                raise BackendError(f"the loss is {loss.item()}: the update was refused and the weights are as before")
            torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._job.max_grad_norm)
        if not math.isfinite(norm.item()):
            raise BackendError(f"the gradient's norm is {norm.item()}: the update was refused, the weights kept")
        self._optimizer.step()
        sums.steps += 1
        sums.add(grad_norm=norm)

    def _loss(self, micro: MicroBatch, values: Sequence[float], weights: Sequence[float], sums: Sums) -> Tensor:
        tokens = flat_tokens(micro.rows, values, weights, self._policy.device)
        reference = None
        if self._reference is not None:
            with torch.no_grad():
                reference = self._logprobs(self._reference, micro).gather(-1, tokens.targets[:, None])[:, 0]
        return self._objective.loss(self._logprobs(self._policy, micro), tokens, reference, sums)

    def _logprobs(self, policy: Policy, micro: MicroBatch) -> Tensor:
        """Return log-probs (M, V) at the places of a micro-batch, at the job's temperature."""
        return grpo.all_logprobs(policy.head(micro.features(policy)), self._job.temperature)
