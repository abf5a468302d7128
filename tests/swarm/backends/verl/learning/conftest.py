"""Real ranks on one Ray, kept from test to test, and the local learner beside them; skipped where there are none."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.policy import Policy, add_adapter
from swarm.backends.verl.learner import TrainerGroup, VerlLearner
from swarm.job import Job
from tests.swarm.backends.local.models import make_model, make_tokenizer, save_folder


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    # without vllm too ranks would run: once is enough
    for name in ("ray", "verl", "tensordict", *(("vllm",) if DEVICE == "cpu" else ())):
        pytest.importorskip(
            name, reason=f"{name} is not installed here: `make test-verl` has an environment of its own"
        )
    import ray

    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary,  # sockets' paths must be short
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in ENVIRONMENT.items():
            patch.setitem(os.environ, name, value)
        ray.init(
            num_cpus=4, include_dashboard=False, _temp_dir=temporary, object_store_memory=100_000_000,
            log_to_driver=False, configure_logging=False, runtime_env={"env_vars": ENVIRONMENT},
        )  # fmt: skip
        kept = Ranks()
        try:
            yield kept
            kept.stop()
        finally:
            ray.shutdown()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("qwen2"), "qwen2")


ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(Path(__file__).parents[5]),
}  # fmt: skip
DEVICE = os.environ.get("AJET_TEST_DEVICE", "cpu")
"""Where ranks compute: cpu, or cuda on a machine with a GPU for each; the local learner beside them is on the CPU."""
_SIZE = len(make_tokenizer())


def job(**fields: Any) -> Job:
    return Job(**{"learning_rate": 1e-3, **fields})


class Ranks:
    """Groups of ranks by their number, whose processes go on from one learner to the next: to start them takes long."""

    def __init__(self) -> None:
        self._groups: dict[int, TrainerGroup] = {}

    def learner(self, folder: Path, job: Job, world: int) -> VerlLearner:
        if DEVICE == "cuda" and world > torch.cuda.device_count():
            pytest.skip(f"needs {world} GPUs, found {torch.cuda.device_count()}")
        import ray

        group = self._groups.get(world)
        if group is None or group.failure is not None:
            group = self._groups[world] = TrainerGroup(folder, job, world, DEVICE)
        else:
            anew = [actor.__ray_call__.remote(_anew, str(folder), job, DEVICE) for actor in group._actors]
            ray.get(anew, timeout=60)
            group.call("start", [(rank, world, "", 0) for rank in range(world)], timeout_s=60)
        return VerlLearner(job, group)

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

    model = copy.deepcopy(policy.model)
    for layer in [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]:
        layer.merge()  # type: ignore[operator]
    state = model.state_dict().items()
    return {name.replace(".base_layer", ""): value for name, value in state if ".lora_" not in name}


CLOSE = 1e-5
