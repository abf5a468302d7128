"""Where SGLang lies for these tests, and how a replica's process comes to find it with the stand-ins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SGLANG = Path(sys.prefix) / "sglang"
"""Where `make setup-verl` puts it, beside the packages that it would have others of."""
NO_SGLANG = pytest.mark.skipif(not SGLANG.is_dir(), reason="`make setup-verl` puts SGLang beside vLLM: it is not there")
_HERE = Path(__file__).parent
PATH = os.pathsep.join(map(str, (_HERE / "stand_ins", SGLANG, _HERE.parents[4])))
"""What PYTHONPATH says in such a process."""
