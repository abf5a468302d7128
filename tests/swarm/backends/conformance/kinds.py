"""The kinds of backend that the suite holds to one behaviour, what each lacks and why, and how each is asked."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from swarm.backends.fake import FakeBackend
from swarm.backends.local import LocalBackend
from swarm.backends.protocols import Backend, Batch, Chunk, Finish, GenerationRequest, Sampling, TrainEpisode
from swarm.job import Job, PathModel
from swarm.server.service import make_backend
from swarm.timelines.node import TrainRow
from tests.lazily import lazy

DEVICE = os.environ.get("AJET_TEST_DEVICE", "cpu")
"""Where the local backends of the suite compute: cpu, or cuda where there is a GPU (`make gpu`: its part `suite`)."""
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


class Oracle:
    """Plain forwards of the module that has a backend's present weights, without cache or batch."""

    def __init__(self, model: Callable[[], Any], device: str = "cpu") -> None:
        self._model, self._device = model, device

    @torch.no_grad()
    def _all(self, ids: Sequence[int], temperature: float) -> torch.Tensor:
        given = torch.tensor([list(ids)], device=self._device)
        logits: torch.Tensor = self._model()(input_ids=given, use_cache=False).logits[0]
        return (logits.cpu().float() / temperature).log_softmax(-1)

    def distribution(self, prompt: Sequence[int], temperature: float = 1.0) -> list[float]:
        found: list[float] = self._all(prompt, temperature)[-1].tolist()
        return found

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0) -> list[float]:
        places = self._all([*prompt, *answer], temperature)[len(prompt) - 1 : -1]
        found: list[float] = places.gather(-1, torch.tensor(list(answer))[:, None])[:, 0].tolist()
        return found


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of backend. `tolerance`: most that a log-prob may differ from a plain forward's."""

    name: str
    job: Mapping[str, Any]
    oracle: Callable[[Backend], Oracle] | None
    break_down: Callable[[Backend], None]
    lacks: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 5e-5 if DEVICE == "cpu" else 1e-4  # sums in another order differ by up to 1.2e-5 in float32
    model: str = "llama"
    """Kind of its model, one of `tests.swarm.backends.local.models.KINDS`."""
    slow: bool = False
    """Its start takes so long that those of `SHARED` are kept from test to test."""

    def make(self, model: Path, cache: Path, **fields: Any) -> Backend:
        common = {"model": PathModel(path=str(model)), "max_context": 128, "max_concurrency": 4, "seed": 3}
        return make_backend(Job(**{**common, "learning_rate": RATE, "device": DEVICE, **self.job, **fields}), cache)

    def ask(self, backend: Backend) -> Oracle:
        assert self.oracle is not None, f"{self.name} has no oracle: mark the test as needing `model`"
        return self.oracle(backend)


def _local_oracle(backend: Backend) -> Oracle:
    model = cast(LocalBackend, backend).policy.model
    return Oracle(lambda: model, DEVICE)


@torch.no_grad()
def _break_local(backend: Backend) -> None:
    """Take the weights away, so that every forward fails before a device computes: a GPU would answer no more."""
    for weight in cast(LocalBackend, backend).policy.model.parameters():
        weight.data = weight.data.flatten()[:1]


FAKE = Kind(
    "fake", {"backend": "fake"}, None, lambda backend: cast(FakeBackend, backend).die("the device is gone"),
    {
        "model": "it has no model: a script answers, and its log-probs are made up",
        "long": "its script writes short answers, whatever the context", "checks": "its script reads any ids",
        "learns": "it counts batches and learns nothing",
        "overlaps": "it holds the server to a strict barrier by refusing to overlap",
        "hashes": "its checkpoint is one small file, without a hash",
        "ends": "it has no thread and no memory to take away",
    },
)  # fmt: skip

_ROWS = {} if DEVICE == "cpu" else {"trees": "a GPU computes rows, and a job that asks for trees is refused there"}
KINDS = (
    FAKE, Kind("slots", {}, _local_oracle, _break_local, _ROWS),
    Kind("lora", {"lora_rank": 4}, _local_oracle, _break_local, _ROWS),
    Kind(
        "bf16", {"dtype": "bfloat16"}, _local_oracle, _break_local,
        {"exact": "with three digits, a sum in another order may make another id the likeliest", **_ROWS},
        tolerance=0.15,
    ),
)  # fmt: skip


