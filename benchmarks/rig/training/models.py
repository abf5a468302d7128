"""Tiny models for benchmarks that train: made once, before anything is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rig.training.training import BENCHMARKS
from swarm.job import TinyModel


def made(environment: str, models: Path, spec: TinyModel | None = None) -> Path:
    """Make a tiny model (the default one) of an environment, in its own process; return the folder of models."""
    print(f"making the tiny model of {environment}", file=sys.stderr)
    spec = spec or TinyModel()
    subprocess.run(
        [
            sys.executable, "-m", "swarm.backends.tiny_model", "--environment", environment, "--models", str(models),
            "--spec", spec.model_dump_json(),
        ],
        check=True, cwd=BENCHMARKS, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return models
