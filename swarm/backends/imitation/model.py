"""Models from folders, warm-started on demonstrations of an environment, cached by hash.

    python -m swarm.backends.imitation.model --models DIR --job JSON

Promises: the folder is whole or absent, and holds the model's own files but for the weights, which are in fp32 so that
no small step is lost; the same model, environment, steps and recipe name the same folder; processes that ask at once
make it once. No foreign code runs: the demonstrations of a brought environment are data. Does not know servers: it ends
where reinforcement learning begins.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from swarm.backends.imitation.rows import rows_of
from swarm.backends.imitation.training import Progress, imitate
from swarm.backends.local.model.loading import load_policy
from swarm.backends.made_once import made_once, print_made
from swarm.backends.protocols import BackendError, TrainRow
from swarm.backends.rendering.renderer import HFRenderer, load_renderer
from swarm.environments import Environment, get_environment
from swarm.environments.registry import look_in
from swarm.errors import InvalidRequest
from swarm.job import Job, PathModel
from swarm.models import folder_hash, model_place, require_model_folder

_VERSION = 1
"""Raise it when a change of the recipe gives other weights for the same model, environment and steps."""
PLAYS_PER_STEP = 16
_TRIES = 200
"""Demonstrations drawn in a row that may be longer than the context before it is said to be too short."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".safetensors.index.json", ".bin.index.json")


def ensure_imitated(job: Job, models: Path, progress: Progress | None = None) -> Path:
    """Return the folder under `models` of a job's model from a path after its warm start, making it if need be.

    `progress` is told (steps done, steps in all). Raises InvalidRequest for an environment that is unknown or without
    demonstrations, BackendError for a model or chat template that will not do, OSError where nothing can be written.
    """
    spec = job.model
    if not isinstance(spec, PathModel):
        raise TypeError(f"expected a model from a path, found {spec.kind}")
    require_model_folder(source := model_place(spec.path, models))
    world = get_environment(job.environment)
    if not world.has("imitate"):
        raise InvalidRequest(
            f"expected demonstrations of {job.environment} for warm_start_steps {spec.warm_start_steps}; it has none; "
            "give the environment `imitate`, or set warm_start_steps to 0"
        )
    renderer = load_renderer(source)
    drawn = _Drawn(renderer, world, job)
    drawn()  # whatever is wrong with template or demonstrations shows before weights are read
    folder = models / imitated_hash(spec, source, job.environment, job.max_context)
    return made_once(folder, lambda scratch: _make(job, source, renderer, scratch, progress))


def imitated_hash(spec: PathModel, source: Path, environment: str, max_context: int) -> str:
    """Return the name of the folder: 16 hex digits of a hash over the files in `source`, environment, steps, recipe."""
    parts = {
        "version": _VERSION, "model": folder_hash(source), "environment": environment,
        "steps": spec.warm_start_steps, "max_context": max_context,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class _Drawn:
    """Draws batches of demonstrations of training tasks, the same ones each time it is made."""

    def __init__(self, renderer: HFRenderer, environment: Environment, job: Job) -> None:
        self._renderer, self._environment, self._most = renderer, environment, job.max_context
        self._tasks = environment.tasks("train")
        self._rng = random.Random("imitation")

    def __call__(self) -> Sequence[TrainRow]:
        return [row for _ in range(PLAYS_PER_STEP) for row in self._play()]

    def _play(self) -> Sequence[TrainRow]:
        """Return the rows of a demonstration that fits the job's context."""
        for _ in range(_TRIES):
            rows = rows_of(self._renderer, self._environment.demonstrate(self._rng.choice(self._tasks), self._rng))
            if rows and all(len(row.ids) <= self._most for row in rows):
                return rows
        raise BackendError(
            f"expected demonstrations of {self._environment.name} within max_context {self._most}; found {_TRIES} that "
            "are longer, or without answers; raise max_context"
        )


def _make(job: Job, source: Path, renderer: HFRenderer, folder: Path, progress: Progress | None) -> None:
    whole = job.model_copy(update={"lora_rank": 0, "dtype": "float32", "kl_coef": 0.0})
    model = load_policy(source, whole, ids=renderer.ids).model
    drawn = _Drawn(renderer, get_environment(job.environment), job)
    imitate(model, drawn, steps=job.model.warm_start_steps, progress=progress)
    model.save_pretrained(folder)
    for path in _files(source):
        if path.name != "config.json" and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, folder / path.name)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _print_progress(done: int, of: int) -> None:
    sys.stdout.write(f"warm start {done}/{of}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Make the model of the job in the command line and print its folder; return the exit code (2: bad input)."""
    parser = argparse.ArgumentParser(prog="python -m swarm.backends.imitation.model", description="Warm-start a model.")
    parser.add_argument("--job", required=True, help="the job as JSON")
    parser.add_argument("--environments", type=Path, help="folder of environments that were brought")
    parser.add_argument("--models", required=True, type=Path, help="folder of models; made if missing")
    given = parser.parse_args(arguments)
    if given.environments is not None:
        look_in(given.environments)
    disable_progress_bar()
    return print_made(
        lambda: ensure_imitated(Job.recorded(given.job), given.models, _print_progress), "--job to be a job's JSON"
    )


if __name__ == "__main__":
    sys.exit(main())
