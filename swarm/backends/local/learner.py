"""The local learner: policy gradients on the policy's own module; AdamW with fp32 copies.

Each optimiser step is normalised over its own minibatch of whole episodes, however it is cut; weight 0 changes nothing.
A failed update, such as one with a loss or gradient that is not finite, is a BackendError and leaves weights,
optimiser, order and version as they were. `load` after `save` continues bit-exactly on a CPU. Gradient sums, moments
and master weights are fp32. After warm-up the step size is `transformers.get_scheduler`'s of that name.

The engine may generate meanwhile: forward and backward hold the policy's lock for reading, weights are rewritten only
within an optimiser step (the caller of `step` and `load` holds the lock), and `version` grows with an update's last
step. So a token of version v was sampled by the weights of v, or by some between v and v + 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from swarm.algorithms.advantages import call_advantages
from swarm.algorithms.losses import minibatch_weights, minibatches
from swarm.algorithms.mismatch import MismatchGuard, diagnose_mismatch, find_mismatches
from swarm.algorithms.objective import Objective, UpdateCost, UpdateSums, batch_metrics
from swarm.algorithms.rows import Row, drop_zero_weight, flatten_tokens, set_call_advantages, tokens_by_call, train_rows
from swarm.backends.local import checkpoint
from swarm.backends.local.micro_batch import Layout, MicroBatch, compute_logprobs, vocabulary_logprobs
from swarm.backends.local.policy import Policy, frozen_copy, recompute_layers, trainable_parameters
from swarm.backends.local.reference import PlainModel, plain_weights
from swarm.backends.protocols import Batch, NotFinite, TrainEpisode
from swarm.job import Job
from swarm.rendering.messages import BackendError


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies, in the host's memory, of what an optimiser has changed so far."""

    masters: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]


