"""Real ranks on Ray, kept from one test to the next and begun anew with each one's job; the local learner beside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.policy import Policy, add_adapter
from swarm.backends.verl import learner as learner_module
from swarm.backends.verl.learner import TrainerGroup, VerlLearner
from swarm.job import Job
from tests.swarm.backends.local.models import make_model, make_tokenizer

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(Path(__file__).parents[5]),
}  # fmt: skip
DEVICE = os.environ.get("AJET_TEST_DEVICE", "cpu")
"""Where ranks compute: cpu, or cuda on a machine with a GPU for each; the local learner beside them is on the CPU."""
_SIZE = len(make_tokenizer())


def job(**fields: Any) -> Job:
    return Job(**{"learning_rate": 1e-3, **fields})


def started(temporary: Path) -> Iterator[None]:
    import ray

    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    try:
        ray.init(
            num_cpus=4, include_dashboard=False, _temp_dir=str(temporary), object_store_memory=100_000_000,
            log_to_driver=False, configure_logging=False, runtime_env={"env_vars": ENVIRONMENT},
        )  # fmt: skip
        yield
    finally:
        ray.shutdown()
        os.environ.clear()
        os.environ.update(before)


class Ranks:
    """Groups of ranks by their number, whose processes go on from one learner to the next: to start them takes long."""

    def __init__(self) -> None:
        self._groups: dict[int, TrainerGroup] = {}

    def learner(self, folder: Path, job: Job, world: int) -> VerlLearner:
        if DEVICE == "cuda" and world > torch.cuda.device_count():
            pytest.skip(f"needs {world} GPUs, found {torch.cuda.device_count()}")
        ranks = self

        def group(*arguments: Any, options: Any = None) -> TrainerGroup:
            return ranks._begun(*arguments)

        kept, learner_module.TrainerGroup = learner_module.TrainerGroup, group  # type: ignore[misc, assignment]
        try:
            return VerlLearner(folder, job, trainers=world, device=DEVICE)
        finally:
            learner_module.TrainerGroup = kept  # type: ignore[misc]

    def _begun(self, folder: Path, job: Job, world: int, device: str) -> TrainerGroup:
        import ray

        known = self._groups.get(world)
        if known is None or known.failure is not None:
            self._groups[world] = TrainerGroup(folder, job, world, device)
            return self._groups[world]
        ray.get([actor.__ray_call__.remote(_anew, str(folder), job, device) for actor in known._actors], timeout=60)
        known.call("start", [(rank, world, "", 0) for rank in range(world)], timeout_s=60)
        return known

    def stop(self) -> None:
        for group in self._groups.values():
            group.stop()


def _anew(rank: Any, *arguments: Any) -> None:
    rank.__init__(*arguments)


def local(job: Job, kind: str = "llama") -> tuple[Policy, LocalLearner]:
    torch.set_num_threads(1)
    model = make_model(kind, _SIZE)
    if job.lora_rank:
        add_adapter(model, rank=job.lora_rank, alpha=job.lora_alpha, seed=job.seed)
    policy = Policy(model)
    return policy, LocalLearner(policy, job, {})


def plain_weights(policy: Policy) -> dict[str, torch.Tensor]:
    """The local model's weights by their Hugging Face names, adapters merged by peft itself."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    model = policy.model
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}
    for layer in layers.values():
        layer.merge()  # type: ignore[operator]
    state = {
        name.replace(".base_layer", ""): value.detach().clone()
        for name, value in model.state_dict().items()
        if ".lora_" not in name
    }
    for layer in layers.values():
        layer.unmerge()  # type: ignore[operator]
    return state


CLOSE = 1e-5
