"""Whole backends, each with a Ray of its own: these tests have a pytest of their own (`make test-verl`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from swarm.backends.verl.backend import VerlBackend
from swarm.job import Job, PathModel
from swarm.verl_config import VerlFields
from tests.swarm.backends.conformance.kinds import played
from tests.swarm.backends.local.models import save_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where there is no Ray, without importing it: a backend gives it a token first."""
    if find_spec("ray") is None or find_spec("vllm") is None:
        skip = pytest.mark.skip(reason="Ray or vLLM is not installed here: `make test-verl` has its own environment")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(skip)


@asynccontextmanager
async def started(folder: Path, fields: VerlFields, **job: Any) -> AsyncIterator[VerlBackend]:
    model = PathModel(path=str(save_folder(folder / "model", "wide")))
    common = {"backend": "verl", "device": "cpu", "max_context": 128, "max_concurrency": 8, "seed": 3}
    backend = VerlBackend(Job(model=model, verl=fields, **{**common, **job}), folder / "models")
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


async def gaps(backend: VerlBackend) -> list[float]:
    """Return how far engine and learner were apart in two updates."""
    found = []
    for step in range(2):
        batch = await played(backend, 16, step, 6)
        found.append((await asyncio.to_thread(backend.learner.update, batch))["training/rollout_probs_diff_max"])
        await asyncio.to_thread(backend.publish)
    return found


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VerlBackend]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AJET_SECRET", "secret")
        environment.setenv("WANDB_API_KEY", "secret")
        async with started(tmp_path_factory.mktemp("pair"), VerlFields(replicas=2), learning_rate=1e-3) as backend:
            yield backend
