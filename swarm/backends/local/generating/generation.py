"""One request in an engine, and how its next token is sampled.

Promises: a seeded request's draws do not depend on the rest of the batch.
Does not know where logits come from, or keys and values.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarm.backends.local.generating.sampling import sample
from swarm.backends.protocols import BackendError, Finish, GrammarRefused, Sampling
from swarm.backends.rendering.guides import Guide


class SampledToken(NamedTuple):
    """One sampled token."""

    id: int
    logprob: float
    version: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, eq=False)
class Generation:
    """One request: prompt and sampled ids, its row, and what was sampled but not sent yet.

    While `leader` is set it waits for that one to have `awaited` tokens of a prompt they share. `since` is used by the
    engine alone. `error` says why it could not go on, though others can: it is finished then, and its last token is
    void. `uniform` is its next random number in [0, 1), once drawn: after a failed step the same one is used.
    """

    ids: list[int]
    sampling: Sampling
    guide: Guide | None = None
    random: random.Random | None = None
    prompt_length: int = 0
    slot: int = -1
    leader: Generation | None = None
    awaited: int = 0
    cancelled: bool = False
    finish: Finish | None = None
    error: BackendError | None = None
    uniform: float | None = None
    since: float = 0.0
    fresh: list[SampledToken] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)
        if self.sampling.seed is not None:
            self.random = random.Random(self.sampling.seed)

    def fail(self, error: BackendError) -> None:
        """End it with an error."""
        self.error, self.finish = error, "stop"


def extend(
    ready: Sequence[Generation], logits: Tensor, generator: torch.Generator, version: int, positions: int
) -> npt.NDArray[np.int64]:
    """Sample one token for each of `ready` (N) from its fp32 logits (N, V), and note it there; return the ids (N,).

    `generator` draws for the unseeded; `version` is that of the weights; nobody gets more than `positions` ids. Raises
    ArithmeticError, with nothing noted, where logits are no numbers.
    """
    _forbid(ready, logits)
    rules = [generation.sampling for generation in ready]
    drawn, logprobs, top = sample(logits, rules, _uniforms(ready, generator))
    ids: npt.NDArray[np.int64] = drawn.cpu().numpy()
    for generation, token, logprob, likeliest in zip(ready, ids.tolist(), logprobs.tolist(), top, strict=True):
        generation.uniform = None
        generation.ids.append(token)
        generation.fresh.append(SampledToken(token, logprob, version, likeliest))
        if generation.guide is not None:
            _accept(generation, generation.guide, token)
        generation.finish = _finish(generation, token, positions)
    return ids


def _uniforms(ready: Sequence[Generation], generator: torch.Generator) -> Tensor:
    """Draw a number in [0, 1) for each (N,): a seeded request's is its own, and takes none of the others'."""
    uniforms = torch.empty(len(ready), dtype=torch.float64)
    unseeded = [row for row, generation in enumerate(ready) if generation.random is None]
    uniforms[unseeded] = torch.rand(len(unseeded), generator=generator, dtype=torch.float64)
    for row, generation in enumerate(ready):
        if generation.random is not None:
            if generation.uniform is None:
                generation.uniform = generation.random.random()
            uniforms[row] = generation.uniform
    return uniforms


def _finish(generation: Generation, token: int, positions: int) -> Finish | None:
    rules, length = generation.sampling, len(generation.ids)
    if token in rules.stop_ids or generation.error is not None:
        return "stop"
    return "length" if length >= positions or length - generation.prompt_length >= rules.max_tokens else None


def _forbid(ready: Sequence[Generation], logits: Tensor) -> None:
    """Take from the logits (N, V) of guided generations what their grammars do not allow."""
    for row, generation in enumerate(ready):
        if generation.guide is None:
            continue
        try:
            logits[row].masked_fill_(~generation.guide.allowed().to(logits.device), -torch.inf)
        except GrammarRefused as error:
            generation.fail(error)


def _accept(generation: Generation, guide: Guide, token: int) -> None:
    if generation.error is not None:
        return
    try:
        guide.accept(token)
    except GrammarRefused as error:
        generation.fail(error)
