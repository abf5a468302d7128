"""A training on a Ray that runs already, in a process of its own, for a process is on one Ray.

    python -m tests.swarm.backends.verl.whole.joined HOST:PORT FOLDER

Learns and publishes twice; prints, as JSON, the node of each rank and each replica, and how far learner and engine were
apart each time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from swarm.backends.verl.backend import VerlBackend
from swarm.verl_fields import VerlFields
from tests.swarm.backends.verl.whole.conftest import started
from tests.swarm.backends.verl.whole.test_forms import gaps


async def main(address: str, folder: Path) -> None:
    """Train, and say where."""
    fields = VerlFields(address=address, trainers=2, replicas=2)
    async with started(folder, fields, learning_rate=1e-3) as backend:
        apart = await gaps(backend)
        print(json.dumps({"ranks": ranks(backend), "replicas": replicas(backend), "gaps": apart}))


def ranks(backend: VerlBackend) -> list[str]:
    import ray

    return ray.get([actor.__ray_call__.remote(node) for actor in backend.learner.group._actors])


def replicas(backend: VerlBackend) -> list[str]:
    import ray

    handles: list[Any] = [life.handle for life in backend.engine._serving().values()]
    return ray.get([handle._actor.__ray_call__.remote(node) for handle in handles])


def node(_: Any) -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
