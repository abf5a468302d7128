"""AdamW over a model's trained parameters, with fp32 copies of those in another element type, and its step size.

Promises: sums of gradients, moments and the weights that steps add up in are fp32 whatever the model's element type;
an fp32 parameter is its own copy, so that nothing is kept twice; `load` of `masters` and `moments` continues
bit-exactly. The step size depends on the job and the number of updates so far alone, so that a resumed run has the
same; after warm-up it is the schedule of the same name in `transformers.get_scheduler` (`cosine_with_min_lr` where
something is left at the end).
Does not know the lock: whoever calls what changes weights (`step`, `load`) holds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swarm.job import Job


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies, in the host's memory, of what an optimiser has changed so far."""

    masters: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]


class Optimizer:
    """AdamW with clipping by the global norm; the step size is given at each step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, weight_decay: float, max_grad_norm: float) -> None:
        self._weights = dict(parameters)
        self._masters = {name: _master(weight) for name, weight in self._weights.items()}
        self._max_grad_norm = max_grad_norm
        self._adamw = torch.optim.AdamW(self._masters.values(), lr=0.0, weight_decay=weight_decay, fused=True)

    @property
    def masters(self) -> Mapping[str, Tensor]:
        """The trained weights in fp32, by their parameter's name."""
        return self._masters

    def moments(self) -> Mapping[str, Tensor]:
        """Return AdamW's state by `PARAMETER/KEY`; it is empty before the first step."""
        names = list(self._masters)
        state = self._adamw.state_dict()["state"]
        return {f"{names[i]}/{key}": value for i, slot in state.items() for key, value in slot.items()}

    def begin(self) -> None:
        """Forget all gradients."""
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
        """Change the weights by the gathered gradient."""
        for group in self._adamw.param_groups:
            group["lr"] = step_size
        self._adamw.step()
        self._serve()

    def keep(self) -> HostCopies:
        """Return copies of everything that `step` changes, for `load`."""
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


def _master(weight: nn.Parameter) -> nn.Parameter:
    return weight if weight.dtype == torch.float32 else nn.Parameter(weight.detach().float())


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
