"""Whether what a backend needs is installed; nothing heavy is imported to know it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from research.errors import BackendMissing
from studies import StudyState
from swarm.job import Job

LOCAL_PACKAGES: Final = ("torch", "transformers", "safetensors")
LOCAL_REMEDY: Final = "pip install 'ajet[local]' (torch first: pip install torch==2.13.0)"


def require_backend(backend: str) -> None:
    """Raise BackendMissing unless the packages of a backend can be found."""
    missing = [name for name in LOCAL_PACKAGES if backend == "local" and find_spec(name) is None]
    if missing:
        raise BackendMissing(
            f"expected {', '.join(LOCAL_PACKAGES)} for the backend {backend}; found no {' and no '.join(missing)}; "
            f"{LOCAL_REMEDY}"
        )


def backend_of(state: StudyState) -> str:
    """Return the backend of a study's runs: the locked one, or the usual one before a lock."""
    job = state.design.base_job if state.design is not None else state.noise_plan.job if state.noise_plan else {}
    return str(job.get("backend", Job().backend))
