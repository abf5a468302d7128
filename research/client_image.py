"""The image that clients of this installation run in: which base it is made on, and what of us lies in it.

The base is the one named; else that of the last build here; else `python:3.11-slim` when the engine has it; else a base
made here of Debian (`ajet-base:*`); else `python:3.11-slim` from its registry. What lies in it is found by following
imports from the client and the environments, so that nothing else of `swarm` enters.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from research.files import read_json, write_json
from research.home import Home
from sandboxes import SandboxError
from sandboxes.engine import Engine
from sandboxes.images import ClientContext, Image, Note, client_image, derived_image, identity

ROOTS = ("swarm.client", "swarm.environments")
PACKAGES = ("aiohttp", "pydantic", "openai[aiohttp]")
USUAL_BASE = "python:3.11-slim"
OFFLINE_BASE = "ajet-base"


def ensure_client_image(engine: Engine, home: Home, note: Note, *, base: str | None = None) -> Image:
    """Return the client image of this installation, building it when the engine has none of its content.

    Raises SandboxError when there is no base image to build it on.
    """
    chosen = base or _last_base(home) or _found_base(engine, note)
    if identity(engine, chosen) is None:
        _pull(engine, chosen, note)
    image = client_image(engine, client_context(home), base=chosen, note=note)
    write_json(_record(home), {"base": chosen, "id": image.id, "tag": image.tag}, durable=False)
    return image


def ensure_derived_image(engine: Engine, home: Home, requirements: str, note: Note) -> Image:
    """Return the client image of this installation with what the text of a requirements.txt names."""
    return derived_image(engine, ensure_client_image(engine, home, note), requirements, image_cache(home), note=note)


def client_context(home: Home) -> ClientContext:
    """Return what the client consists of, as it lies on this machine."""
    return ClientContext(client_sources(), PACKAGES, image_cache(home))


def image_cache(home: Home) -> Path:
    """Return the folder that keeps packages fetched for images."""
    return home.path / "images"


def client_sources() -> dict[str, bytes]:
    """Return the light client's modules by path: the two packages, and every module of `swarm` that they import."""
    top = _folder("swarm").parent
    left = [path for root in ROOTS for path in _folder(root.replace(".", "/"), top).rglob("*.py")]
    found: dict[str, bytes] = {}
    while left:
        path = left.pop()
        name = path.relative_to(top).as_posix()
        if name not in found:
            found[name] = path.read_bytes()
            left += _imported(found[name], name, top)
    return dict(sorted(found.items()))


def _folder(name: str, top: Path | None = None) -> Path:
    if top is not None:
        return top / name
    spec = find_spec(name)
    assert spec is not None, f"{name} is not installed"
    assert spec.origin is not None, f"{name} has no folder"
    return Path(spec.origin).parent


def _imported(source: bytes, name: str, top: Path) -> Iterator[Path]:
    """Yield the files of `swarm` that a module's text imports at any depth, with the packages they lie in."""
    for node in ast.walk(ast.parse(source, name)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for each in names:
            if each.split(".")[0] == "swarm":
                yield from _files(each, top)


def _files(module: str, top: Path) -> Iterator[Path]:
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        place = top.joinpath(*parts[:depth])
        yield from (path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file())


def _record(home: Home) -> Path:
    return home.sandboxes / "image.json"


def _last_base(home: Home) -> str | None:
    """Return the base of the last build here."""
    found = read_json(_record(home))
    return str(found["base"]) if isinstance(found, dict) and "base" in found else None


def _found_base(engine: Engine, note: Note) -> str:
    """Return a base that the engine has, or the usual one, which is then pulled."""
    if identity(engine, USUAL_BASE) is not None:
        return USUAL_BASE
    own = sorted(tag for image in engine.client.images.list(name=OFFLINE_BASE) for tag in image.tags)
    return own[-1] if own else USUAL_BASE


def _pull(engine: Engine, name: str, note: Note) -> None:
    from docker.errors import DockerException

    note(f"pulling {name}")
    try:
        for _ in engine.client.api.pull(name, stream=True, decode=True):
            pass
    except DockerException as error:
        raise SandboxError(_no_base(name, str(error))) from error
    if identity(engine, name) is None:
        raise SandboxError(_no_base(name, "the registry has none"))


def _no_base(name: str, reason: str) -> str:
    return (
        f"expected base image {name}; the engine has none and could not pull it ({reason[:200]}); name one that it has "
        "(ajet sandbox build --base IMAGE), or make one of this machine's Debian (ajet sandbox build --offline-base)"
    )
