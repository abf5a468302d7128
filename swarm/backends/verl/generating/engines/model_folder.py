"""What a model's folder says of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swarm.backends.protocols import BackendError


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model folder's config; raise BackendError where there is none, or no weights beside it."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise BackendError(f"expected a model folder with a config.json in {folder}, found none: {error}") from None
    if not any(found for pattern in ("*.safetensors", "*.bin") for found in folder.glob(pattern)):
        raise BackendError(
            f"expected weights (*.safetensors) in the model folder {folder}, found none: copy them there"
        )
    return config


def vocabulary_of(folder: Path) -> int:
    """Return how many ids a model has embeddings for."""
    return int(text_config(folder)["vocab_size"])


def text_config(folder: Path) -> Mapping[str, Any]:
    """Return what a model's config says of its language model."""
    config = read_config(folder)
    found: Mapping[str, Any] = config.get("text_config") or config
    return found


def has_slopes(config: Mapping[str, Any]) -> bool:
    """Return whether attention has slopes of its own (ALiBi, arXiv 2108.12409), which are no parameter."""
    said = config.get("alibi") or (config.get("attn_config") or {}).get("alibi")
    return bool(said) or config.get("model_type") in ("bloom", "step1")


def head_size(folder: Path) -> int:
    """Return the numbers of one of a model's attention heads; 0 where its config does not say."""
    text = text_config(folder)
    heads = text.get("num_attention_heads")
    return int(text.get("head_dim") or (text.get("hidden_size", 0) // heads if heads else 0))


def token_bytes(folder: Path, dtype: str) -> int:
    """Return the bytes that one token takes in a key-value cache."""
    text = text_config(folder)
    heads = text.get("num_key_value_heads") or text["num_attention_heads"]
    return int(2 * text["num_hidden_layers"] * heads * head_size(folder) * (4 if dtype == "float32" else 2))


def require_positions(folder: Path, max_context: int) -> None:
    """Raise BackendError where a model was made for fewer positions than `max_context`."""
    positions = text_config(folder).get("max_position_embeddings")
    if positions and max_context > positions:
        raise BackendError(
            f"expected max_context of at most {positions}, as {folder} was made for, found {max_context}"
        )
