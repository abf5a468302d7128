"""Whether a backend is known and what it needs is installed; of ajet's own, nothing heavy is imported to know it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from research.errors import BackendMissing
from research.installation.base_job import base_job_of
from research.spelling import did_you_mean
from studies import StudyState
from swarm.entry_points import BACKENDS, BUILT_IN_BACKENDS, EntryPointBroken, backend_names, load
from swarm.job import Job

LOCAL_PACKAGES: Final = ("torch", "transformers", "safetensors")
LOCAL_REMEDY: Final = "pip install 'ajet[local]' (torch first: pip install torch==2.13.0)"


def require_known(backend: str) -> None:
    """Raise BackendMissing, which lists the names, unless a backend has this one."""
    if backend not in (known := backend_names()):
        raise BackendMissing(
            f"expected a backend among {', '.join(known)}; found {backend!r}"
            f"{did_you_mean(backend, known) or '; install the package that brings it'}"
        )


def require_backend(backend: str) -> None:
    """Raise BackendMissing unless a backend has this name, and what it needs can be found."""
    require_known(backend)
    if backend not in BUILT_IN_BACKENDS:
        _require_loadable(backend)
    missing = [name for name in LOCAL_PACKAGES if backend == "local" and find_spec(name) is None]
    if missing:
        raise BackendMissing(
            f"expected {', '.join(LOCAL_PACKAGES)} for the backend {backend}; found no {' and no '.join(missing)}; "
            f"{LOCAL_REMEDY}"
        )


def _require_loadable(backend: str) -> None:
    try:
        load(BACKENDS, backend)
    except EntryPointBroken as error:
        raise BackendMissing(str(error)) from error


def backend_of(state: StudyState) -> str:
    """Return the backend of a study's runs: the locked one, or that of its base job before a lock."""
    job = state.design.base_job if state.design is not None else state.noise_plan.job if state.noise_plan else None
    return base_job_of(state.settings).backend if job is None else str(job.get("backend", Job().backend))
