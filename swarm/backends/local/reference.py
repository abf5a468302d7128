"""The check at load: what is computed against eager attention in fp32.

Engine and learner share one module, so what both leave out would show as no difference: log-probs of both are compared
with full forwards of the same weights by eager attention, each sequence alone, without a cache, in fp32.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swarm.backends.local.batcher import Batcher, Generation
from swarm.backends.local.fused_forward import compute_in_fp32
from swarm.backends.local.loading import wrap_errors
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Sampling
from swarm.rendering.messages import BackendError

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Most that a log-prob may differ from that of eager attention in fp32, unless the model rounds more by itself."""
_MORE = 3.0
"""How many times as far as eager attention in the model's own type a log-prob may be; right ones were up to 2."""
_BATCH_TOLERANCE = {torch.float32: 1e-4}
_COARSE_BATCH_TOLERANCE = 5e-2
"""Most that a feature may change with the other rows of its batch, relative to the largest one."""
_LIKELIEST = {torch.float32: 16}
"""How many of the likeliest ids are compared; in a coarser type the log-probs of unlikely ones are mostly rounding."""
_FAILS = "expected {} to run from keys and values of a prompt, found that it fails"
_SHORT, _LONG, _ANSWER = 3, 9, 2
_POSITIONS = 16
"""Fewest positions that a job can ask for; the trials take no more."""


@torch.no_grad()
def check_slots(policy: Policy) -> None:
    """Check the slot engine on prompts of different lengths, on continued rows and on a copied one."""
    with wrap_errors(_FAILS.format(policy.config.model_type), "choose another model"):
        batcher = Batcher(policy, slots=3, positions=_POSITIONS, seed=0)
        rule = Sampling(max_tokens=_ANSWER, temperature=0, top_logprobs=_LIKELIEST.get(policy.dtype, 0))

        def generate(*prompts: Sequence[int]) -> list[Generation]:
            generations = [Generation([*prompt], rule) for prompt in prompts]
            for generation in generations:
                batcher.add(generation)
            while batcher.busy:
                batcher.step()
            return generations

        first = generate(policy.probe_ids(_SHORT, 1), policy.probe_ids(_LONG, 2))
        longest, more = first[1].ids, policy.probe_ids(2, 3)
        again = generate([*longest, more[0]], [*longest[:_LONG], *more])
        gap = logprob_gap(policy, [*first, *again])
    _require_near(policy, gap, "slot engine")


@torch.no_grad()
def check_rows(policy: Policy, positions: int) -> None:
    """Check the learner's log-probs, and that features do not depend on other rows of a batch, up to `positions`."""
    with wrap_errors(_FAILS.format(policy.config.model_type), "choose another model"):
        rows = [policy.probe_ids(_SHORT, 1), policy.probe_ids(_LONG, 2)]
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        features = policy.features(padded.to(policy.device), use_cache=False)
        with use_eager_attention(policy.model):
            gaps = []
            for own, row in zip(features, rows, strict=True):
                expected, allowed = _eager_logprobs(policy, row)
                gaps.append(Gap(_max_gap(policy, expected, policy.head(own[: len(row)]).log_softmax(-1)), allowed))
        near, far = [0, 1, 2, 3], [0, 1, positions - 2, positions - 1]
        alone, beside = _features_at(policy, [near]), _features_at(policy, [near, far])
        gap = max((beside[0] - alone[0]).abs().max().item(), (beside[1, :2] - alone[0, :2]).abs().max().item())
        dependence = gap / alone.abs().max().item()
    _require_near(policy, _worst_gap(gaps), "learner's forward")
    if not dependence <= _BATCH_TOLERANCE.get(policy.dtype, _COARSE_BATCH_TOLERANCE):
        raise BackendError(
            f"expected of {policy.config.model_type} that what it computes of a sequence does not depend on the others "
            f"in its batch, found features that differ by {dependence:.1e} of the largest: set a smaller max_context "
            f"than {positions}, or choose another model"
        )


@contextmanager
def use_eager_attention(model: Any) -> Iterator[None]:
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


@dataclass(frozen=True, slots=True)
class Gap:
    """The most by which log-probs differ from those of eager attention in fp32, and the most that they may."""

    found: float
    allowed: float

    @property
    def small(self) -> bool:
        """Whether they differ by rounding alone; what is no number does not."""
        return self.found <= self.allowed


@torch.no_grad()
def logprob_gap(policy: Policy, generations: Sequence[Generation]) -> Gap:
    """Return the most by which log-probs of what was sampled differ from those of eager attention."""
    gaps = []
    with use_eager_attention(policy.model):
        for generation in generations:
            expected, allowed = _eager_logprobs(policy, generation.ids)
            differences = [
                abs(expected[place, token].item() - logprob)
                for place, drawn in enumerate(generation.fresh, generation.prompt_length - 1)
                for token, logprob in ((drawn.id, drawn.logprob), *drawn.top)
            ]
            gaps.append(Gap(max(differences), allowed))
    return _worst_gap(gaps)


def _worst_gap(gaps: Sequence[Gap]) -> Gap:
    return next((gap for gap in gaps if not gap.small), max(gaps, key=lambda gap: gap.found))


def _eager_logprobs(policy: Policy, ids: Sequence[int]) -> tuple[Tensor, float]:
    """Return log-probs (T, V) after each of ids (T) by eager attention in fp32, and how far others may be from them."""
    least = _TOLERANCE[policy.dtype]
    own = _logprobs(policy, ids)
    if policy.dtype == torch.float32:
        return own, least
    with compute_in_fp32(policy.model):
        exact = _logprobs(policy, ids)
    return exact, max(least, _MORE * _max_gap(policy, exact, own))


def _logprobs(policy: Policy, ids: Sequence[int]) -> Tensor:
    """Return log-probs (T, V) after each of ids (T), by one forward of them alone, without a cache."""
    logits: Tensor = policy.model(input_ids=torch.tensor([list(ids)], device=policy.device), use_cache=False).logits
    return logits[0].float().log_softmax(-1)


def _max_gap(policy: Policy, expected: Tensor, found: Tensor) -> float:
    likeliest = expected.topk(min(_LIKELIEST.get(policy.dtype, 1), expected.shape[-1])).indices
    return (expected.gather(-1, likeliest) - found.gather(-1, likeliest)).abs().max().item()


def _features_at(policy: Policy, places: Sequence[Sequence[int]]) -> Tensor:
    """Return features (B, T, F) of the same ids in every row, at `places` (B, T), each seen by those behind it."""
    size = len(places[0])
    ids = torch.tensor([policy.probe_ids(size, 1)] * len(places), device=policy.device)
    later = torch.ones(size, size, dtype=torch.bool, device=policy.device).triu(1)
    mask = torch.zeros(len(places), 1, size, size, dtype=policy.dtype, device=policy.device)
    return policy.features(
        ids,
        attention_mask=mask.masked_fill(later, -torch.inf),
        position_ids=torch.tensor(places, device=policy.device),
        use_cache=False,
    ).float()


def _require_near(policy: Policy, gap: Gap, what: str) -> None:
    if not gap.small:
        raise BackendError(
            f"expected the {what} to compute {policy.config.model_type} as its eager attention does, within "
            f"{gap.allowed:.2g} of every log-prob, found {gap.found:.2g}: choose another model"
        )
