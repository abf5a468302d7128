"""One Ray for all tests of the cluster learner; skipped where it cannot be."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.swarm.backends.local.models import save_folder
from tests.swarm.backends.verl.learning.support import DEVICE, Ranks, started


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    # without vllm too ranks would run: once is enough
    for name in ("ray", "verl", "tensordict", *(("vllm",) if DEVICE == "cpu" else ())):
        pytest.importorskip(
            name, reason=f"{name} is not installed here: `make test-verl` has an environment of its own"
        )
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:  # sockets' paths must be short
        for _ in started(Path(temporary)):
            kept = Ranks()
            yield kept
            kept.stop()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("qwen2"), "qwen2")
