"""Small random models that vLLM's attention on a CPU has kernels for, and plain forwards of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 259
"""No multiple of 64, to which vLLM pads: its own rows must never be sampled."""
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": 7,
    "pad_token_id": None,
}


def make_model(seed: int = 0, *, tied: bool = False) -> Any:
    """Return a tied Llama, or an untied Qwen3."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if tied:
            return LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **_SIZES)).eval()
        return Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=False, **_SIZES)).eval()


def buckets_of(model: Any, count: int = 3) -> list[dict[str, torch.Tensor]]:
    """Return all weights, those that are tied under both names, in so many parts."""
    state = list(model.state_dict(keep_vars=False).items())
    return [dict(state[start::count]) for start in range(count)]


def save_folder(folder: Path, **how: Any) -> Path:
    """Save a model's folder, without a tokenizer."""
    make_model(**how).save_pretrained(folder)
    return folder


@torch.no_grad()
def distributions(model: Any, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Return the log-probs (T, V) of what follows each of `ids`."""
    logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return (logits.float() / temperature).log_softmax(-1)


def forced(model: Any, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Return the log-prob of each id of `answer`, by one forward over prompt and answer."""
    places = distributions(model, [*prompt, *answer], temperature)[len(prompt) - 1 : -1]
    found: list[float] = places.gather(-1, torch.tensor(list(answer))[:, None])[:, 0].tolist()
    return found


def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """Return the likeliest answer, by a forward for each id."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(distributions(model, ids)[-1].argmax()))
    return ids[len(prompt) :]
