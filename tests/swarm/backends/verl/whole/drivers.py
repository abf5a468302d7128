"""What needs a process of its own: python -m tests.swarm.backends.verl.whole.drivers NAME ...; it prints JSON lines."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from swarm.backends.verl.cluster import Cluster, reserve_gpus, set_ray_environment
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields
from tests.swarm.backends.conformance.kinds import played
from tests.swarm.backends.verl.whole.conftest import gaps, started


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Holder:
    """Keeps what it puts into Ray's store: Ray aborts it where a name comes again."""

    def __init__(self) -> None:
        self._held: list[object] = []

    def put(self) -> None:
        import ray

        self._held.append(ray.put(bytes(200_000)))


def again() -> None:
    """A Ray after another in one process, each begun on a thread of its own; what becomes of requests is printed."""
    job = Job(backend="verl", device="cpu")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        first.submit(Cluster.join, job).result().leave()
        cluster = second.submit(Cluster.join, job).result()
        import ray

        holder = second.submit(ray.remote(Holder).options(num_cpus=0).remote).result()
        asked = [each.submit(lambda: holder.put.remote()).result() for _ in range(4) for each in (first, second)]
        ray.get(asked)
        named = len({each.hex() for each in asked})
        cluster.leave()
        waited = second.submit(ray.wait, asked).exception()  # as who waits for an actor while Ray is left
        say(asked=len(asked), named=named, waited=type(waited).__name__, begun=ray.is_initialized())


PAIRS = 2


class Seer:
    def sees(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


def bundled() -> None:
    """Actors on GPUs that a Ray of its own only pretends to have, in pairs and apart; what they see is printed."""
    set_ray_environment(None)
    import ray

    ray.init(
        address="local", num_cpus=1, num_gpus=PAIRS, include_dashboard=False, logging_level="ERROR",
        object_store_memory=100 << 20,
    )  # fmt: skip
    for fields in (VerlFields(trainers=PAIRS, replicas=PAIRS, colocated=True), VerlFields()):
        cluster = Cluster(fields, "cuda", {})
        cluster.reserve()
        seer, seen = ray.remote(Seer), {}
        for name, own in (("ranks", cluster.rank_options), ("replicas", cluster.replica_options)):
            actors = [seer.options(**own(number)).remote() for number in range(fields.trainers)]
            seen[name] = ray.get([actor.sees.remote() for actor in actors])
        refused = ""
        try:
            reserve_gpus([1], seconds=1.0)
        except BackendError as error:
            refused = str(error)
        say(**seen, refused=refused)
        del actors
        ray.util.remove_placement_group(cluster._places)
    ray.shutdown()


async def headless(folder: Path) -> None:
    """A training whose Ray loses its head and then all else, in a process without a parent, as a server is; what it
    tells, which of Ray's processes are left, and whether another training begins there are printed."""
    async with started(folder, VerlFields(), learning_rate=1e-3) as backend:
        family = psutil.Process().children(recursive=True)
        next(each for each in family if each.name() == "gcs_server").kill()
        while (failure := backend.failure()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        left = (await asyncio.to_thread(psutil.wait_procs, family, 180))[1]
    async with started(folder, VerlFields(), learning_rate=1e-3) as again:
        say(failure=failure, left=[" ".join(each.cmdline())[:80] for each in left], gaps=await gaps(again))


async def joined(address: str, folder: Path, *, lose: bool) -> None:
    """A training on a Ray that runs already, which loses a node once a line is read, and goes on without it."""
    saved = folder / "saved"
    async with started(folder, VerlFields(address=address, trainers=2, replicas=2), learning_rate=1e-3) as backend:
        apart = await gaps(backend)
        handles: list[Any] = [life.handle for life in backend.engine._serving_instances().values()]
        ranks, replicas = nodes_of(backend.learner.group._actors), nodes_of([handle._actor for handle in handles])
        if not lose:
            say(ranks=ranks, replicas=replicas, gaps=apart)
            return
        await asyncio.to_thread(backend.learner.save, saved)
        batch = await played(backend, 16, 2, 6)
        say(ranks=ranks, replicas=replicas, gaps=apart)
        await asyncio.to_thread(sys.stdin.readline)
        begun, failure = time.monotonic(), ""
        try:
            await asyncio.to_thread(backend.learner.update, batch)
        except BackendError as error:
            failure = str(error)
        say(error=failure, seconds=time.monotonic() - begun)
    async with started(folder, VerlFields(address=address), learning_rate=1e-3) as resumed:
        await asyncio.to_thread(resumed.learner.load, saved)
        await asyncio.to_thread(resumed.publish)
        say(version=resumed.learner.version, gaps=await gaps(resumed))


def nodes_of(actors: Sequence[Any]) -> list[str]:
    import ray

    return ray.get([actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for actor in actors])


if __name__ == "__main__":
    if sys.argv[1] in ("again", "bundled"):
        {"again": again, "bundled": bundled}[sys.argv[1]]()
    elif sys.argv[1] == "headless":
        if os.fork() == 0:
            asyncio.run(headless(Path(sys.argv[2])))
    else:
        asyncio.run(joined(sys.argv[2], Path(sys.argv[3]), lose=sys.argv[1] == "lose"))