stats = lazy("scipy.stats")
PATIENCE_S = 180.0
"""Bound on waiting for what must happen: nothing here waits this long unless it is broken."""


@dataclass(frozen=True, slots=True)
class Answer:
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: Finish
    top: tuple[tuple[tuple[int, float], ...], ...]


def joined(prompt: Sequence[int], chunks: Sequence[Chunk]) -> Answer:
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    finish = chunks[-1].finish
    assert finish is not None
    return Answer(
        tuple(prompt),
        tuple(token for chunk in chunks for token in chunk.ids),
        tuple(value for chunk in chunks for value in chunk.logprobs),
        tuple(chunk.version for chunk in chunks for _ in chunk.ids),
        finish,
        tuple(place for chunk in chunks for place in chunk.top),
    )


async def ask(backend: Backend, prompt: Sequence[int], sampling: Sampling, name: str = "r") -> Answer:
    async with (
        asyncio.timeout(PATIENCE_S),
        aclosing(backend.engine.generate(GenerationRequest(name, prompt, sampling))) as chunks,  # type: ignore[type-var]
    ):
        return joined(prompt, [chunk async for chunk in chunks])


async def ask_all(backend: Backend, asked: Sequence[tuple[Sequence[int], Sampling]]) -> list[Answer]:
    return list(await asyncio.gather(*(ask(backend, prompt, rule, f"r{i}") for i, (prompt, rule) in enumerate(asked))))


def episodes(answers: Sequence[Answer], rewards: Sequence[float], group_size: int = 2) -> tuple[TrainEpisode, ...]:
    return tuple(
        TrainEpisode(f"e{i}", f"g{i // group_size}", reward, (row(answer),))
        for i, (answer, reward) in enumerate(zip(answers, rewards, strict=True))
    )


def row(answer: Answer) -> TrainRow:
    given = len(answer.prompt)
    return TrainRow(
        answer.prompt + answer.ids,
        (0,) * given + (1,) * len(answer.ids),
        (0.0,) * given + answer.logprobs,
        (-1,) * given + answer.versions,
    )


async def played(backend: Backend, count: int = 8, step: int = 0, tokens: int = 5, *, at_once: bool = True) -> Batch:
    """Return a batch of groups of two, the even ones rewarded; company at the moment decides bf16's last bits."""
    rule = Sampling(max_tokens=tokens, stop_ids=backend.renderer.stop_ids)
    asked = [(prompt(backend, i // 2, step), rule) for i in range(count)]
    answers = (
        await ask_all(backend, asked) if at_once else [await ask(backend, *one, f"r{i}") for i, one in enumerate(asked)]
    )
    return Batch(step, episodes(answers, [float(i % 2 == 0) for i in range(count)]))


def prompt(backend: Backend, *numbers: int) -> list[int]:
    said = "say " + " ".join(map(str, numbers))
    text = backend.renderer.render([{"role": "user", "content": said}], generation_prompt=True)
    return backend.renderer.encode(text)


def drawn_from(counts: Sequence[int], logprobs: Sequence[float], least: float = 1e-3) -> bool:
    """Return whether counts could be draws, by chi-square at level `least`; rare ids count together."""
    total = sum(counts)
    expected = [total * math.exp(value) for value in logprobs]
    if any(count and not mass for count, mass in zip(counts, expected, strict=True)):
        return False
    often = [i for i, mass in enumerate(expected) if mass >= 5]
    seen = [float(counts[i]) for i in often]
    foreseen = [expected[i] for i in often]
    seen.append(total - sum(seen))
    foreseen.append(total - sum(foreseen))
    if foreseen[-1] < 5:  # too few to stand alone: they go with the likeliest
        first = foreseen.index(max(foreseen[:-1]))
        seen[first] += seen.pop()
        foreseen[first] += foreseen.pop()
    return bool(stats.chisquare(seen, foreseen, sum_check=False).pvalue >= least)
