"""Whether a backend is known and what it needs is installed; of ajet's own, nothing heavy is imported to know it.

A swarm server of the backend `verl` runs in an environment of its own, as vLLM and Prefect cannot share one: the
variable AJET_VERL_PYTHON names that one's Python (docs/cluster.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
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
PREFECT_REMEDY: Final = "pip install 'ajet[prefect]'"

VERL_PACKAGES: Final = ("torch", "transformers", "ray", "verl", "vllm", "tensordict", "peft")
"""What the backend `verl` needs."""
VERL_PYTHON: Final = "AJET_VERL_PYTHON"
"""Names the variable with the Python of the environment in which swarm servers of the backend `verl` run."""
VERL_REMEDY: Final = (
    "make an environment of its own for ajet[verl] (docs/cluster.md says how) and name its Python: export "
    f"{VERL_PYTHON}=/path/to/bin/python"
)
_VERL_VARIABLES: Final = (VERL_PYTHON, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
_LOOK_S = 60.0


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
    if backend == "verl":
        _require_verl(python_of(backend))
    missing = [name for name in LOCAL_PACKAGES if backend == "local" and find_spec(name) is None]
    if missing:
        raise BackendMissing(
            f"expected {', '.join(LOCAL_PACKAGES)} for the backend {backend}; found no {' and no '.join(missing)}; "
            f"{LOCAL_REMEDY}"
        )


def python_of(backend: str) -> str:
    """Return the Python that runs a swarm server of a backend; BackendMissing where nobody named it."""
    if backend != "verl":
        return sys.executable
    if named := os.environ.get(VERL_PYTHON):
        return named
    if _missing(VERL_PACKAGES):
        raise BackendMissing(
            f"expected the packages of the backend verl here or in the environment of {VERL_PYTHON}; found no "
            f"{' and no '.join(_missing(VERL_PACKAGES))}, and the variable not set; {VERL_REMEDY}"
        )
    return sys.executable


def variables_of(backend: str) -> dict[str, str]:
    """Return the variables of this process that whatever starts servers of a backend needs, too: none is a secret."""
    names = _VERL_VARIABLES if backend == "verl" else ()
    return {name: os.environ[name] for name in names if name in os.environ}


def _missing(packages: Sequence[str]) -> list[str]:
    return [name for name in packages if find_spec(name) is None]


@cache
def _require_verl(python: str) -> None:
    """Raise BackendMissing unless a Python finds what the backend `verl` needs, and ajet itself."""
    needed = ("swarm", *VERL_PACKAGES)
    look = f"from importlib.util import find_spec as f; print(*[n for n in {needed!r} if not f(n)], sep=', ')"
    try:
        ran = subprocess.run([python, "-P", "-c", look], capture_output=True, text=True, timeout=_LOOK_S, check=False)
        said = ran.stdout.strip() if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["nothing"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if said:
        raise BackendMissing(f"expected {', '.join(needed)} where {python} looks; missing: {said}; {VERL_REMEDY}")


def _require_loadable(backend: str) -> None:
    try:
        load(BACKENDS, backend)
    except EntryPointBroken as error:
        raise BackendMissing(str(error)) from error


def backend_of(state: StudyState) -> str:
    """Return the backend of a study's runs: the locked one, or that of its base job before a lock."""
    job = state.design.base_job if state.design is not None else state.noise_plan.job if state.noise_plan else None
    return base_job_of(state.settings).backend if job is None else str(job.get("backend", Job().backend))
