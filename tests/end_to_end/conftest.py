from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from research.installation.home import Home
from research.isolation.client_image import ensure_client_image
from sandboxes import DockerSandbox, ProcessSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.build import Image
from sandboxes.preload import SWITCH
from tests.end_to_end.factories import ajet, inherited
from tests.furnished import furnish


@pytest.fixture(autouse=True)
def preloading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have attempts forked, as they are where nobody says otherwise."""
    monkeypatch.setenv(SWITCH, "1")


@pytest.fixture
def environment(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = tmp_path / "home"
    furnish(home, tmp_path_factory)
    variables = {SWITCH: "1", "AJET_HOME": str(home), "AJET_SANDBOX": "process", "AJET_ROUNDS": "1"}
    mine = inherited(**variables, WANDB_MODE="offline")
    yield mine
    ajet(mine, "up", "--stop")


@pytest.fixture
def contained_home(environment: dict[str, str], engine: ContainerEngine, image: Image) -> Iterator[Home]:
    home = Home.locate(environment).prepare()
    ensure_client_image(engine, home, lambda line: None, base=image.base)
    yield home
    for handle in ProcessSandbox(home.sandboxes).list():
        handle.stop(grace_s=1.0)
    DockerSandbox(home.containers, engine).reap({})
