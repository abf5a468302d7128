"""Which base an installation's client image is made on, and what of our sources lies in it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from research.installation.home import Home
from research.isolation import client_image
from research.isolation.client_image import (
    client_sources,
    ensure_client_image,
    ensure_derived_image,
    last_image,
    list_image_tags,
)
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image, identity

Tag = Callable[[str], str]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, "")


@pytest.fixture
def tag(engine: ContainerEngine, image: Image, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tag]:
    """Give the tests' base image another name; the usual names are of this test alone."""
    mark = f"ajet-test-{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(client_image, "USUAL_BASE", f"{mark}-usual:1")
    made = []

    def give(name: str) -> str:
        made.append(f"{mark}-{name}")
        engine.client.images.get(image.base).tag(made[-1])
        return made[-1]

    yield give
    for name in made:
        if identity(engine, name) is not None:
            engine.client.images.remove(name)


def silent(line: str) -> None:
    pass


def based(engine: ContainerEngine, home: Home, base: str | None = None) -> str:
    return ensure_client_image(engine, home, silent, base=base).base


def test_the_base_of_the_last_build_is_kept_until_another_is_named(
    engine: ContainerEngine, home: Home, tag: Tag
) -> None:
    mine, _ = tag("mine:1"), tag("usual:1")
    assert based(engine, home, mine) == mine
    assert based(engine, home) == mine
    assert json.loads((home.sandboxes / "image.json").read_text())["base"] == mine


def test_no_base_at_all_is_one_line_that_says_how_to_name_one(engine: ContainerEngine, home: Home, tag: Tag) -> None:
    notes: list[str] = []
    with pytest.raises(SandboxError, match="--base IMAGE") as refused:
        ensure_client_image(engine, home, notes.append)
    assert "\n" not in str(refused.value)
    assert notes == [f"pulling {client_image.USUAL_BASE}"]
    assert not (home.sandboxes / "image.json").exists()


def test_what_was_made_is_remembered(engine: ContainerEngine, home: Home, image: Image) -> None:
    made = ensure_client_image(engine, home, silent, base=image.base)
    assert last_image(home) == made.id
    assert list_image_tags(home) == [made.tag]
    assert ensure_derived_image(engine, home, "# nothing more", silent) == made


def test_sources_are_followed_to_whatever_the_client_imports() -> None:
    sources = client_sources()
    assert {"swarm/__init__.py", "swarm/wire.py", "swarm/errors.py", "swarm/environments/__main__.py"} <= set(sources)
    assert list(sources) == sorted(sources)
    assert sources["swarm/wire.py"] == Path(client_image.__file__).parents[2].joinpath("swarm/wire.py").read_bytes()
