import asyncio
from pathlib import Path

import pytest

from sandboxes import DockerSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.build import Image
from tests.sandboxes.containing import Box
from tests.sandboxes.proxies import LoopClock


@pytest.fixture
def box(docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, tmp_path: Path) -> Box:
    return Box(docker_sandbox, image, engine, tmp_path / "sandboxes")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(asyncio.get_running_loop(), monkeypatch)
