from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from research.planner import Digest


@pytest.fixture
def digest() -> Callable[..., Digest]:
    """A digest with the usual facts; any of them can be replaced."""

    def make(topic: str, **facts: Any) -> Digest:
        return Digest(**{"topic": topic, "seconds_left": 600.0, "seconds_per_run": 58.0, "parallel": 2, **facts})

    return make
