"""What a check of a model measured: pure data, so that a study can say before its first run what one will cost.

Promises: nothing here is estimated; each figure was measured on this machine under the `conditions` that stand beside
it. How it is measured: `swarm.backends.checking`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from swarm.job import Job

_DECIDE = (
    "device", "dtype", "engine", "lora_rank", "gradient_checkpointing", "merging", "micro_batch_tokens", "max_context",
    "max_concurrency", "kv_cache_bytes",
)  # fmt: skip
"""Fields of a job that speed and memory depend on, beside its model."""


def conditions(job: Job) -> dict[str, Any]:
    """Return the fields of a job by which a check of its model holds for another job."""
    return job.model_dump(mode="json", include=set(_DECIDE))


class TemplateCheck(BaseModel):
    """What a chat template does with the messages that agents send."""

    model_config = ConfigDict(frozen=True)

    answers: str
    """How answers are read, by the marks in the template: `plain`, `hermes`, `llama3`, ..."""
    tools: Literal["rendered", "ignored", "refused"]
    """What becomes of tools: they are in the prompt, they are left out without a word, or the template fails."""
    tools_refusal: str | None
    """Why the template fails on tools."""
    thinking: bool
    """Whether thought is told from words in an answer."""
    system: bool
    """Whether it takes a system message."""


class ModelCheck(BaseModel):
    """One check of one model folder; seconds are of the wall clock, with nothing else counted in."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    folder: str
    folder_hash: str
    """`swarm.models.folder_hash` of it."""
    conditions: dict[str, Any]
    """`conditions(job)` of the job it was checked as."""
    threads: int
    """Threads that torch computed with."""
    architecture: str
    parameters: int
    trained_parameters: int
    """As many as `parameters`, or the adapter's."""
    positions: int | None
    """Most tokens of a sequence by its configuration."""
    template: TemplateCheck
    fused: bool
    """Whether the engine's own forward serves it."""
    fused_lost: str | None
    """Why not."""
    trees: bool
    """Whether rows that share a beginning are learned as trees."""
    trees_lost: str | None
    """Why not."""
    logprob_gap: float
    """Most by which a log-prob of the engine differs from that of a plain forward by eager attention."""
    logprob_tolerance: float
    """Most that would be served."""
    load_s: float
    seconds_per_prompt_token: float
    seconds_per_generated_token: float
    """With `at_once` episodes side by side; alone each takes longer."""
    seconds_per_learned_token: float
    """Of all ids that an update feeds (`tokens/forward` of a step): a prompt that a group shares once where there are
    trees, else once for each episode."""
    fed_per_sampled_token: float
    """Ids that the measured updates fed for each sampled one they learned: 2 with trees, 5 without, for groups of 4
    with prompts of 64 tokens and answers of 16."""
    busy: float
    """Seconds of processor that the check got, as a share of what its threads could have had meanwhile. Far below 1,
    other programs held it up, and alone it is as much faster. 1 where no CPU computes."""
    at_once: int
    """Episodes that were generated side by side."""
    loaded_bytes: int
    """Memory of the process with the model loaded and its cache laid out."""
    peak_bytes: int
    """Most memory that the process had at any time; on a GPU, of the GPU."""
    cache_bytes_per_token: int
    fits_at_once: int
    """Episodes of max_context that the engine advances at once within the job's bounds and this machine's memory."""
    memory_holds: int
    """Episodes of max_context whose keys and values the free memory would hold, whatever the job's bounds."""
