"""Makes the backend a job names, importing only that one's libraries."""

from __future__ import annotations

from pathlib import Path

from swarm.backends.protocols import Backend, BackendError
from swarm.job import Job


def make_backend(job: Job, models: Path) -> Backend:
    """Return the job's backend, not yet started; `models` caches what it makes. BackendError if it cannot be made."""
    if job.backend == "fake":
        from swarm.backends.fake import FakeBackend

        return FakeBackend(job)
    try:
        from swarm.backends.local import LocalBackend
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"torch", "transformers", "safetensors", "tokenizers"}:
            raise
        raise BackendError(
            f"backend `local` needs {error.name}, which is not installed; install the `local` extra: "
            "pip install 'ajet[local]'"
        ) from error
    return LocalBackend(job, models)
