"""One Ray for all tests of the cluster learner; skipped where it cannot be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.swarm.backends.local.models import save_folder
from tests.swarm.backends.verl.learning.support import DEVICE, ENVIRONMENT, Ranks


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
