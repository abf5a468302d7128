"""What sandboxes left behind in an engine and nobody needs: found by this installation's labels and records alone.

Nothing that runs within its time is touched, no folder of a sandbox (they are the record), and no image that a
container or an unfinished study of this installation names. Another installation that shares an image with this one
and has no container of it makes it again when it needs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from research.installation.home import Home
from research.isolation.client_image import current_image, made_images
from research.isolation.listing import container_states, installation
from sandboxes.docker import launching, options
from sandboxes.docker.asking import EngineRefused, asking
from sandboxes.docker.containers import DockerSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.handles import OVERDUE_S
from sandboxes.folders import read
from sandboxes.images import BUILD_LABEL, PACKAGES_REPOSITORY

ABANDONED_S = 3600.0
"""Compiling for an image takes minutes at most: a container for it so much older is of a build that was killed."""


@dataclass(frozen=True, slots=True)
class Waste:
    """A thing in the engine that nobody needs, and how to be rid of it."""

    kind: Literal["container", "volume", "image"]
    name: str
    why: str
    remove: Callable[[], object]


def find_waste(home: Home, engine: ContainerEngine, pinned: Iterable[str]) -> list[Waste]:
    """Return what `prune` is to remove; `pinned` are the ids of images that unfinished studies name."""
    owner = installation(home)
    sandboxes = [] if owner is None else [*_containers(home, engine, owner), *_volumes(home, engine, owner)]
    return [*sandboxes, *_builds(engine), *_images(home, engine, frozenset(pinned))]


def image_bytes(engine: ContainerEngine) -> int | None:
    """Return what all images of the engine take on its disk; None while it measures that for somebody else."""
    try:
        with asking(engine, "asking how much its images take"):
            return int(engine.client.api.df()["LayersSize"] or 0)
    except EngineRefused:
        return None


def _containers(home: Home, engine: ContainerEngine, owner: str) -> list[Waste]:
    return [
        Waste("container", name, why, _remover(home, engine, owner, name))
        for name, state in container_states(home, engine).items()
        if (why := _why(home, name, state)) is not None
    ]


def _why(home: Home, name: str, state: str) -> str | None:
    folder = home.containers / name
    spec, started = read(folder / "spec.json"), read(folder / "started.json")
    if spec is None:
        return "its folder is gone"
    if (folder / "exit.json").exists():
        return "it ended and was collected"
    if state in ("exited", "dead"):
        return "it ended; what it left is collected first"
    limit = spec.get("time_limit_s")
    if started is not None and limit is not None and time.time() > started["started_at"] + limit + OVERDUE_S:
        return "it runs past its time limit"
    return None


def _remover(home: Home, engine: ContainerEngine, owner: str, name: str) -> Callable[[], object]:
    def remove() -> None:
        held = DockerSandbox(home.containers, engine).adopt(name)
        if held is not None:
            held.stop()
        launching.clear(engine, name, owner)

    return remove


def _volumes(home: Home, engine: ContainerEngine, owner: str) -> list[Waste]:
    """Return the inputs of sandboxes that ended, or whose folder is gone."""
    with asking(engine, "listing this installation's volumes"):
        found = engine.client.api.volumes(filters={"label": f"{options.INSTALLATION}={owner}"})["Volumes"] or []
    names = [each["Labels"][options.NAME] for each in found]
    return [
        Waste("volume", f"{name} (its input)", "its sandbox ended or is gone", _clearer(engine, name, owner))
        for name in names
        if (home.containers / name / "exit.json").exists() or not (home.containers / name / "spec.json").exists()
    ]


def _clearer(engine: ContainerEngine, name: str, owner: str) -> Callable[[], object]:
    return lambda: launching.clear(engine, name, owner)


def _builds(engine: ContainerEngine) -> list[Waste]:
    with asking(engine, "listing containers of builds"):
        found = engine.client.api.containers(all=True, filters={"label": BUILD_LABEL})
    return [
        Waste("container", each["Id"][:12], "its build was killed", _container_remover(engine, each["Id"]))
        for each in found
        if each["Created"] < time.time() - ABANDONED_S
    ]


def _container_remover(engine: ContainerEngine, container: str) -> Callable[[], object]:
    return lambda: engine.client.api.remove_container(container, v=True, force=True)


def _images(home: Home, engine: ContainerEngine, pinned: frozenset[str]) -> list[Waste]:
    """Return the client images that this installation used and no longer needs, and the packages only they had."""
    current, mine = current_image(home), set(made_images(home))
    with asking(engine, "listing client images"):
        clients = engine.client.api.images(filters={"label": "ajet.client"})
        packages = engine.client.api.images(name=PACKAGES_REPOSITORY)
        used = {each["ImageID"] for each in engine.client.api.containers(all=True)}
    kept = used | pinned | ({current} if current is not None else set())
    old = [each for each in clients if _is_old(each, kept, mine)]
    needed = [_packages(each) for each in clients if each not in old]
    alone = [each for each in packages if _packages(each) in map(_packages, old) and _packages(each) not in needed]
    return [
        Waste("image", tag, "a newer one took its place", _image_remover(engine, tag))
        for each in [*old, *alone]
        for tag in each["RepoTags"] or []
    ]


def _is_old(image: Mapping[str, Any], kept: set[str], mine: set[str]) -> bool:
    """Return whether an image is ours by record, and neither it nor the client image below it is to be kept."""
    return (
        bool(mine & set(image["RepoTags"] or ())) and not {image["Id"], image["Labels"].get("ajet.parent", "")} & kept
    )


def _packages(image: Mapping[str, Any]) -> tuple[str, str]:
    return image["Labels"].get("ajet.base", ""), image["Labels"].get("ajet.requirements", "")


def _image_remover(engine: ContainerEngine, tag: str) -> Callable[[], object]:
    return lambda: engine.client.api.remove_image(tag)
