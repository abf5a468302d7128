"""Makes the backend a job names, importing only that one's libraries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from swarm.backends.protocols import Backend, BackendError
from swarm.job import Job

_LOCAL = ("torch", "transformers", "safetensors", "tokenizers")


def make_backend(job: Job, models: Path) -> Backend:
    """Return the job's backend, not yet started; `models` caches what it makes. BackendError if it cannot be made."""
    if job.backend == "fake":
        from swarm.backends.fake.backend import FakeBackend

        return FakeBackend(job)
    needed = (*_LOCAL, "peft") if job.lora_rank else _LOCAL
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendError(
            f"backend `local`{' with a lora_rank' if job.lora_rank else ''} needs {', '.join(missing)}, not installed "
            "here; install the `local` extra: "
            "pip install 'ajet[local]'"
        )
    from swarm.backends.local import LocalBackend

    return LocalBackend(job, models)
