"""What these tests bring is known to none other."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.installation.home import Home
from swarm.environments import registry
from tests.research.factories import make_home


@pytest.fixture(autouse=True)
def own_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CATALOGUE", registry._Catalogue())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")
