"""The card of an exported model, and what a check measured of a model: pure data.

A card says which training the model came out of and says nothing that nobody measured; without an evaluation of the
very weights it says that there is none (`swarm.server.model_export` gathers it). A check's figures were measured on
this machine under the `conditions` beside them (`swarm.backends.local.model_check`); nothing is estimated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from swarm.job import Job

CARD = "ajet.json"
"""The card's file that a program reads; a person reads `README.md`."""

Adapter = Literal["none", "merged", "apart"]


class MeasuredSuccess(BaseModel):
    """All evaluation episodes that began under the weights of one step, and ended."""

    model_config = ConfigDict(frozen=True)

    episodes: int
    tasks: int
    """Different ones among them."""
    reward: float
    """Mean over the episodes."""
    success: float | None
    """Share that succeeded, of those that said whether they did; None where none did."""


class ModelCard(BaseModel):
    """Where an exported model comes from; hashes are sha256 in hex."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    ajet: str
    """Version that wrote it."""
    job_digest: str
    job: Mapping[str, Any]
    environment: str
    """Of one that was brought, the name ends in the hash of its code and tasks."""
    step: int
    checkpoint: str
    dtype: str
    adapter: Adapter
    base: str
    """Folder of the model that training began with."""
    base_weights: str
    """Hash of these weights, as a server's status tells it (`provenance`)."""
    template: str
    """Hash of the chat template."""
    sha256: str
    """`swarm.models.folder_hash` of the exported folder: what a job's `model.sha256` says of it."""
    data: Mapping[str, str] = Field(default_factory=dict)
    """By stream, the digest of its task list (`swarm.wire.tasks_digest`); of streams that listed theirs."""
    trained_episodes: int
    """Episodes that these weights learned from."""
    measured: MeasuredSuccess | None
    """None: nothing was measured of these weights."""

    def readme(self) -> str:
        tags = ["reinforcement-learning", "ajet", *(["lora"] if self.adapter != "none" else [])]
        front = ["library_name: peft" if self.adapter == "apart" else "library_name: transformers"]
        front += ["pipeline_tag: text-generation", "tags:", *(f"- {tag}" for tag in tags)]
        if self.adapter == "apart":
            front.append(f"base_model: {json.dumps(self.base)}")
        measured = "nothing: no evaluation episode was played with these weights"
        if (seen := self.measured) is not None:
            success = "" if seen.success is None else f", success {seen.success:.4g}"
            plays = f"{seen.episodes} evaluation episodes of {seen.tasks} tasks"
            measured = f"mean reward {seen.reward:.4g}{success} over {plays}"
        facts = [
            ("job", f"`{self.job_digest}`"),
            ("environment", f"`{self.environment}`"),
            ("step", f"{self.step} (checkpoint `{self.checkpoint}`)"),
            ("trained on", f"{self.trained_episodes} episodes"),
            ("measured", measured),
            ("began with", f"`{self.base}`, weights `{self.base_weights}`"),
            ("chat template", f"`{self.template}`"),
            *((f"task list of stream `{name}`", f"`{digest}`") for name, digest in sorted(self.data.items())),
            ("this folder", f"{self.dtype}, `{self.sha256}`"),
            ("written by", f"ajet {self.ajet}"),
        ]
        rows = "\n".join(f"| {name} | {value} |" for name, value in facts)
        return "\n".join(
            ["---", *front, "---", "", f"# {self.environment}, step {self.step}", "", _USE[self.adapter]]
        ) + (f"\n\n| what | value |\n|---|---|\n{rows}\n\nThe job, whole, and all hashes: `{CARD}`.\n")


_USE: Mapping[Adapter, str] = {
    "none": "All weights were trained. `transformers.AutoModelForCausalLM.from_pretrained` loads this folder.",
    "merged": "A LoRA adapter was trained and is merged into the weights. "
    "`transformers.AutoModelForCausalLM.from_pretrained` loads this folder.",
    "apart": "A LoRA adapter: `peft.PeftModel.from_pretrained(base, folder)` puts it on the model named below.",
}

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
