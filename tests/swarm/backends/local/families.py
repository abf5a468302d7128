"""Tiny random models of many families, made on the spot from nothing but their configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VOCABULARY = 48
WINDOW = 40
"""Window of the families that have one."""
POSITIONS = 64
"""Most positions of every family."""

_NO_IDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_PLAIN: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    **_NO_IDS,
}
_WIDER: dict[str, Any] = {**_PLAIN, "intermediate_size": 48, "num_key_value_heads": 2}
_HEADS: dict[str, Any] = {**_WIDER, "head_dim": 8}
_WINDOWED: dict[str, Any] = {**_WIDER, "sliding_window": WINDOW}
_EXPERTS: dict[str, Any] = {**_HEADS, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
_LATENT: dict[str, Any] = {
    **_WIDER,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_CAPPED: dict[str, Any] = {
    **_HEADS,
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 8,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}
_OLD: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}
_DYNAMIC_ROPE: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
_LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [4.0, 8.0, 16.0, 32.0],
    "factor": POSITIONS / WINDOW,
}

SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere2": ("cohere2", _WINDOWED),
    "deepseek_v2": ("deepseek_v2", {**_LATENT, "q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", _LATENT),
    "falcon": ("falcon", {**_PLAIN, "multi_query": True}),
    "falcon-grouped": ("falcon", {**_PLAIN, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "gemma": ("gemma", _HEADS),
    "gemma2": ("gemma2", _CAPPED),
    "gemma3": ("gemma3_text", {**_HEADS, "sliding_window": WINDOW}),
    "gpt2": ("gpt2", _OLD),
    "gpt_bigcode": ("gpt_bigcode", _OLD),
    "gpt_neox": ("gpt_neox", {**_PLAIN, "intermediate_size": 48}),
    "gpt_oss": ("gpt_oss", {**_EXPERTS, "sliding_window": WINDOW}),
    "granite": ("granite", {**_WIDER, "logits_scaling": 4.0}),
    "llama": ("llama", _WIDER),
    "llama-dynamic": ("llama", {**_WIDER, "rope_parameters": _DYNAMIC_ROPE}),
    "mistral": ("mistral", _WINDOWED),
    "mixtral": ("mixtral", _EXPERTS),
    "nemotron": ("nemotron", _WIDER),
    "olmo3": ("olmo3", _WINDOWED),
    "opt": ("opt", {**_PLAIN, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi3": ("phi3", _WIDER),
    "phi3-longrope": (
        "phi3", {**_WIDER, "rope_parameters": _LONG_ROPE, "original_max_position_embeddings": WINDOW}
    ),
    "qwen2": ("qwen2", _WIDER),
    "qwen2-windows": ("qwen2", {**_WINDOWED, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", _HEADS),
    "qwen3_moe": ("qwen3_moe", {**_EXPERTS, "moe_intermediate_size": 16}),
}  # fmt: skip
"""What the slot engine must serve as the model itself computes it, at a `max_context` of WINDOW."""

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bart": (
        "bart",
        {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": POSITIONS},
        "takes no position_ids",
    ),
    "bloom": ("bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "no position_ids"),
    "falcon-alibi": ("falcon", {**_PLAIN, "alibi": True}, "falcon to run .*found that it fails"),
    "gptj": ("gptj", {**_OLD, "rotary_dim": 4}, "gptj has its own alone"),
    "jamba": ("jamba", _WIDER, "mamba in jamba"),
    "lfm2": ("lfm2", {**_WIDER, "layer_types": ["conv", "full_attention"]}, "conv in lfm2"),
    "mamba": ("mamba", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}, "no past_key_values"),
}  # fmt: skip
"""What is refused when it is loaded, and by which words."""


def save_family(kind: str, fields: dict[str, Any], folder: Path) -> Path:
    """Save a model whose every matrix is random and large enough to be heard."""
    config = CONFIG_MAPPING[kind](**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(std=0.25)
    model.save_pretrained(folder)
    return folder
