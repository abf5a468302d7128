from pathlib import Path

import pytest

from sandboxes import DockerSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image
from tests.sandboxes.containing import Box


@pytest.fixture
def box(docker_sandbox: DockerSandbox, image: Image, engine: ContainerEngine, tmp_path: Path) -> Box:
    return Box(docker_sandbox, image, engine, tmp_path / "sandboxes")
