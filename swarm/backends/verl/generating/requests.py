"""Whether an engine can answer a request at all."""

from __future__ import annotations

from typing import Final

from swarm.backends.protocols import GenerationRequest, GrammarRefused, RequestRefused

_COLDEST: Final = 0.01
_HOTTEST: Final = 2.0
"""Temperatures that vLLM heeds, beside 0: it raises any below to the first, and refuses any above the last."""


def require_readable(request: GenerationRequest, max_context: int, vocabulary: int) -> None:
    """Raise RequestRefused, with what was expected and found, for what no replica could answer."""
    prompt, sampling, said = request.prompt_ids, request.sampling, f"request {request.name}"
    if not 0 < len(prompt) < max_context:
        raise RequestRefused(f"{said}: expected 1 to {max_context - 1} prompt ids, found {len(prompt)}")
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        strange = next(token for token in prompt if not 0 <= token < vocabulary)
        raise RequestRefused(
            f"{said}: expected prompt ids from 0 to {vocabulary - 1}, which the model has embeddings for, "
            f"found {strange}"
        )
    if sampling.max_tokens < 1:
        raise RequestRefused(f"{said}: expected max_tokens of 1 or more, found {sampling.max_tokens}")
    if sampling.temperature != 0 and not _COLDEST <= sampling.temperature <= _HOTTEST:
        raise RequestRefused(
            f"{said}: expected temperature 0, or {_COLDEST} to {_HOTTEST}, found {sampling.temperature}"
        )
    if sampling.grammar is not None:
        raise GrammarRefused(f"{said}: expected no grammar, as this engine follows none: backend `local` does")
