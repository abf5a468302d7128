"""What the harness's evaluator writes, and how an attempt's two evaluations are stored: outcomes, no averages."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Evaluated(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EpisodeOutcome(_Evaluated):
    """One play of one hidden task."""

    task_id: str
    sample: int
    success: bool
    reward: float = Field(allow_inf_nan=False)


class Said(_Evaluated):
    """One message of a play."""

    role: str
    content: str


class Transcript(_Evaluated):
    """One play of one hidden task, word for word as far as it was kept."""

    task_id: str
    messages: list[Said]


class Evaluation(_Evaluated):
    """What the harness's evaluator wrote: every outcome, no average."""

    environment: str
    split: str
    policy_version: int
    episodes: list[EpisodeOutcome]
    transcripts: list[Transcript] = []
    """A few plays for people to read; empty in evaluations of versions that kept none."""

    @property
    def success(self) -> float:
        """Share of its episodes that were solved."""
        return sum(episode.success for episode in self.episodes) / len(self.episodes)


class RunEvaluation(_Evaluated):
    """The stored evaluation of a run."""

    study: str | None = None
    """The run's study; None in files from before they named it."""
    run_id: str
    attempt: int
    initial: Evaluation
    final: Evaluation
