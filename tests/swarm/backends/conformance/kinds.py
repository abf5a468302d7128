"""The kinds of backend that the suite holds to one behaviour, what each lacks and why, and how each is asked.

A new kind joins by one entry in `KINDS`: a job, an oracle where there is a model, and a way to break it. What it cannot
do stands in `lacks` with the reason; whatever is not there, it must do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from swarm.backends.fake.backend import FakeBackend
from swarm.backends.local import LocalBackend
from swarm.backends.protocols import Backend
from swarm.job import Job, PathModel
from swarm.server.service.backend_factory import make_backend

DEVICE = os.environ.get("AJET_TEST_DEVICE", "cpu")
"""Where the local backends of the suite compute: cpu, or cuda on a machine with a GPU (`make gpu-smoke`)."""
RATE = 0.01
"""The learning rate of whatever a test does not give another: it moves log-probs far beyond any tolerance."""
MINIBATCHES: Mapping[str, Any] = {"kl_coef": 0.05, "minibatches": 2, "lr_schedule": "linear"}
"""Fields of a job whose updates are of several steps, each of another size, and have a reference."""
SHARED: Sequence[Mapping[str, Any]] = ({}, MINIBATCHES, {"max_staleness": 1})
"""Fields that several tests give: of a slow kind their backends are kept from test to test (`keeping.py`)."""
CAPABILITIES = {
    "model": "its log-probs are a model's, so that a plain forward gives them too",
    "exact": "sums that are taken in another order come out the same, but for the last digits of fp32",
    "long": "it can be made to answer at length, and stops where its context is full",
    "checks": "it refuses prompts that its model cannot read",
    "trees": "it learns what episodes share once, where a job asks for trees",
    "learns": "its updates change what it answers",
    "overlaps": "it generates while it learns",
    "hashes": "it finds out that a checkpoint was changed after it was written",
    "ends": "it has a thread or memory that stopping takes away from open requests",
}
"""What a backend may lack."""


class Oracle(Protocol):
    """Plain forwards of a backend's present weights, without cache or batch."""

    def distribution(self, prompt: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Return the log-probs of every id after `prompt`."""
        ...

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Return the log-prob of each id of `answer`, the ones before it given."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of backend. `tolerance`: most that a log-prob may differ from a plain forward's."""

    name: str
    job: Mapping[str, Any]
    oracle: Callable[[Backend], Oracle] | None
    break_down: Callable[[Backend], None]
    lacks: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-5 if DEVICE == "cpu" else 1e-4
    model: str = "llama"
    """Kind of its model, one of `tests.swarm.backends.local.models.KINDS`."""
    slow: bool = False
    """Its start takes so long that those of `SHARED` are kept from test to test."""

    def make(self, model: Path, cache: Path, **fields: Any) -> Backend:
        """Return a backend, not started, over the model in a folder, with some of the job's fields as given."""
        common = {"model": PathModel(path=str(model)), "max_context": 128, "max_concurrency": 4, "seed": 3}
        return make_backend(Job(**{**common, "learning_rate": RATE, "device": DEVICE, **self.job, **fields}), cache)

    def ask(self, backend: Backend) -> Oracle:
        """Return the backend's oracle."""
        assert self.oracle is not None, f"{self.name} has no oracle: mark the test as needing `model`"
        return self.oracle(backend)


class _LocalOracle:
    """The shared module's own forward."""

    def __init__(self, backend: Backend) -> None:
        self._model = cast(LocalBackend, backend).policy.model

    @torch.no_grad()
    def _all(self, ids: Sequence[int], temperature: float) -> torch.Tensor:
        """Return log-probs (T, V)."""
        given = torch.tensor([list(ids)], device=DEVICE)
        logits: torch.Tensor = self._model(input_ids=given, use_cache=False).logits[0]
        return (logits.cpu().float() / temperature).log_softmax(-1)

    def distribution(self, prompt: Sequence[int], temperature: float = 1.0) -> list[float]:
        found: list[float] = self._all(prompt, temperature)[-1].tolist()
        return found

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0) -> list[float]:
        places = self._all([*prompt, *answer], temperature)[len(prompt) - 1 : -1]
        found: list[float] = places.gather(-1, torch.tensor(list(answer))[:, None])[:, 0].tolist()
        return found


@torch.no_grad()
def _break_local(backend: Backend) -> None:
    """Take the weights away, so that every forward fails from now on, before any device computes: a GPU that was asked
    for rows that are not there answers nobody in this process any more."""
    for weight in cast(LocalBackend, backend).policy.model.parameters():
        weight.data = weight.data.flatten()[:1]


FAKE = Kind(
    "fake",
    {"backend": "fake"},
    None,
    lambda backend: cast(FakeBackend, backend).die("the device is gone"),
    {
        "model": "it has no model: a script answers, and its log-probs are made up",
        "long": "its script writes short answers, whatever the context",
        "checks": "its script reads any ids",
        "learns": "it counts batches and learns nothing",
        "overlaps": "it holds the server to a strict barrier by refusing to overlap",
        "hashes": "its checkpoint is one small file, without a hash",
        "ends": "it has no thread and no memory to take away",
    },
)

KINDS = (
    FAKE,
    Kind("slots", {}, _LocalOracle, _break_local),
    Kind("lora", {"lora_rank": 4}, _LocalOracle, _break_local),
    Kind("paged", {"engine": "transformers"}, _LocalOracle, _break_local),
    Kind(
        "bf16",
        {"dtype": "bfloat16"},
        _LocalOracle,
        _break_local,
        {"exact": "with three digits, a sum in another order may make another id the likeliest"},
        tolerance=0.15,
    ),
)
