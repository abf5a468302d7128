"""Tiny models for benchmarks that train: made once, before anything is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rig.training import BENCHMARKS


def made(environment: str, models: Path) -> Path:
    """Make the default tiny model of an environment, in a process of its own; return the folder of models."""
    print(f"making the tiny model of {environment}", file=sys.stderr)
    subprocess.run(
        [sys.executable, "-m", "swarm.backends.local.tiny", "--environment", environment, "--models", str(models)],
        check=True, cwd=BENCHMARKS, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return models
