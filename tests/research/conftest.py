from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from research.planners.context import PlannerContext
from tests.research.bench import scratch


@pytest.fixture
def digest() -> Callable[..., PlannerContext]:
    def make(topic: str, **facts: Any) -> PlannerContext:
        return PlannerContext(
            **{"topic": topic, "seconds_left": 600.0, "seconds_per_run": 58.0, "parallel": 2, **facts}
        )

    return make


@pytest.fixture
def fast_path() -> Iterator[Path]:
    with scratch() as folder:
        yield folder
