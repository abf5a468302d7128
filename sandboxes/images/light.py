"""The client image: a base image, our process 1, the light client and its packages; nothing of torch, no server.

It is a build of copies, so it needs no network, and its tag names what went in: building it again is looking it up.
The packages are a layer of their own, kept compiled in the context's cache, so that a changed source costs a second.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.engine import Engine
from sandboxes.images.base import Base, compiled, inspect
from sandboxes.images.packages import closure, install
from sandboxes.images.trees import Tree, digest, tar_of, tree_of, tree_of_folder, under
from sandboxes.spec import SandboxError

Note = Callable[[str], None]
"""Tells people what is being done, in a line, before anything slow."""

PLACE = "/opt/ajet"
INSIDE = Path(__file__).parents[1] / "inside"
DOCKERFILE = Path(__file__).with_name("client") / "Dockerfile"
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
    """Folder that keeps what pip brought and what was asked of base images."""


def client_image(engine: Engine, context: ClientContext, *, base: str, note: Note) -> Image:
    """Return the client image over the present image `base`, building it when the engine has none of its content."""
    found = inspect(engine, base, context.cache)
    pins = closure(context.roots, found.markers)
    inside = {path: content for path, content in tree_of_folder(INSIDE).items() if path.endswith(".py")}
    own = {**inside, **under("site", context.sources)}
    content = digest(found.id, "\n".join(pins), own, DOCKERFILE.read_text(encoding="utf-8"))
    tag = f"ajet-client:{content[:16]}"
    if (present := identity(engine, tag)) is not None:
        return Image(present, tag, base)
    packages = _packages(engine, found, pins, context.cache, note)
    note(f"building the client image over {base}")
    labels = {
        "ajet.client": content,
        "ajet.python": found.python,
        "ajet.base": found.id,
        "ajet.requirements": " ".join(pins),
    }
    own = compiled(engine, found, PLACE, own)
    return build(engine, {**under("packages", packages), **under("own", own)}, DOCKERFILE, base, tag, labels)


def build(engine: Engine, files: Tree, dockerfile: Path, base: str, tag: str, labels: Mapping[str, str]) -> Image:
    """Build an image by copies alone and return it under its tag."""
    from docker.errors import BuildError, DockerException

    context = io.BytesIO(tar_of({**files, "Dockerfile": dockerfile.read_bytes()}))
    try:
        image, _ = engine.client.images.build(
            fileobj=context, custom_context=True, tag=tag, buildargs={"BASE_IMAGE": base}, labels=dict(labels),
            network_mode="none", rm=True, forcerm=True, timeout=BUILD_TIMEOUT_S,
        )  # fmt: skip
    except (BuildError, DockerException) as error:
        raise SandboxError(f"the engine at {engine.host} could not build {tag} over {base}: {error}") from error
    return Image(str(image.id), tag, base)


def identity(engine: Engine, name: str) -> str | None:
    """Return the id of a present image, or None."""
    from docker.errors import ImageNotFound

    try:
        return str(engine.client.images.get(name).id)
    except ImageNotFound:
        return None


def _packages(engine: Engine, base: Base, pins: tuple[str, ...], cache: Path, note: Note) -> Tree:
    """Return the pinned packages compiled for the base, from the cache when it has them."""
    kept = cache / f"packages-{digest(base.id, *pins)[:16]}.tar"
    if not kept.exists():
        note(f"fetching {len(pins)} packages of the client for Python {base.python}")
        tree = compiled(engine, base, f"{PLACE}/site", install(pins, base))
        draft = kept.with_suffix(".draft")
        draft.write_bytes(tar_of(tree))
        draft.replace(kept)
    return tree_of(kept.read_bytes())