class Optimizer:
    """AdamW with clipping by the global norm; the step size is given at each step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, weight_decay: float, max_grad_norm: float) -> None:
        self._weights = dict(parameters)
        self._masters = {
            name: (weight if weight.dtype == torch.float32 else nn.Parameter(weight.detach().float()))
            for name, weight in self._weights.items()
        }
        self._max_grad_norm = max_grad_norm
        self._adamw = torch.optim.AdamW(self._masters.values(), lr=0.0, weight_decay=weight_decay, fused=True)

    @property
    def masters(self) -> Mapping[str, Tensor]:
        return self._masters

    def moments(self) -> Mapping[str, Tensor]:
        """Return AdamW's state by `PARAMETER/KEY`; it is empty before the first step."""
        names = list(self._masters)
        state = self._adamw.state_dict()["state"]
        return {f"{names[i]}/{key}": value for i, slot in state.items() for key, value in slot.items()}

    def begin(self) -> None:
        self._adamw.zero_grad()
        for weight in self._weights.values():
            weight.grad = None

    def gather(self) -> None:
        """Add a backward pass's gradients to the fp32 sums: over many passes, bf16 would lose the small ones."""
        for weight, master in self._lower_precision():
            if weight.grad is not None:
                fresh = weight.grad.float()
                master.grad = fresh if master.grad is None else master.grad.add_(fresh)
                weight.grad = None

    def clip(self) -> Tensor:
        """Scale the gradient down to the greatest norm allowed; return the norm () it had."""
        return torch.nn.utils.clip_grad_norm_(self._masters.values(), self._max_grad_norm)

    def step(self, step_size: float) -> None:
        for group in self._adamw.param_groups:
            group["lr"] = step_size
        self._adamw.step()
        self._serve()

    def snapshot(self) -> HostCopies:
        return HostCopies(_copies(self._masters), _copies(self.moments()))

    @torch.no_grad()
    def load(self, masters: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Put weights and AdamW's state back; the names and shapes are those of `masters` and `moments`."""
        for name, master in self._masters.items():
            master.copy_(masters[name])
        index = {name: i for i, name in enumerate(self._masters)}
        state: dict[int, dict[str, Tensor]] = {}
        for path, value in moments.items():
            name, key = path.rsplit("/", 1)
            state.setdefault(index[name], {})[key] = value
        self._adamw.load_state_dict({"state": state, "param_groups": self._adamw.state_dict()["param_groups"]})
        self._serve()

    @torch.no_grad()
    def _serve(self) -> None:
        for weight, master in self._lower_precision():
            weight.copy_(master)

    def _lower_precision(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        pairs = zip(self._weights.values(), self._masters.values(), strict=True)
        return [(weight, master) for weight, master in pairs if weight is not master]


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def step_size(job: Job, version: int) -> float:
    """Return AdamW's step size for the update that makes `version` into the next one."""
    if version < job.lr_warmup_steps:
        return job.learning_rate * version / job.lr_warmup_steps
    done = min(1.0, (version - job.lr_warmup_steps) / max(1, job.steps - job.lr_warmup_steps))
    return job.learning_rate * _decay(job, done)


def _decay(job: Job, done: float) -> float:
    """Return the fraction of the step size when the fraction `done` of the steps after warm-up is made."""
    if job.lr_schedule == "constant":
        return 1.0
    falling = 1 - done if job.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return job.lr_final_fraction + (1 - job.lr_final_fraction) * falling


@dataclass(frozen=True, slots=True)
class _Update:
    """What one update works on and counts: `rows` and `advantages` stand as `episodes` do."""

    episodes: Sequence[TrainEpisode]
    rows: Sequence[Sequence[Row]]
    advantages: Sequence[float]
    step_size: float
    sums: UpdateSums
    cost: UpdateCost


class LocalLearner:
    """Implements `Learner`. `generators` are saved and restored with it: whatever else draws in this backend."""

    def __init__(self, policy: Policy, job: Job, generators: Mapping[str, torch.Generator]) -> None:
        self._policy = policy
        self._job = job
        self._objective = Objective(job)
        self._layout = Layout(policy, job)
        self._guard = MismatchGuard(job.mismatch_limit)
        self._order = torch.Generator().manual_seed(job.seed)
        self._generators = {"order": self._order, **generators}
        self._optimizer = Optimizer(
            trainable_parameters(policy.model), weight_decay=job.weight_decay, max_grad_norm=job.max_grad_norm
        )
        self._reference = Policy(frozen_copy(policy.model), policy.device) if job.kl_coef > 0 else None
        if job.gradient_checkpointing:
            recompute_layers(policy.model)
            if policy.fused:  # it looks at the layers' forwards, which are others now
                policy.fuse()

    @property
    def version(self) -> int:
        return self._policy.version

    def update(self, batch: Batch) -> Mapping[str, float]:
        """Make one training step: `epochs` passes over the batch, each in `minibatches` optimiser steps."""
        if not batch.episodes:
            raise BackendError(f"step {batch.step}: expected a batch of episodes, found none")
        batch = drop_zero_weight(batch)
        update = self._begin(batch)
        self._fill_logprobs(update)
        with update.cost.measure("update_actor"):
            self._train(update)
        return {
            **update.sums.metrics(),
            **batch_metrics(batch, update.advantages),
            **update.cost.metrics(),
            **self._layout.metrics(),
            "rollouter/fused": float(self._policy.fused),
            "actor/lr": update.step_size,
        }

    def _begin(self, batch: Batch) -> _Update:
        rows = train_rows(batch.episodes)
        counts = [tokens_by_call(own) for own in rows]
        values, by_call = call_advantages(self._job, batch.episodes, counts)
        for number, own in by_call.items():
            set_call_advantages(rows[number], own)
        sums = UpdateSums(self.version, self._job.correction_cap)
        cost = UpdateCost(sum(sum(own.values()) for own in counts))
        return _Update(batch.episodes, rows, values, step_size(self._job, self.version), sums, cost)

    def save(self, folder: Path) -> None:
        """Write all of it, atomically. Only the generators, from which an engine draws, need the lock: for a moment."""
        with self._policy.lock.writing():
            random = {name: generator.get_state() for name, generator in self._generators.items()}
        sets = {"model": self._optimizer.masters, "optimizer": self._optimizer.moments(), "random": random}
        facts = {"version": self._policy.version, "lora_rank": self._job.lora_rank, "mismatch": self._guard.state}
        checkpoint.write(folder, checkpoint.Checkpoint(sets, facts))

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; raise BackendError, and change nothing, if it is not whole or does not fit."""
        saved = checkpoint.read(folder)
        self._require_fit(folder, saved)
        with self._policy.rewriting():
            self._optimizer.load(saved.sets["model"], saved.sets.get("optimizer", {}))
            for name, generator in self._generators.items():
                generator.set_state(saved.sets["random"][name])
            self._policy.version = int(saved.facts["version"])
            self._guard.restore(int(saved.facts.get("mismatch", 0)))

    def _require_fit(self, folder: Path, saved: checkpoint.Checkpoint) -> None:
        rank = saved.facts.get("lora_rank", 0)
        if rank != self._job.lora_rank:
            raise BackendError(
                f"the checkpoint {folder} is of lora_rank {rank}, the job of {self._job.lora_rank}: "
                f"load it into the job that wrote it"
            )
        model, random = saved.sets.get("model", {}), saved.sets.get("random", {})
        if _shapes(model) != _shapes(self._optimizer.masters) or set(random) != set(self._generators):
            raise BackendError(f"the checkpoint {folder} is of another model: load it into the job that wrote it")

    def _fill_logprobs(self, update: _Update) -> None:
        """Fill in, once for all epochs, what the loss compares with: the reference and the weights of this moment."""
        rows, temperature = [row for own in update.rows for row in own], self._job.temperature
        if self._reference is not None:
            with update.cost.measure("ref"):
                for row, logprobs in compute_logprobs(self._reference, self._layout.micro_batches(rows), temperature):
                    row.reference = logprobs
        stale = any(bool((row.versions != self.version).any()) for row in rows)
        if self._objective.needs_proximal(stale=stale):
            with update.cost.measure("old_log_prob"):
                for row, logprobs in compute_logprobs(self._policy, self._layout.micro_batches(rows), temperature):
                    row.proximal = logprobs

    def _train(self, update: _Update) -> None:
        """Make all optimiser steps, or none: what fails on the way is undone."""
        order = self._order.get_state()
        steps = [
            chosen
            for _ in range(self._job.epochs)
            for chosen in minibatches(len(update.episodes), self._job.minibatches, self._order)
        ]
        before = self._optimizer.snapshot() if len(steps) > 1 else None
        try:
            for number, chosen in enumerate(steps, 1):
                self._gradient(chosen, update)
                self._step(update.step_size, last=number == len(steps))
        except Exception:
            self._order.set_state(order)
            if before is not None:
                with self._policy.rewriting():
                    self._optimizer.load(before.masters, before.moments)
            raise

    def _gradient(self, chosen: Sequence[int], update: _Update) -> None:
        """Leave the clipped gradient of a minibatch of whole episodes with the optimiser."""
        counts = [sum(len(row.targets) for row in own) for own in update.rows]
        weights = minibatch_weights(self._job, counts, [each.weight for each in update.episodes], chosen)
        micros = list(self._layout.micro_batches([row for number in chosen for row in update.rows[number]]))
        sequences = self._sequences(micros, weights, update)
        self._optimizer.begin()
        for micro, sequence in zip(micros, sequences, strict=True):
            with self._policy.lock.reading():
                self._backward(micro, weights, sequence, update)
            self._optimizer.gather()
        norm = self._optimizer.clip()
        if not math.isfinite(norm.item()):
            raise NotFinite(f"the gradient's norm is {norm.item()}: the update was refused, the weights kept")
        if update.sums.steps == 0:
            self._guard.check(update.sums.mismatch, update.sums.fresh, partial(self._diagnose_mismatch, update))
        update.sums.steps += 1
        update.sums.add(grad_norm=norm)

    def _diagnose_mismatch(self, update: _Update) -> str:
        rows, job = [row for own in update.rows for row in own], self._job
        found = find_mismatches(
            compute_logprobs(self._policy, self._layout.micro_batches(rows), job.temperature), self.version
        )
        with self._policy.lock.reading():
            plain = PlainModel(self._policy.config, [plain_weights(self._policy.model)])
        return diagnose_mismatch(found, plain.logprobs, job.temperature, job.mismatch_limit, job.dtype)

    def _sequences(
        self, micros: Sequence[MicroBatch], weights: Sequence[float], update: _Update
    ) -> Sequence[Tensor | None]:
        """Return each micro-batch's `Tokens.sequence`, where the loss needs what one of them alone does not hold."""
        if len(micros) < 2 or not self._objective.needs_sequences:
            return [None] * len(micros)
        device, temperature = self._policy.device, self._job.temperature
        present = [torch.cat([found for _, found in compute_logprobs(self._policy, [m], temperature)]) for m in micros]
        tokens = [flatten_tokens(micro.rows, update.advantages, weights, device) for micro in micros]
        return self._objective.sequences([(p.to(device), own) for p, own in zip(present, tokens, strict=True)])

    def _backward(self, micro: MicroBatch, weights: Sequence[float], sequence: Tensor | None, update: _Update) -> None:
        tokens = flatten_tokens(micro.rows, update.advantages, weights, self._policy.device)
        tokens = replace(tokens, sequence=sequence)
        every = vocabulary_logprobs(self._policy, micro, self._job.temperature)
        loss = self._objective.loss(every, tokens, _reference(micro, every.device), update.sums)
        if not math.isfinite(loss.item()):
            raise NotFinite(f"the loss is {loss.item()}: the update was refused and the weights are as before")
        torch.autograd.backward(loss)
        update.cost.forward += micro.tokens

    def _step(self, size: float, *, last: bool) -> None:
        with self._policy.rewriting():
            self._optimizer.step(size)
            self._policy.version += last


def _reference(micro: MicroBatch, device: torch.device) -> Tensor | None:
    known = [row.reference for row in micro.rows if row.reference is not None]
    return torch.cat(known).to(device) if known else None


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}
