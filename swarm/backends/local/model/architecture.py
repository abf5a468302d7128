"""Which architectures can be served and trained at some `max_context`, and by which attention, read from shapes alone.

The engine, the learner's rows and its trees all rely on two things: a token sees every token before it, and what is
computed of it depends on those alone, not on other rows of the batch or on later tokens. Where a model has windows, or
rotary frequencies that follow the longest sequence of a batch, that holds up to some length: a longer `max_context` is
refused. SDPA drops soft caps of attention scores, and some models have no SDPA that can be switched: eager attention
computes those, for engine and learner alike.
Promises: what is refused here is one BackendError that names the length that would do, if any, before any weight is
read. That an accepted model is computed correctly is checked once it is loaded (`eager_check.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from swarm.backends.protocols import BackendError

Attention = Literal["sdpa", "eager"]

_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Kinds of layers that see so many tokens only, and where a configuration says how many."""
_MOVING = frozenset({"dynamic", "longrope"})
"""Rotary embeddings whose frequencies are chosen by the longest position in a batch (transformers 5.10,
`modeling_rope_utils.dynamic_rope_update`): beyond so many positions, which stay as they were up to there."""


def require_servable(folder: Path, skeleton: Any, max_context: int) -> None:
    """Raise BackendError where the model of `skeleton`'s shapes cannot be served and trained at `max_context`."""
    config = skeleton.config.get_text_config(decoder=True)
    if getattr(skeleton.config, "is_encoder_decoder", False):
        raise BackendError(
            f"expected a decoder alone in {folder}, found {config.model_type}, which is an encoder-decoder: choose "
            f"another model"
        )
    missing = {"position_ids", "past_key_values"} - set(inspect.signature(skeleton.forward).parameters)
    if missing:
        raise BackendError(
            f"expected a model that can be told each token's position and past, found that {config.model_type} in "
            f"{folder} takes no {' and no '.join(sorted(missing))}: choose another model"
        )
    for words, limit in _limits(folder, config):
        if max_context > limit:
            raise BackendError(
                f"the job's max_context is {max_context}; {words}: set max_context to {limit} at most, or choose "
                f"another model"
            )


@contextmanager
def refusing(found: str, advice: str) -> Iterator[None]:
    """Turn any exception of an untested model, inside, into one BackendError."""
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(f"{found} ({type(error).__name__}: {error}): {advice}") from error


def attention(skeleton: Any) -> Attention:
    """Return the attention that computes all of the model; BackendError where there is none that can be checked."""
    switches = skeleton._can_set_attn_implementation()
    if not skeleton._supports_sdpa and not switches:
        raise BackendError(
            f"expected a model whose attention can be chosen, found that {skeleton.config.model_type} has its own "
            f"alone: choose another model"
        )
    return "sdpa" if skeleton._supports_sdpa and switches and not _soft_caps(skeleton.config) else "eager"


def _soft_caps(config: Any) -> bool:
    """Return whether scores of attention are capped softly (Gemma 2, arXiv 2408.00118, section 2), which SDPA drops."""
    return bool(getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None))


def _limits(folder: Path, config: Any) -> Iterator[tuple[str, int]]:
    """Yield lengths up to which all that is relied on holds, and in words what does not beyond."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None and getattr(config, "sliding_window", None):
        kinds = ["sliding_attention"]
    for kind in sorted(set(kinds or ()) - {"full_attention"}):
        window = getattr(config, _WINDOWS.get(kind, ""), None)
        if not window:
            raise BackendError(
                f"expected attention to all tokens before in every layer, found {kind} in {config.model_type} in "
                f"{folder}: choose another model"
            )
        yield f"a token of the model in {folder} sees the last {window} only in layers of {kind}", int(window)
    for rope in _ropes(getattr(config, "rope_parameters", None) or {}):
        if rope["rope_type"] in _MOVING:
            first = rope.get("original_max_position_embeddings") if rope["rope_type"] == "longrope" else None
            limit = int(first or config.max_position_embeddings)
            words = f"beyond {limit} positions the rotary embedding ({rope['rope_type']}) of the model in {folder}"
            yield f"{words} depends on the longest sequence of a batch", limit


def _ropes(parameters: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield parameters of rotary embeddings, which some configurations have one of and others one for each kind."""
    if "rope_type" in parameters:
        yield parameters
    for nested in parameters.values():
        if isinstance(nested, Mapping):
            yield from _ropes(nested)
