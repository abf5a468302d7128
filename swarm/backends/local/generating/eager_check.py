"""The check, made when a model is loaded, that engine and learner compute what the model's own eager attention does.

Engine and learner share one module, so what both leave out would show as no difference between them: the log-probs of
both are compared with full forwards of the same weights by eager attention, each sequence alone, without a cache. A few
tokens only: what depends on length is refused by `architecture.py`.
Promises: a model that does not agree is one BackendError, with what was expected, found, and what to do.
Knows nothing of requests or of what is learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from swarm.backends.local.generating.batcher import Batcher
from swarm.backends.local.generating.generation import Generation
from swarm.backends.local.model.architecture import refusing
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError, Sampling

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Most that a log-prob may differ from that of eager attention."""
_BATCH_TOLERANCE = {torch.float32: 1e-4}
_COARSE_BATCH_TOLERANCE = 5e-2
"""Most that a feature may change with the other rows of its batch, relative to the largest one."""
_LIKELIEST = {torch.float32: 16}
"""How many of the likeliest ids are compared; in a coarser type the log-probs of unlikely ones are mostly rounding."""
_SHORT, _LONG, _ANSWER = 3, 9, 2
_POSITIONS = 16
"""Fewest positions that a job can ask for; the trials take no more."""


@torch.no_grad()
def check_slots(policy: Policy) -> None:
    """Check the slot engine on prompts of different lengths, on continued rows and on a copied one."""
    with _refusing(policy):
        batcher = Batcher(policy, slots=3, positions=_POSITIONS, seed=0)
        first = _answers(policy, batcher, [_ids(policy, _SHORT, 1), _ids(policy, _LONG, 2)])
        longest, more = first[1].ids, _ids(policy, 2, 3)
        again = _answers(policy, batcher, [[*longest, more[0]], [*longest[:_LONG], *more]])
        gap = largest_logprob_gap(policy, [*first, *again])
    _require_near(policy, gap, "slot engine", "try the job's engine `transformers`, or choose another model")


@torch.no_grad()
def check_rows(policy: Policy, positions: int) -> None:
    """Check the learner's log-probs, and that features do not depend on other rows of a batch, up to `positions`."""
    with _refusing(policy):
        rows = [_ids(policy, _SHORT, 1), _ids(policy, _LONG, 2)]
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        features = policy.features(padded.to(policy.device), use_cache=False)
        with eager(policy.model):
            gap = max(
                _likeliest_gap(policy, _eager_logprobs(policy, row), policy.head(found[: len(row)]).log_softmax(-1))
                for found, row in zip(features, rows, strict=True)
            )
        dependence = _batch_dependence(policy, positions)
    _require_near(policy, gap, "learner's forward", "choose another model")
    if not dependence <= _BATCH_TOLERANCE.get(policy.dtype, _COARSE_BATCH_TOLERANCE):
        raise BackendError(
            f"expected of {policy.config.model_type} that what it computes of a sequence does not depend on the others "
            f"in its batch, found features that differ by {dependence:.1e} of the largest: set a smaller max_context "
            f"than {positions}, or choose another model"
        )


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Switch a model to eager attention inside; nobody else may run it meanwhile."""
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
def largest_logprob_gap(policy: Policy, generations: Sequence[Generation]) -> float:
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
    """Return log-probs (T, V) after each of ids (T), by one forward of them alone, without a cache."""
    logits: Tensor = policy.model(input_ids=torch.tensor([list(ids)], device=policy.device), use_cache=False).logits
    return logits[0].float().log_softmax(-1)


def _likeliest_gap(policy: Policy, expected: Tensor, found: Tensor) -> float:
    """Return the most by which log-probs (T, V) of the likeliest ids differ."""
    likeliest = expected.topk(min(_LIKELIEST.get(policy.dtype, 1), expected.shape[-1])).indices
    return (expected.gather(-1, likeliest) - found.gather(-1, likeliest)).abs().max().item()


def _batch_dependence(policy: Policy, positions: int) -> float:
    """Return how much features change, relative to the largest, alone and beside a row at the last positions."""
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


def _refusing(policy: Policy) -> AbstractContextManager[None]:
    kind = policy.config.model_type
    return refusing(
        f"expected {kind} to run from keys and values of a prompt, found that it fails", "choose another model"
    )


def _require_near(policy: Policy, gap: float, what: str, advice: str) -> None:
    most = TOLERANCE[policy.dtype]
    if not gap <= most:
        raise BackendError(
            f"expected the {what} to compute {policy.config.model_type} as its eager attention does, within {most:g} "
            f"of every log-prob, found {gap:.2g}: {advice}"
        )
