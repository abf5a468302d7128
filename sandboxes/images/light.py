"""The client image: a base image, our process 1, the light client and its packages; nothing of torch, no server.

It is a build of copies, so it needs no network, and its tag names what went in: building it again is looking it up.
The packages are an image of their own below it, so that a changed source costs a second.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.docker.asking import asking
from sandboxes.docker.engine import ContainerEngine
from sandboxes.folders import locked
from sandboxes.images.base import Base, identity, inspect
from sandboxes.images.compiling import compiled, compiled_library
from sandboxes.images.packages import closure, install
from sandboxes.images.trees import Tree, digest, tar_of, tree_of_folder, under
from sandboxes.spec import SandboxError

Note = Callable[[str], None]
"""Tells people what is being done, in a line, before anything slow."""

PLACE = "opt/ajet"
"""Where everything of ours lies in an image, from its root."""

INSIDE = Path(__file__).parents[1] / "inside"
DOCKERFILE = Path(__file__).with_name("client") / "Dockerfile"
WORKSPACE: Tree = {"workspace/.keep": b""}
"""The folder that commands start in: made by the copy, since one that the build makes has the time of the build."""
PACKAGES_REPOSITORY = "ajet-client-packages"
BUILD_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Image:
    """An image that containers may start from: its id in the engine, the tag that names what it holds, its base."""

    id: str
    tag: str
    base: str


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What the client consists of: its own modules by path, and the packages that it imports."""

    sources: Tree
    roots: tuple[str, ...]
    """Requirements, as `openai[aiohttp]`: they and all they need are taken at the versions installed here."""
    cache: Path
    """Folder that keeps what base images answered."""


def client_image(engine: ContainerEngine, context: ClientContext, *, base: str, note: Note) -> Image:
    """Return the client image over the present image `base`, building it when the engine has none of its content."""
    found = inspect(engine, base, context.cache)
    pins = closure(context.roots, found.markers)
    own = {**under(PLACE, inside()), **under(f"{PLACE}/site", context.sources)}
    content = digest(found.id, "\n".join(pins), own, _dockerfile().decode())
    tag = f"ajet-client:{content[:16]}"
    if (present := identity(engine, tag)) is not None:
        return Image(present, tag, base)
    below = _packages_image(engine, found, pins, note)
    with locked(context.cache):  # of two that are made at once, one would lose its tag to the other
        if (present := identity(engine, tag)) is None:
            note(f"building the client image over {base}")
            present = build(engine, compiled(engine, found, own), below, tag, {"ajet.client": content})
    return Image(present, tag, base)


def build(engine: ContainerEngine, files: Tree, below: str, tag: str, labels: Mapping[str, str]) -> str:
    """Build an image that adds files, by path from its root, to the image `below`, by a copy alone; return its id."""
    from docker.errors import BuildError

    context = tar_of({**under("files", {**files, **WORKSPACE}), "Dockerfile": _dockerfile()})
    try:
        with asking(engine, f"building image {tag} over {below}"):
            image, _ = engine.client.images.build(
                fileobj=io.BytesIO(context), custom_context=True, tag=tag, buildargs={"BASE_IMAGE": below},
                labels=dict(labels), network_mode="none", rm=True, forcerm=True, timeout=BUILD_TIMEOUT_S,
            )  # fmt: skip
    except BuildError as error:
        raise SandboxError(f"the engine at {engine.host} could not build {tag} over {below}: {error}") from error
    return str(image.id)


def inside() -> Tree:
    """Return our files that run in every container, as they lie in `/opt/ajet`."""
    return {path: content for path, content in tree_of_folder(INSIDE).items() if path != "__init__.py"}


def _dockerfile() -> bytes:
    return DOCKERFILE.read_bytes()


def _packages_image(engine: ContainerEngine, base: Base, pins: tuple[str, ...], note: Note) -> str:
    """Return the tag of the image that adds the pinned packages to the base."""
    tag = f"{PACKAGES_REPOSITORY}:{digest(base.id, *pins, _dockerfile().decode())[:16]}"
    if identity(engine, tag) is None:
        note(f"fetching {len(pins)} packages of the client for Python {base.python}")
        tree = compiled(engine, base, under(f"{PLACE}/site", install(pins, base)))
        if not base.compiled:
            note(f"compiling the standard library of {base.name}")
            tree |= compiled_library(engine, base)
        note(f"building the image of the client's packages over {base.name}")
        labels = {"ajet.python": base.python, "ajet.base": base.id, "ajet.requirements": " ".join(pins)}
        build(engine, tree, base.name, tag, labels)
    return tag
