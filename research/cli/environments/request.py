"""What `ajet env check` is asked to try with a model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from research.design.estimates import runs_at_once
from research.environments.checking.check import has_parts
from research.environments.checking.with_model import ModelTrial, job_of
from research.errors import BadEnvironment
from research.installation.backends import require_backend
from research.installation.base_job import base_job
from research.models.checking import checks_in
from research.spelling import did_you_mean
from swarm.environments.base import Environment, Task
from swarm.errors import wrong_value
from swarm.job import Job, TinyModel

SECONDS = 1800.0
"""For the evaluation, and again for the training."""
_OURS = ("environment", "model", "tracking")

Held = Annotated[
    list[str],
    typer.Option("--set", help="FIELD=VALUE of the job, such as max_tokens=64 (ajet job explain).", show_default=False),
]


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The job to try, in whatever environment, and how much of it."""

    job: Job
    groups: int
    runs_at_once: int
    """Runs that a study would make at once here."""

    def of(self, environment: Environment) -> ModelTrial:
        """Return the trial in an environment; raise BadEnvironment where its model could not be made."""
        if isinstance(self.job.model, TinyModel) and not has_parts(environment)[1]:
            raise BadEnvironment(
                f"expected demonstrations of {environment.name}, which a tiny model imitates first; it has none; give "
                "it `imitate`, or name a model: --model-path DIR"
            )
        job = self.job.model_copy(update={"environment": environment.name})
        return ModelTrial(job, self.groups, SECONDS, self.runs_at_once)

    def tasks(self, environment: Environment) -> tuple[Task, ...]:
        """Return the search tasks to play, a seeded choice."""
        tasks = list(environment.tasks("search"))
        return tuple(random.Random(0).sample(tasks, min(self.groups, len(tasks))))


def trial_of(
    file: Path | None, model_path: str | None, tiny: bool, groups: int, held: Sequence[str], models: Path
) -> TrialRequest | None:
    """Return what options ask for, None for no model; `models` is where this installation keeps what it knows of them.

    Raises BadEnvironment or BadJob for what no job can be, and BadModel for a folder that holds no model.
    """
    if tiny and (model_path is not None or file is not None):
        other = "--model-path" if model_path is not None else "--job (it names its model)"
        raise BadEnvironment(f"expected --tiny or {other}; found both; choose one")
    base = Job() if tiny else base_job(file, model_path, models)
    if base is None:
        if held:
            raise BadEnvironment("expected --set beside --tiny or --model-path; found no model that it could matter to")
        return None
    try:
        job = job_of(base, dict(map(_field, held)))
    except ValidationError as error:
        raise BadEnvironment(f"{wrong_value(error)}; see `ajet job explain`") from error
    require_backend(job.backend)
    return TrialRequest(job, groups, runs_at_once([job], checks_in(models)))


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or name not in Job.model_fields or name in _OURS:
        near = "" if name in Job.model_fields else did_you_mean(name, Job.model_fields)
        raise BadEnvironment(
            f"expected --set FIELD=VALUE with a field of a job; found {text!r:.80}{near}; see `ajet job explain`"
        )
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
