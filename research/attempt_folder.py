"""What lies in the folder of one attempt at a run, and the values its files hold.

attempt.json               the order: what to run; written by the study before the attempt is launched
progress.json              where it stands, about once a second; for display only
outcome.json               how it ended, by its own word; absent when it was killed
evaluation-initial.json    the harness's evaluation before training, by the built-in evaluator
evaluation-final.json      the same after it
exchange/                  sockets through which containers of the attempt speak, one folder for each
server/                    the swarm server's folder: server.json, tokens.json, store, checkpoints
wandb/                     the W&B log
logs/                      output of server, client and evaluator
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from research.budget import MOST_SECONDS
from research.files import read_json
from research.sandboxing import PROCESS, Sandboxing
from studies.procedure import Watchdog
from studies.records import RunSpec, Stillness
from swarm.job import Job, Tracking

Stage = Literal["boot", "initial", "train", "final", "stop"]
Role = Literal["client", "evaluator-initial", "evaluator-final"]
"""Who plays in an attempt."""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Order(_File):
    """What an attempt is to do."""

    study: str
    run_id: str
    attempt: int = Field(ge=1)
    spec: RunSpec
    models: str
    """Folder of the model cache."""
    sandbox: Sandboxing = PROCESS
    """Where its client and its evaluators run."""
    containers: str = ""
    """Root of the containers' folders; empty where there are none."""
    time_limit_s: float | None = None
    """What no container of it may outlive."""
    watchdog: Watchdog | None = None
    """The locked limits of its training; None where the design has none."""

    @property
    def job(self) -> Job:
        """Return the run's job, untracked."""
        return Job.recorded(self.spec.job)

    @property
    def tracking_id(self) -> str:
        """Return the W&B run id: the run and the attempt, so that it can be found and never mixed up."""
        return f"{self.run_id}-a{self.attempt}"

    def labels(self) -> dict[str, str]:
        """Return the labels by which the containers of the attempt are found again."""
        return {"study": self.study, "run_id": self.run_id, "attempt": str(self.attempt)}

    def names(self) -> dict[str, Any]:
        """Return what the tracked run must say it is (the job's digest by the server's own word)."""
        return {
            "study": self.study,
            "design_hash": self.spec.design_hash,
            "arm": self.spec.arm,
            "seed": self.spec.seed,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "job_digest": self.job.digest(),
        }

    def tracked_job(self, folder: AttemptFolder) -> Job:
        """Return the run's job, tracked under the attempt's folder and its names."""
        tracking = Tracking(
            group=self.study,
            name=f"{self.spec.arm} seed {self.spec.seed}",
            run_id=self.tracking_id,
            directory=str(folder.path),
            config=self.names(),
        )
        return Job.recorded({**self.spec.job, "tracking": tracking})


class Progress(_File):
    """Where an attempt stands."""

    stage: Stage
    step: int = 0
    steps: int
    train_success: float | None = None
    """Share of the last batch's episodes that were solved; None before the first step."""
    hidden_success: float | None = None
    """Share of hidden tasks solved in the latest evaluation; None before the first."""
    refused: int = 0
    """Requests from containers that were refused."""
    seconds: float
    """Since the attempt began."""


class Seen(_File):
    """What an attempt saw of the conditions it ran under; None where it could not see."""

    initial_policy: str | None = None
    """sha256 of the weights that training began with."""
    template: str | None = None
    """sha256 of the chat template."""
    decoding: str | None = None
    """How its evaluations sampled."""
    overlap: int | None = None
    """Tasks that were trained on and evaluated."""
    hardware: str | None = None
    stillness: Stillness | None = None
    """What a training with a learning rate of 0 did to the weights."""


class Outcome(_File):
    """How an attempt ended."""

    status: Literal["finished", "failed"]
    code: str
    """`ok`, or what failed: `boot_failed`, `server_died`, `server_failed`, `client_died`, ..."""
    reason: str = ""
    seconds: float = Field(ge=0, le=MOST_SECONDS)
    stages: Mapping[str, float]
    """Seconds of each stage that was begun, and from a container's launch to its first model call (`client_start`)."""
    refused: Mapping[str, int] = {}
    """Requests from containers that were refused, by who asked and why."""
    evaluations: Mapping[str, str] = {}
    """sha256 of each evaluation that a container handed over, by its stage."""
    seen: Seen = Seen()
    stopped_by: str = ""
    """Code of the watchdog's rule that ended training early, by the attempt's word; collecting finds it again."""
    files: Mapping[str, str] = {}
    """sha256 of the evaluations and of the tracker's log, by their path in the folder, when the attempt ended."""


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """The paths of one attempt."""

    path: Path

    @property
    def order(self) -> Path:
        """The order."""
        return self.path / "attempt.json"

    @property
    def progress(self) -> Path:
        """The progress."""
        return self.path / "progress.json"

    @property
    def outcome(self) -> Path:
        """The outcome."""
        return self.path / "outcome.json"

    @property
    def server(self) -> Path:
        """The swarm server's folder."""
        return self.path / "server"

    def exchange(self, role: Role) -> Path:
        """The exchange folder of a container."""
        return self.path / "exchange" / role

    def evaluation(self, stage: Literal["initial", "final"]) -> Path:
        """The evaluator's answer of a stage."""
        return self.path / f"evaluation-{stage}.json"

    def log(self, name: str) -> Path:
        """The output of one process of the attempt."""
        return self.path / "logs" / f"{name}.log"


def read_progress(folder: AttemptFolder) -> Progress | None:
    """Return where an attempt stands; None when it has not said, or when a power cut left half of its word."""
    try:
        value = read_json(folder.progress)
        return None if value is None else Progress.model_validate(value)
    except ValueError:  # of JSON or of the model; it is for display only, and written anew within a second
        return None
