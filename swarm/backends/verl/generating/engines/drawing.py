"""How tokens are drawn inside SGLang's process: by the sampler of the backend `local`, from SGLang's logits.

Promises: a token and its log-prob are those of `swarm.backends.local.generating.sampling`, cuts and all; a draw follows
from its request's seed and its place alone, whoever else is in the batch. Only SGLang's own process imports this whole;
`processor` is of the process that sends requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from swarm.backends.local.generating.sampling import sample
from swarm.backends.protocols import Sampling

BACKEND: Final = "ajet"
"""The `sampling_backend` of SGLang's that draws so."""


def processor() -> str:
    """Return SGLang's spelling of a logit processor that leaves logits as they are."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    class Untouched(CustomLogitProcessor):
        def __call__(self, logits: Tensor, custom_param_list: Any = None) -> Tensor:
            return logits

    spelled: str = Untouched.to_str()
    return spelled


def uniform_of(seed: int, place: int) -> float:
    """Return the number in [0, 1) by which a request of a seed draws the token that follows its `place`."""
    digest = hashlib.blake2b(f"{seed}:{place}".encode(), digest_size=8).digest()
    return float((int.from_bytes(digest) >> 11) / (1 << 53))


def drawn(logits: Tensor, rules: Sequence[Mapping[str, Any]], places: Sequence[int]) -> tuple[Tensor, Tensor, Any]:
    """Return ids (B,), log-probs (B,) and the likeliest ids of each row of logits (B, V), drawn by the rules.

    A row that has no finite numbers gets any id, of log-prob NaN: it is nothing to the others.
    """
    logits = logits.float()
    broken = logits.isnan().any(-1) | (logits == torch.inf).any(-1)
    logits = logits.masked_fill(broken[:, None], 0.0)
    asked = [
        Sampling(1, rule["temperature"], rule["top_p"], rule["top_k"], top_logprobs=rule["top_logprobs"])
        for rule in rules
    ]
    uniforms = [uniform_of(rule["seed"], place) for rule, place in zip(rules, places, strict=True)]
    ids, logprobs, top = sample(logits, asked, torch.tensor(uniforms, dtype=torch.float64))
    return ids, logprobs.masked_fill(broken, torch.nan), top


def register() -> None:
    """Have SGLang know the backend, in its process."""
    from sglang.srt.layers.sampler import Sampler, register_sampler_backend

    class Drawing(Sampler):
        def forward(
            self, logits_output: Any, sampling_info: Any, return_logprob: bool, top_logprobs_nums: Any,
            token_ids_logprobs: Any, positions: Tensor,
        ) -> Tensor:  # fmt: skip
            logits = logits_output.next_token_logits  # (B, V)
            ids, logprobs, top = drawn(logits, sampling_info.custom_params, positions.tolist())
            logits_output.next_token_logprobs = logprobs
            logits_output.next_token_top_logprobs_idx = [torch.tensor([token for token, _ in place]) for place in top]
            logits_output.next_token_top_logprobs_val = [torch.tensor([value for _, value in place]) for place in top]
            ids = ids.to(torch.int32)
            self._sync_token_ids_across_tp(ids, sampling_info)
            return ids

    register_sampler_backend(BACKEND, Drawing)
