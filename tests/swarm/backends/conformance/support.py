"""Asking an engine, and judging what it says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from swarm.backends.protocols import Backend, Batch, Chunk, Finish, GenerationRequest, Sampling, TrainEpisode, TrainRow
from tests.lazily import lazy

stats = lazy("scipy.stats")
PATIENCE_S = 180.0
"""Bound on waiting for what must happen: nothing here waits this long unless it is broken."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole completion."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: Finish
    top: tuple[tuple[tuple[int, float], ...], ...]


def joined(prompt: Sequence[int], chunks: Sequence[Chunk]) -> Answer:
    """Return the completion that chunks make; only the last may finish it."""
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
    """Return the completion of a prompt."""
    async with (
        asyncio.timeout(PATIENCE_S),
        aclosing(backend.engine.generate(GenerationRequest(name, prompt, sampling))) as chunks,  # type: ignore[type-var]
    ):
        return joined(prompt, [chunk async for chunk in chunks])


async def ask_all(backend: Backend, asked: Sequence[tuple[Sequence[int], Sampling]]) -> list[Answer]:
    """Return the completions of prompts that are asked at once."""
    return list(await asyncio.gather(*(ask(backend, prompt, rule, f"r{i}") for i, (prompt, rule) in enumerate(asked))))


def episodes(answers: Sequence[Answer], rewards: Sequence[float], group_size: int = 2) -> tuple[TrainEpisode, ...]:
    """Return an episode of one call for each answer."""
    return tuple(
        TrainEpisode(f"e{i}", f"g{i // group_size}", reward, (row(answer),))
        for i, (answer, reward) in enumerate(zip(answers, rewards, strict=True))
    )


def row(answer: Answer) -> TrainRow:
    """Return the row of one call."""
    given = len(answer.prompt)
    return TrainRow(
        answer.prompt + answer.ids,
        (0,) * given + (1,) * len(answer.ids),
        (0.0,) * given + answer.logprobs,
        (-1,) * given + answer.versions,
    )


async def played(backend: Backend, count: int = 8, step: int = 0, tokens: int = 5, *, at_once: bool = True) -> Batch:
    """Return a batch of answers in groups of two, the even ones rewarded.

    Asked at once, who is computed beside whom depends on the moment, and so does the last bit of a log-prob in bf16.
    """
    rule = Sampling(max_tokens=tokens, stop_ids=backend.renderer.stop_ids)
    asked = [(prompt(backend, i // 2, step), rule) for i in range(count)]
    answers = (
        await ask_all(backend, asked) if at_once else [await ask(backend, *one, f"r{i}") for i, one in enumerate(asked)]
    )
    return Batch(step, episodes(answers, [float(i % 2 == 0) for i in range(count)]))


def prompt(backend: Backend, *numbers: int) -> list[int]:
    """Return the ids of a chat's opening that names the numbers."""
    said = "say " + " ".join(map(str, numbers))
    text = backend.renderer.render([{"role": "user", "content": said}], generation_prompt=True)
    return backend.renderer.encode(text)


def drawn_from(counts: Sequence[int], logprobs: Sequence[float], least: float = 1e-3) -> bool:
    """Return whether counts by id could be draws from a distribution, by a chi-square test at level `least`.

    Ids expected fewer than five times count together. An id that cannot come decides alone.
    """
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
