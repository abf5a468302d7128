"""Recorded folders, each unpacked into a folder of the test's own, and what was said of them when they were written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.research.cli.conftest import ajet, home  # noqa: F401 - fixtures

HERE = Path(__file__).parent
FIRST, SECOND = "2026-11-21", "2026-11-28"
"""The sets that were recorded, each a folder with the day's name."""
Unpack = Callable[[str, Path], Path]
Expected = Mapping[str, Any]


@pytest.fixture(scope="session", params=[FIRST, SECOND])
def recorded_set(request: pytest.FixtureRequest) -> Path:
    """Return the folder of one set after the other."""
    return HERE / str(request.param)


@pytest.fixture(scope="session")
def expected(recorded_set: Path) -> Expected:
    return json.loads((recorded_set / "expected.json").read_text())


@pytest.fixture(scope="session")
def unpack(recorded_set: Path) -> Unpack:
    """Return what unpacks a recorded folder to a new path."""

    def to(name: str, path: Path) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        # Before Python 3.11.4, which is Debian's, `tarfile` gives what root unpacks to whom it belonged.
        subprocess.run(
            ["tar", "-xf", str(recorded_set / f"{name}.tar.xz"), "--no-same-owner", "-C", str(path)], check=True
        )
        return path

    return to


def check_says(found: Any, recorded: Any, at: str = "") -> None:
    """Assert that all that was recorded is there; a later version may say more, another processor rounds otherwise."""
    if isinstance(recorded, dict):
        for name, value in recorded.items():
            assert name in found, f"{at}.{name} is gone"
            check_says(found[name], value, f"{at}.{name}")
    elif isinstance(recorded, list):
        assert len(found) == len(recorded), at
        for number, value in enumerate(recorded):
            check_says(found[number], value, f"{at}[{number}]")
    elif at.endswith(".elapsed_s"):  # since then reports, notes, amendments and vetoes count no longer
        assert 0 < found <= recorded, at
    elif isinstance(recorded, float):
        assert found == pytest.approx(recorded, rel=1e-9, abs=1e-12, nan_ok=True), at
    else:
        assert found == recorded, at
