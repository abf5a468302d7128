"""A training on a Ray that runs already: python -m tests.swarm.backends.verl.whole.joined HOST:PORT FOLDER [lose]."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from swarm.backends.protocols import Batch
from swarm.backends.verl.backend import VerlBackend
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields
from tests.swarm.backends.conformance.kinds import played
from tests.swarm.backends.verl.whole.conftest import started
from tests.swarm.backends.verl.whole.test_forms import gaps


async def main(address: str, folder: Path) -> None:
    fields = VerlFields(address=address, trainers=2, replicas=2)
    async with started(folder, fields, learning_rate=1e-3) as backend:
        _say(await _learned(backend))


async def lose(address: str, folder: Path) -> None:
    saved = folder / "saved"
    async with started(folder, VerlFields(address=address, trainers=2, replicas=2), learning_rate=1e-3) as backend:
        said = await _learned(backend)
        await asyncio.to_thread(backend.learner.save, saved)
        batch = await played(backend, 16, 2, 6)
        _say(said)
        await asyncio.to_thread(sys.stdin.readline)
        begun = time.monotonic()
        error = await _error(backend, batch)
        _say({"error": error, "seconds": time.monotonic() - begun})
    async with started(folder, VerlFields(address=address), learning_rate=1e-3) as backend:
        await asyncio.to_thread(backend.learner.load, saved)
        await asyncio.to_thread(backend.publish)
        _say({"version": backend.learner.version, "gaps": await gaps(backend)})


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)


async def _learned(backend: VerlBackend) -> dict[str, Any]:
    apart = await gaps(backend)
    return {"ranks": ranks(backend), "replicas": replicas(backend), "gaps": apart}


async def _error(backend: VerlBackend, batch: Batch) -> str:
    try:
        await asyncio.to_thread(backend.learner.update, batch)
    except BackendError as error:
        return str(error)
    return ""


def ranks(backend: VerlBackend) -> list[str]:
    import ray

    return ray.get([actor.__ray_call__.remote(node) for actor in backend.learner.group._actors])


def replicas(backend: VerlBackend) -> list[str]:
    import ray

    handles: list[Any] = [life.handle for life in backend.engine._serving_instances().values()]
    return ray.get([handle._actor.__ray_call__.remote(node) for handle in handles])


def node(_: Any) -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


if __name__ == "__main__":
    asyncio.run((lose if "lose" in sys.argv else main)(sys.argv[1], Path(sys.argv[2])))
