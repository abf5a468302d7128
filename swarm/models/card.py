"""The card of an exported model: which training it came out of, and what was measured of it.

Promises: nothing is said that nobody measured; without an evaluation of the very weights the card says that there is
none. Pure data: who gathers it is `swarm.server.model_export`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
        """Return the card as a person reads it: Markdown below front matter, as model hubs read it."""
        tags = ["reinforcement-learning", "ajet", *(["lora"] if self.adapter != "none" else [])]
        front = ["library_name: peft" if self.adapter == "apart" else "library_name: transformers"]
        front += ["pipeline_tag: text-generation", "tags:", *(f"- {tag}" for tag in tags)]
        if self.adapter == "apart":
            front.append(f"base_model: {json.dumps(self.base)}")
        rows = "\n".join(f"| {name} | {value} |" for name, value in self._rows())
        return "\n".join(
            ["---", *front, "---", "", f"# {self.environment}, step {self.step}", "", _USE[self.adapter]]
        ) + (f"\n\n| what | value |\n|---|---|\n{rows}\n\nThe job, whole, and all hashes: `{CARD}`.\n")

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("job", f"`{self.job_digest}`"),
            ("environment", f"`{self.environment}`"),
            ("step", f"{self.step} (checkpoint `{self.checkpoint}`)"),
            ("trained on", f"{self.trained_episodes} episodes"),
            ("measured", self._measured()),
            ("began with", f"`{self.base}`, weights `{self.base_weights}`"),
            ("chat template", f"`{self.template}`"),
            *((f"task list of stream `{name}`", f"`{digest}`") for name, digest in sorted(self.data.items())),
            ("this folder", f"{self.dtype}, `{self.sha256}`"),
            ("written by", f"ajet {self.ajet}"),
        ]

    def _measured(self) -> str:
        found = self.measured
        if found is None:
            return "nothing: no evaluation episode was played with these weights"
        success = "" if found.success is None else f", success {found.success:.4g}"
        return (
            f"mean reward {found.reward:.4g}{success} over {found.episodes} evaluation episodes of {found.tasks} tasks"
        )


_USE: Mapping[Adapter, str] = {
    "none": "All weights were trained. `transformers.AutoModelForCausalLM.from_pretrained` loads this folder.",
    "merged": "A LoRA adapter was trained and is merged into the weights. "
    "`transformers.AutoModelForCausalLM.from_pretrained` loads this folder.",
    "apart": "A LoRA adapter: `peft.PeftModel.from_pretrained(base, folder)` puts it on the model named below.",
}
