"""Every test of the suite that asks for `kind` runs for each kind of backend that does not lack what it needs."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.protocols import Backend
from tests.swarm.backends.conformance.kinds import CAPABILITIES, KINDS, Kind
from tests.swarm.backends.local.models import save_folder

Make = Callable[..., Backend]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test the kinds that have what its mark `needs` names."""
    if "kind" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("needs")
    needed = mark.args if mark else ()
    assert set(needed) <= set(CAPABILITIES), f"{metafunc.function.__name__} needs what no kind declares"
    fit = [kind for kind in KINDS if not set(needed) & set(kind.lacks)]
    metafunc.parametrize("kind", fit, ids=[kind.name for kind in fit])


@pytest.fixture(scope="session", autouse=True)
def _quick_collections() -> None:
    """What was imported stays: collections of garbage, which some engines ask for, need not look at it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def make(kind: Kind, model_folder: Path, tmp_path: Path) -> Make:
    """Make a backend of the kind that is not started."""

    def made(**fields: Any) -> Backend:
        return kind.make(model_folder, tmp_path / "models", **fields)

    return made


@pytest.fixture
async def start(make: Make) -> AsyncIterator[Callable[..., Any]]:
    """Make and start backends of the kind; they are stopped after the test."""
    running: list[Backend] = []

    async def started(**fields: Any) -> Backend:
        backend = make(**fields)
        running.append(backend)
        await backend.start()
        return backend

    yield started
    for backend in running:
        await backend.stop()


@pytest.fixture
async def backend(start: Callable[..., Any]) -> Backend:
    """A started backend of the kind."""
    return await start()
