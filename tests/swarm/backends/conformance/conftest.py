"""Every test of the suite that asks for `kind` runs for each kind of backend that does not lack what it needs."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from swarm.backends.protocols import Backend
from swarm.backends.verl.backend import VerlBackend
from swarm.rendering.messages import BackendError
from tests.swarm.backends.conformance.kinds import CAPABILITIES, KINDS, SHARED, Kind
from tests.swarm.backends.local.models import save_folder

Make = Callable[..., Backend]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where starts are slow, have tests of kept backends come first, and those that end their backends last."""
    if find_spec("vllm") is not None:
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, bool]:
    ends = item.path.name == "test_life.py"
    own = "backend" not in getattr(item, "fixturenames", ())
    return ends or own, ends and "AJET_TEST_ORDER" not in os.environ


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("needs")
    needed = mark.args if mark else ()
    assert set(needed) <= set(CAPABILITIES), f"{metafunc.function.__name__} needs what no kind declares"
    fit = [kind for kind in _kinds() if not set(needed) & set(kind.lacks)]
    # up to three of a slow kind are started for a test, a minute each
    slow = [pytest.mark.timeout(300)]
    metafunc.parametrize("kind", [pytest.param(kind, id=kind.name, marks=slow if kind.slow else ()) for kind in fit])


def _kinds() -> tuple[Kind, ...]:
    if find_spec("vllm") is None:
        return KINDS
    from tests.swarm.backends.conformance.cluster_kind import VERL

    return (VERL,)


@pytest.fixture(scope="session", autouse=True)
def _quick_collections() -> None:
    """What was imported stays: collections of garbage, which some engines ask for, need not look at it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def make(kind: Kind, model_folders: Path, tmp_path: Path) -> Make:
    folder = model_folders / kind.model
    if not folder.exists():
        save_folder(folder, kind.model)

    def made(**fields: Any) -> Backend:
        return kind.make(folder, tmp_path / "models", **fields)

    return made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def idle() -> AsyncIterator[list[tuple[VerlBackend, Path]]]:
    """Backends of slow kinds between tests, each with a checkpoint of how it was right after its start."""
    kept: list[tuple[VerlBackend, Path]] = []
    yield kept
    for backend, _ in kept:
        await backend.stop()


@pytest.fixture
async def start(
    kind: Kind, make: Make, idle: list[tuple[VerlBackend, Path]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[..., Any]]:
    async def keep(backend: VerlBackend, first: Path) -> None:
        """Bring a backend back to its beginning; end one that its test stopped or broke."""
        try:
            if backend.failure() is not None:
                raise BackendError("it is broken")
            await asyncio.to_thread(backend.learner.load, first)
            await asyncio.to_thread(backend.publish)
        except BackendError:
            await backend.stop()
        else:
            idle.append((backend, first))

    async with AsyncExitStack() as running:

        async def started(**fields: Any) -> Backend:
            backend = cast(VerlBackend, make(**fields))
            if not (kind.slow and fields in SHARED):
                running.push_async_callback(backend.stop)
                await backend.start()
                return backend
            place = next((number for number, (kept, _) in enumerate(idle) if kept.job == backend.job), None)
            if place is None:
                await backend.start()
                first = tmp_path_factory.mktemp("kept") / "first"
                await asyncio.to_thread(backend.learner.save, first)
            else:
                backend, first = idle.pop(place)
            running.push_async_callback(keep, backend, first)
            return backend

        yield started


@pytest.fixture
async def backend(start: Callable[..., Any]) -> Backend:
    return await start()
