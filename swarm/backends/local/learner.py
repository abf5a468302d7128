"""The local learner: policy gradients on the policy's own module; AdamW with fp32 copies.

`load` after `save` continues bit-exactly on a CPU. The engine may generate meanwhile: forward and backward hold the
policy's lock for reading, weights are rewritten only within an optimiser step, and `version` grows with an update's
last step. So a token of version v was sampled by the weights of v, or by some between v and v + 1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from swarm.algorithms.learner import PolicyLearner, PolicyUpdate
from swarm.algorithms.rows import Row, flatten_tokens
from swarm.backends.local import checkpoint
from swarm.backends.local.micro_batch import Layout, PackedRows, PaddedRows, compute_logprobs, score_tokens
from swarm.backends.local.policy import Policy, frozen_copy, recompute_layers, trainable_parameters
from swarm.backends.protocols import Batch, NotFinite
from swarm.job import Job
from swarm.rendering.messages import BackendError


class Optimizer:
    """AdamW with clipping by the global norm; the step size is given at each step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, weight_decay: float, max_grad_norm: float) -> None:
        self._weights = dict(parameters)
        self.masters = {
            name: (weight if weight.dtype == torch.float32 else nn.Parameter(weight.detach().float()))
            for name, weight in self._weights.items()
        }
        self._max_grad_norm = max_grad_norm
        self._adamw = torch.optim.AdamW(self.masters.values(), lr=0.0, weight_decay=weight_decay, fused=True)

    def moments(self) -> Mapping[str, Tensor]:
        names = list(self.masters)
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

    def clip(self) -> float:
        return torch.nn.utils.clip_grad_norm_(self.masters.values(), self._max_grad_norm).item()

    def step(self, step_size: float) -> None:
        for group in self._adamw.param_groups:
            group["lr"] = step_size
        self._adamw.step()
        self._serve()

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        masters, moments = (
            {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}
            for tensors in (self.masters, self.moments())
        )
        return masters, moments

    @torch.no_grad()
    def load(self, masters: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        for name, master in self.masters.items():
            master.copy_(masters[name])
        index = {name: i for i, name in enumerate(self.masters)}
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
        pairs = zip(self._weights.values(), self.masters.values(), strict=True)
        return [(weight, master) for weight, master in pairs if weight is not master]


MicroBatch = PaddedRows | PackedRows
_PASSES: Final = 3
"""A forward and a backward take as long as so many forwards."""
_FEW: Final = 0.2
"""Part of an update's rows for which laying them out once more does not pay."""


class LocalLearner(PolicyLearner):
    """Implements `Learner`. `generators` are saved and restored with it: whatever else draws in this backend."""

    def __init__(self, policy: Policy, job: Job, generators: Mapping[str, torch.Generator]) -> None:
        super().__init__(job)
        self.policy = policy
        self._layout = Layout(policy, job)
        self._generators = {"order": self._order, **generators}
        self._optimizer = Optimizer(
            trainable_parameters(policy.model), weight_decay=job.weight_decay, max_grad_norm=job.max_grad_norm
        )
        self._before: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        self._reference = Policy(frozen_copy(policy.model), policy.device) if job.kl_coef > 0 else None
        if job.gradient_checkpointing:
            recompute_layers(policy.model)

    @property
    def version(self) -> int:
        return self.policy.version

    def update(self, batch: Batch) -> dict[str, float]:
        """Make one update (`Learner.update`); where memory runs out it is made again in micro-batches of half the size,
        from weights as they were."""
        above = self._guard.above
        while True:
            try:
                return {**super().update(batch), **self._layout.metrics()}
            except torch.OutOfMemoryError:
                if self._before is not None or not self._layout.shrink():  # the steps made could not all be undone
                    raise
                self._guard.above = above
            torch.cuda.empty_cache()

    def save(self, folder: Path) -> None:
        """Write all of it, atomically. Only the generators, from which an engine draws, need the lock: for a moment."""
        with self.policy.lock.writing():
            random = {name: generator.get_state() for name, generator in self._generators.items()}
        sets = {"model": self._optimizer.masters, "optimizer": self._optimizer.moments(), "random": random}
        checkpoint.write(folder, checkpoint.Checkpoint(sets, self._facts()))

    def load(self, folder: Path) -> None:
        saved = checkpoint.read(folder)
        self._require_rank(folder, saved.facts)
        model, random = saved.sets.get("model", {}), saved.sets.get("random", {})
        shapes, own = ({n: value.shape for n, value in each.items()} for each in (model, self._optimizer.masters))
        if shapes != own or set(random) != set(self._generators):
            raise BackendError(f"the checkpoint {folder} is of another model: load it into the job that wrote it")
        with self.policy.rewriting():
            self._optimizer.load(model, saved.sets.get("optimizer", {}))
            for name, generator in self._generators.items():
                generator.set_state(random[name])
            self.policy.version = int(saved.facts["version"])
            self._guard.above = int(saved.facts.get("mismatch", 0))

    def _compute_logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> Iterator[tuple[Row, Tensor]]:
        policy = self._reference if reference else self.policy
        assert policy is not None
        micros = self._layout.micro_batches(rows)
        self._layout.count(micros)
        return compute_logprobs(policy, micros, self._job.temperature)

    def _begin_steps(self, *, undoable: bool) -> None:
        self._before = self._optimizer.snapshot() if undoable else None

    def _gradient(self, rows: Sequence[Row], weights: Sequence[float], update: PolicyUpdate) -> None:
        moving, still = self._lay_out(rows, update)
        self._layout.count([*moving, *still])
        self._fill_sequences(rows, weights, update, spread=max(len(moving), len(still)) > 1)
        self._optimizer.begin()
        for micro in moving:
            with self.policy.lock.reading():
                torch.autograd.backward(self._loss(micro, weights, update))
            self._optimizer.gather()
        for micro in still:
            with self.policy.lock.reading(), torch.no_grad():
                self._loss(micro, weights, update)

    def _lay_out(self, rows: Sequence[Row], update: PolicyUpdate) -> tuple[list[MicroBatch], list[MicroBatch]]:
        """Return micro-batches to learn from, and those whose gradient is zero: of episodes no better or worse than
        their group, where that saves more than what both hold is fed twice for."""
        every = self._layout.micro_batches(rows)
        given = update.advantages
        own = ((row, given[row.episode] if row.advantages is None else row.advantages.any()) for row in rows)
        moved = {row.episode for row, moves in own if moves}
        parts = [[row for row in rows if (row.episode in moved) is moves] for moves in (True, False)]
        few = len(parts[1]) < len(rows) * _FEW
        if not parts[0] or few or self._job.kl_coef > 0 or self._job.entropy_coef > 0:
            return every, []
        moving, still = map(self._layout.micro_batches, parts)
        whole, learned, read = (sum(micro.tokens for micro in micros) for micros in (every, moving, still))
        return (moving, still) if _PASSES * learned + read < _PASSES * whole else (every, [])

    def _loss(self, micro: MicroBatch, weights: Sequence[float], update: PolicyUpdate) -> Tensor:
        tokens = flatten_tokens(micro.rows, update.advantages, weights, self.policy.device)
        present, entropy = score_tokens(
            self.policy, micro, tokens.targets, self._job.temperature, entropy=self._job.entropy_coef > 0
        )
        references = [row.reference for row in micro.rows if row.reference is not None]
        reference = torch.cat(references).to(present.device) if references else None
        loss = self._objective.token_loss(present, entropy, tokens, reference, update.sums)
        if not math.isfinite(loss.item()):
            raise NotFinite(f"the loss is {loss.item()}: the update was refused and the weights are as before")
        update.cost.forward += micro.tokens
        return loss

    def _step(self, size: float, *, last: bool) -> float:
        norm = self._optimizer.clip()
        if math.isfinite(norm):
            with self.policy.rewriting():
                self._optimizer.step(size)
                self.policy.version += last
        return norm

    def _undo_steps(self) -> None:
        if self._before is not None:
            with self.policy.rewriting():
                self._optimizer.load(*self._before)
        self._before = None

    def _keep_steps(self) -> None:
        self._before = None
