from __future__ import annotations

from pathlib import Path

import pytest

from research.installation.home import Home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    path: Path = tmp_path_factory.mktemp("home")
    return Home(path, f"sqlite:///{path / 'ajet.db'}").prepare()
