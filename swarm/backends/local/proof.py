"""The proof, made when a model is loaded, that what samples and what learns compute the model's own eager attention.

Engine and learner share one module, so neither would notice what both drop: the log-probs of both are held against full
forwards of the same weights by eager attention, each sequence alone, without a cache. A few tokens only: what depends
on length is refused by `architecture.py`.
Promises: a model that does not agree is one BackendError, with what was expected, found, and what to do.
Knows nothing of requests or of what is learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from swarm.backends.local.batcher import Batcher
from swarm.backends.local.generation import Generation
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import BackendError, Sampling

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Most that a log-prob may differ from that of eager attention."""
_FAR = {torch.float32: 1e-4}
_COARSE_FAR = 5e-2
"""Most that a feature may differ by who else is in the batch, in parts of the largest one."""
_LIKELIEST = {torch.float32: 16}
"""How many of the likeliest ids are compared, where those that are seldom drawn are more than rounding."""
_SHORT, _LONG, _ANSWER = 3, 9, 2
_POSITIONS = 16
"""Fewest positions that a job can ask for; the trials take no more."""


@torch.no_grad()
def prove_slots(policy: Policy) -> None:
    """Let the slot engine answer prompts of unlike length, go on from its own rows, and copy one; compare it all."""
    with _in_one_line(policy):
        batcher = Batcher(policy, slots=3, positions=_POSITIONS, seed=0)
        first = _answers(policy, batcher, [_ids(policy, _SHORT, 1), _ids(policy, _LONG, 2)])
        longest, more = first[1].ids, _ids(policy, 2, 3)
        again = _answers(policy, batcher, [[*longest, more[0]], [*longest[:_LONG], *more]])
        gap = furthest(policy, [*first, *again])
    _require_near(policy, gap, "slot engine", "try the job's engine `transformers`, or choose another model")


@torch.no_grad()
def prove_rows(policy: Policy, positions: int) -> None:
    """Compare log-probs as the learner computes them, and what they are in any company, up to `positions` positions."""
    with _in_one_line(policy):
        rows = [_ids(policy, _SHORT, 1), _ids(policy, _LONG, 2)]
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        features = policy.features(padded.to(policy.device), use_cache=False)
        with eager(policy.model):
            gap = max(
                _likeliest_gap(policy, _eager_logprobs(policy, row), policy.head(found[: len(row)]).log_softmax(-1))
                for found, row in zip(features, rows, strict=True)
            )
        apart = _apart_in_company(policy, positions)
    _require_near(policy, gap, "learner's forward", "choose another model")
    if not apart <= _FAR.get(policy.dtype, _COARSE_FAR):
        raise BackendError(
            f"expected of {policy.config.model_type} that what it computes of a sequence does not depend on the others "
            f"in its batch, found features that differ by {apart:.1e} of the largest: set a smaller max_context than "
            f"{positions}, or choose another model"
        )


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Let a model attend eagerly for a while; nobody else may run it meanwhile."""
    own = model.config._attn_implementation
    if own == "eager":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(own)


@torch.no_grad()
def furthest(policy: Policy, generations: Sequence[Generation]) -> float:
    """Return the most by which log-probs of what was sampled differ from those of eager attention."""
    gaps = []
    with eager(policy.model):
        for generation in generations:
            expected = _eager_logprobs(policy, generation.ids)[generation.prompt_length - 1 :]
            for place, drawn in enumerate(generation.fresh):
                pairs = ((drawn.id, drawn.logprob), *drawn.top)
                gaps += [abs(expected[place, token].item() - logprob) for token, logprob in pairs]
    return max(gaps)


def _answers(policy: Policy, batcher: Batcher, prompts: Sequence[Sequence[int]]) -> list[Generation]:
    rule = Sampling(max_tokens=_ANSWER, temperature=0, top_logprobs=_LIKELIEST.get(policy.dtype, 0))
    generations = [Generation([*prompt], rule) for prompt in prompts]
    for generation in generations:
        batcher.add(generation)
    while batcher.busy:
        batcher.step()
    return generations


def _ids(policy: Policy, count: int, first: int) -> list[int]:
    return [(first + 7 * place) % policy.vocab_size for place in range(count)]


def _eager_logprobs(policy: Policy, ids: Sequence[int]) -> Tensor:
    """Return log-probs (T, V) after each of ids (T), by one forward without cache or company."""
    logits: Tensor = policy.model(input_ids=torch.tensor([list(ids)], device=policy.device), use_cache=False).logits
    return logits[0].float().log_softmax(-1)


def _likeliest_gap(policy: Policy, expected: Tensor, found: Tensor) -> float:
    """Return the most by which log-probs (T, V) of the likeliest ids differ."""
    likeliest = expected.topk(min(_LIKELIEST.get(policy.dtype, 1), expected.shape[-1])).indices
    return (expected.gather(-1, likeliest) - found.gather(-1, likeliest)).abs().max().item()


def _apart_in_company(policy: Policy, positions: int) -> float:
    """Return by how much, in parts of the largest, features differ alone and beside the longest there may be."""
    near, far = [0, 1, 2, 3], [0, 1, positions - 2, positions - 1]
    alone, beside = _placed(policy, [near]), _placed(policy, [near, far])
    gap = max((beside[0] - alone[0]).abs().max().item(), (beside[1, :2] - alone[0, :2]).abs().max().item())
    return gap / alone.abs().max().item()


def _placed(policy: Policy, places: Sequence[Sequence[int]]) -> Tensor:
    """Return features (B, T, F) of the same ids in every row, at `places` (B, T), each seen by those behind it."""
    size = len(places[0])
    ids = torch.tensor([_ids(policy, size, 1)] * len(places), device=policy.device)
    later = torch.ones(size, size, dtype=torch.bool, device=policy.device).triu(1)
    mask = torch.zeros(len(places), 1, size, size, dtype=policy.dtype, device=policy.device)
    return policy.features(
        ids,
        attention_mask=mask.masked_fill(later, -torch.inf),
        position_ids=torch.tensor(places, device=policy.device),
        use_cache=False,
    ).float()


@contextmanager
def _in_one_line(policy: Policy) -> Iterator[None]:
    """Turn whatever a model runs into that nobody tried here into a refusal by its name."""
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(
            f"expected {policy.config.model_type} to run from keys and values of a prompt, found that it fails "
            f"({type(error).__name__}: {error}): choose another model"
        ) from error


def _require_near(policy: Policy, gap: float, what: str, advice: str) -> None:
    most = TOLERANCE[policy.dtype]
    if not gap <= most:
        raise BackendError(
            f"expected the {what} to compute {policy.config.model_type} as its eager attention does, within {most:g} "
            f"of every log-prob, found {gap:.2g}: {advice}"
        )
