"""Tests of the benchmarks' own packages, `simlab` and `rig`, which are found from the folder of the scripts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
