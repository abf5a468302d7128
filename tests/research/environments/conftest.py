"""What these tests bring is known to none other."""

from __future__ import annotations

import pytest

from swarm.environments import registry


@pytest.fixture(autouse=True)
def own_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())
