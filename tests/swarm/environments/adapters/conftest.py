"""The packages that are adapted lie in a folder of their own, after the project's on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.swarm.clients.packages import ADAPTED


@pytest.fixture
def adapted_packages() -> Iterator[None]:
    folder = str(ADAPTED.there())
    sys.path.append(folder)
    yield
    sys.path.remove(folder)
