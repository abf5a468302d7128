"""Makes the backend a job names, importing only that one's libraries: one of ajet's own, or of an installed package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from swarm.backends.protocols import Backend, BackendError
from swarm.entry_points import BACKENDS, BUILT_IN_BACKENDS, EntryPointBroken, backend_names, load
from swarm.errors import InvalidRequest
from swarm.job import Job

_VERL = ("ray", "verl", "vllm", "tensordict", "peft")
_LOCAL = ("torch", "transformers", "safetensors", "tokenizers")


def require_known(name: str) -> None:
    """Raise InvalidRequest, which lists the names, unless a backend of this name is installed."""
    if name not in BUILT_IN_BACKENDS and name not in (known := backend_names()):
        raise InvalidRequest(f"backend: expected one of {', '.join(known)}; found {name!r}", param="backend")


def make_backend(job: Job, models: Path) -> Backend:
    """Return the job's backend, not yet started; `models` caches what it makes. BackendError if it cannot be made."""
    if job.backend == "local":
        return _local(job, models)
    if job.backend == "verl":
        return _verl(job, models)
    if job.start_from is not None:
        raise BackendError(
            f"expected no start_from with the backend {job.backend}, found {job.start_from!r}: `local` and `verl` "
            "begin with an exported folder; leave it out"
        )
    if job.backend == "fake":
        from swarm.backends.fake.backend import FakeBackend

        return FakeBackend(job)
    return _installed(job, models)


def _local(job: Job, models: Path) -> Backend:
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


def _verl(job: Job, models: Path) -> Backend:
    missing = [name for name in (*_LOCAL, *_VERL) if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendError(
            f"backend `verl` needs {', '.join(missing)}, not installed here; make an environment of its own for swarm "
            "servers that use it, with ajet[verl] as docs/cluster.md says, and start the server with its Python"
        )
    from swarm.backends.verl.backend import VerlBackend

    return VerlBackend(job, models)


def _installed(job: Job, models: Path) -> Backend:
    try:
        require_known(job.backend)
        made: Backend = load(BACKENDS, job.backend)(job, models)
    except (InvalidRequest, EntryPointBroken) as error:
        raise BackendError(str(error)) from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BackendError(f"the backend {job.backend} of an installed package could not be made: {said}") from error
    return made
