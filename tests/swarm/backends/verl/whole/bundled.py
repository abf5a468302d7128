"""Pairs of actors on shared GPUs that a Ray of its own only pretends to have; what they see is printed as JSON."""

from __future__ import annotations

import json
import os

from swarm.backends.verl.cluster import Bundles, Cluster, set_ray_environment
from swarm.rendering.messages import BackendError
from swarm.verl_config import VerlFields

PAIRS = 2


class Seer:
    def sees(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


def seen(cluster: Cluster) -> dict[str, list[str]]:
    import ray

    seer = ray.remote(Seer)
    placed = {"ranks": cluster.rank_options, "replicas": cluster.replica_options}
    actors = {name: [seer.options(**own(number)).remote() for number in range(PAIRS)] for name, own in placed.items()}
    return {name: ray.get([each.sees.remote() for each in made]) for name, made in actors.items()}


def main() -> None:
    set_ray_environment(None)
    import ray

    ray.init(
        address="local", num_cpus=1, num_gpus=PAIRS, include_dashboard=False, logging_level="ERROR",
        object_store_memory=100 << 20,
    )  # fmt: skip
    cluster = Cluster(VerlFields(trainers=PAIRS, replicas=PAIRS, colocated=True), "cuda", {})
    cluster._require_devices()
    cluster._reserve()
    first = seen(cluster)
    try:
        Bundles(1, seconds=1.0)
        refused = ""
    except BackendError as error:
        refused = str(error)
    assert cluster._bundles is not None
    cluster._bundles.free()
    Bundles(PAIRS).free()
    print(json.dumps({**first, "refused": refused}))
    ray.shutdown()


if __name__ == "__main__":
    main()
