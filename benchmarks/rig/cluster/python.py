"""The Python of the environment in which servers of the backend `verl` run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

VARIABLE: Final = "AJET_VERL_PYTHON"
_CHECKOUT: Final = Path(__file__).parents[3]


def verl_python() -> str:
    """Return what the variable names, or else that of `make setup-verl`, whether it is there or not."""
    return os.path.abspath(os.environ.get(VARIABLE) or _CHECKOUT / ".venv-verl" / "bin" / "python")


def missing() -> str | None:
    """Return what is needed to run the backend `verl` and is not here, None where all is."""
    python = verl_python()
    look = "from importlib.util import find_spec as f; print(*[n for n in ('ray', 'verl', 'vllm') if f(n) is None])"
    try:
        found = subprocess.run([python, "-P", "-c", look], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"no environment of the backend verl is at {python}: make setup-verl, or set {VARIABLE}"
    return f"{python} finds no {found}: make setup-verl, or set {VARIABLE}" if found else None


def require_verl() -> str:
    """Return that Python; raise SystemExit where it lacks what is needed."""
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    return verl_python()
