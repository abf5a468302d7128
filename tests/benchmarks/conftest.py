"""Benchmarks are scripts beside their own package `rig`, which is found from their folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
