"""Seconds for each token of a prompt, of an answer and of an update, measured on a few short episodes.

An engine that has begun answers groups of episodes over prompts of random ids, which no cache holds yet: first each
prompt alone (so much for a prompt's token), then its group, whose prompt is cached by then (an answer's token). The
learner then makes an update of them, and another one where the first was quick: the first one also makes room.
Small models do several rounds, so that a figure rests on more than a clock's tick.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from swarm.backends.local.backend import LocalBackend
from swarm.backends.protocols import Batch, Chunk, Engine, GenerationRequest, Sampling, TrainEpisode, TrainRow
from swarm.job import Job

_GROUPS, _GROUP = 4, 4
_PROMPT, _ANSWER = 64, 16
_LONG_ENOUGH_S = 1.0
_MOST_ROUNDS = 8
_SLOW_UPDATE_S = 15.0


@dataclass
class Speeds:
    """Seconds and tokens that were counted."""

    prompt_s: float = 0.0
    prompt_tokens: int = 0
    answer_s: float = 0.0
    answer_tokens: int = 0
    update_s: float = 0.0
    update_tokens: float = 0.0
    update_sampled: float = 0.0
    episodes: list[TrainEpisode] = field(default_factory=list)
    """Those of the last round."""

    @property
    def at_once(self) -> int:
        """Episodes that are generated side by side."""
        return _GROUPS * _GROUP


async def answer(engine: Engine, name: str, prompt: Sequence[int], sampling: Sampling) -> list[Chunk]:
    """Return all that the engine answers."""
    chunks: AsyncIterator[Chunk] = engine.generate(GenerationRequest(name, prompt, sampling))
    return [chunk async for chunk in chunks]


async def measure_generation(backend: LocalBackend, job: Job, ids: Sequence[int]) -> Speeds:
    """Return the speeds of the engine; prompts are made of `ids`, those of plain text."""
    found, draw = Speeds(), random.Random(0)
    length, tokens = min(_PROMPT, job.max_context // 2), min(_ANSWER, job.max_context // 4)
    for number in range(_MOST_ROUNDS):
        prompts = [draw.choices(ids, k=length) for _ in range(_GROUPS)]
        found.prompt_s += await _timed(backend.engine, prompts, 1, found, number)
        found.prompt_tokens += length * _GROUPS
        found.answer_s += await _timed(
            backend.engine, [each for each in prompts for _ in range(_GROUP)], tokens, found, number
        )
        found.answer_tokens += tokens * found.at_once
        if min(found.prompt_s, found.answer_s) > _LONG_ENOUGH_S:
            break
    return found


async def _timed(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, found: Speeds, number: int) -> float:
    """Answer all prompts at once with so many tokens; keep the episodes, and return the seconds."""
    sampling = Sampling(max_tokens=tokens)  # no stop ids: every answer is as long
    begun = time.perf_counter()
    answers = await asyncio.gather(*(answer(engine, f"{number}-{n}", each, sampling) for n, each in enumerate(prompts)))
    seconds = time.perf_counter() - begun
    found.episodes = [
        _episode(n, prompt, chunks) for n, (prompt, chunks) in enumerate(zip(prompts, answers, strict=True))
    ]
    return seconds


def _episode(number: int, prompt: Sequence[int], chunks: Sequence[Chunk]) -> TrainEpisode:
    ids = [token for chunk in chunks for token in chunk.ids]
    given = len(prompt)
    row = TrainRow(
        ids=(*prompt, *ids),
        sampled=(0,) * given + (1,) * len(ids),
        logprobs=(0.0,) * given + tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
        versions=(-1,) * given + tuple(chunk.version for chunk in chunks for _ in chunk.ids),
    )
    return TrainEpisode(f"{number:04d}", f"{number // _GROUP}", float(number % 2), (row,))


def measure_learning(backend: LocalBackend, found: Speeds) -> None:
    """Count the seconds and tokens of updates by the episodes that were generated."""
    for step in range(_MOST_ROUNDS):
        begun = time.perf_counter()
        metrics = backend.learner.update(Batch(step + 1, tuple(found.episodes)))
        seconds = time.perf_counter() - begun
        if step <= 1:  # the second one, which finds all its room, is counted in place of the first
            found.update_s = found.update_tokens = found.update_sampled = 0.0
        found.update_s += seconds
        found.update_tokens += metrics["tokens/forward"]
        found.update_sampled += metrics["tokens/trained"]
        if found.update_s > (_LONG_ENOUGH_S if step else _SLOW_UPDATE_S):
            return
