"""Ray on this machine, for the tests of real replicas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray is not installed here")
    pytest.importorskip("vllm", reason="vLLM is not installed here")
    root = str(Path(__file__).parents[5])
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=200 << 20,
        _node_ip_address="127.0.0.1", runtime_env={"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()
