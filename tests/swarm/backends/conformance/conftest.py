"""Every test of the suite that asks for `kind` runs for each kind of backend that does not lack what it needs."""

from __future__ import annotations

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
from tests.swarm.backends.conformance.keeping import KeptBackends
from tests.swarm.backends.conformance.kinds import CAPABILITIES, KINDS, SHARED, Kind
from tests.swarm.backends.local.models import save_folder

Make = Callable[..., Backend]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where starts are slow, come last to the file whose tests end their backends: what is kept serves all others.

    First come the tests that ask for nothing of their own: a run that has an end is sure to come to them. The rest it
    takes in an order of its own, or those of one file would never be begun where a machine is slow.
    """
    if find_spec("vllm") is not None:
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, bool]:
    ends = item.path.name == "test_life.py"
    own = "backend" not in getattr(item, "fixturenames", ())
    return ends or own, ends and "AJET_TEST_ORDER" not in os.environ


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test the kinds that have what its mark `needs` names."""
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
    """Return the kinds that run in this environment: where vLLM is, that of the cluster, and elsewhere all others."""
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
    """Where each kind's model is, once it was asked for."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def make(kind: Kind, model_folders: Path, tmp_path: Path) -> Make:
    """Make a backend of the kind that is not started."""
    folder = model_folders / kind.model
    if not folder.exists():
        save_folder(folder, kind.model)

    def made(**fields: Any) -> Backend:
        return kind.make(folder, tmp_path / "models", **fields)

    return made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kept(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KeptBackends]:
    """Backends of kinds that are slow to start, from test to test."""
    found = KeptBackends(tmp_path_factory.mktemp("kept"))
    yield found
    await found.close()


@pytest.fixture
async def start(kind: Kind, make: Make, kept: KeptBackends) -> AsyncIterator[Callable[..., Any]]:
    """Make and start backends of the kind; they are stopped, or kept for others, after the test."""
    async with AsyncExitStack() as running:

        async def started(**fields: Any) -> Backend:
            backend = make(**fields)
            if kind.slow and fields in SHARED:
                one = await kept.take(cast(VerlBackend, backend))
                running.push_async_callback(kept.give, one)
                return one
            running.push_async_callback(backend.stop)
            await backend.start()
            return backend

        yield started


@pytest.fixture
async def backend(start: Callable[..., Any]) -> Backend:
    """A started backend of the kind."""
    return await start()
