"""Small random models, a chat tokenizer, and the slow, plain computations the backend is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from swarm.backends.local.model.policy import Policy

VOCABULARY = 48
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'forbidden' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_KINDS: dict[str, Callable[[int], Any]] = {
    "llama": lambda size: LlamaForCausalLM(LlamaConfig(vocab_size=size, tie_word_embeddings=True, **_SIZES)),
    "qwen2": lambda size: Qwen2ForCausalLM(Qwen2Config(vocab_size=size, tie_word_embeddings=False, **_SIZES)),
    "qwen3": lambda size: Qwen3ForCausalLM(Qwen3Config(vocab_size=size, head_dim=16, **_SIZES)),
    "wide": lambda size: LlamaForCausalLM(
        LlamaConfig(vocab_size=size, tie_word_embeddings=True, **{**_SIZES, "hidden_size": 128})
    ),
}
KINDS = ("llama", "qwen2", "qwen3")


def make_model(kind: str = "llama", vocabulary: int = VOCABULARY, seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _KINDS[kind](vocabulary).eval()


SPECIAL = 16
"""Ids of `make_real_vocabulary` on which bfloat16 goes astray."""
WORDS = tuple(range(20, 60))
"""Ids of it on which it does not."""


def make_real_vocabulary(dtype: torch.dtype) -> Any:
    """Return a model with the trouble of a real vocabulary: scores of attention between its first ids are in the
    hundreds, so that what bfloat16 rounds away of them decides what is attended to. Other ids know nothing of it.
    """
    model = make_model(vocabulary=96)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        astray = torch.zeros_like(embeddings[0])
        astray[0] = 1.0
        embeddings[:, 0] = 0.0
        embeddings[:SPECIAL] += 5 * astray
        model.base_model.norm.weight[0] = 0.0
        for layer in model.base_model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                slow = projection.weight.unflatten(0, (-1, 8))[:, [3, 7], 0]  # what rotary embedding hardly turns
                projection.weight[:, 0] = 0.0
                projection.weight.unflatten(0, (-1, 8))[:, [3, 7], 0] = torch.full_like(slow, 16.0)
            for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                projection.weight[0] = 0.0
    return model.to(dtype)


def make_policy(kind: str = "llama", seed: int = 0) -> Policy:
    torch.set_num_threads(1)
    return Policy(make_model(kind, seed=seed))


def save_folder(folder: Path, kind: str = "llama") -> Path:
    """Save a whole model folder: config, safetensors, fast tokenizer, chat template."""
    tokenizer = make_tokenizer()
    make_model(kind, vocabulary=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@torch.no_grad()
def forced_logprobs(
    policy: Policy, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Log-probs of `answer` by one full forward over prompt and answer, without any cache."""
    ids = torch.tensor([[*prompt, *answer]])
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
    found: list[float] = logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0].tolist()
    return found


@torch.no_grad()
def greedy_loop(policy: Policy, prompt: Sequence[int], tokens: int) -> list[int]:
    """Greedy decoding by a full forward per token."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(policy.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]
