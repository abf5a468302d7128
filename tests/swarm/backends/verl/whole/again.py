"""A Ray after another in one process, each begun on a thread of its own; what becomes of requests is printed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from swarm.backends.verl.cluster import Cluster
from swarm.job import Job

EACH = 4


class Holder:
    """Keeps what it puts into Ray's store: Ray aborts it where a name comes again."""

    def __init__(self) -> None:
        self._held: list[object] = []

    def put(self) -> None:
        import ray

        self._held.append(ray.put(bytes(200_000)))


def main() -> None:
    job = Job(backend="verl", device="cpu")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        first.submit(Cluster.join, job).result().leave()
        cluster = second.submit(Cluster.join, job).result()
        import ray

        holder = second.submit(ray.remote(Holder).options(num_cpus=0).remote).result()
        asked = [each.submit(lambda: holder.put.remote()).result() for _ in range(EACH) for each in (first, second)]
        ray.get(asked)
        said = {"asked": len(asked), "named": len({each.hex() for each in asked})}
        cluster.leave()
        waited = second.submit(ray.wait, asked).exception()  # as who waits for an actor while Ray is left
        print(json.dumps({**said, "waited": type(waited).__name__, "begun": ray.is_initialized()}))


if __name__ == "__main__":
    main()
