"""The packages that are adapted lie in a folder of their own, after the project's on the path.

What these tests bring is known to none other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from swarm.environments import registry
from tests.swarm.clients.packages import ADAPTED


@pytest.fixture
def adapted_packages() -> Iterator[None]:
    folder = str(ADAPTED.there())
    sys.path.append(folder)
    yield
    sys.path.remove(folder)


@pytest.fixture(autouse=True)
def own_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
