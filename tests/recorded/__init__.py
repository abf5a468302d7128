"""What an earlier version wrote, opened again. `simlab`, which flies on with some of it, lies beside the scripts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
