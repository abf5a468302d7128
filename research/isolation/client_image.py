"""The client image of containers, and the `ajet-client` wheel.

The base is the one named; else that of the last build here when the engine has it; else `python:3.11-slim` when the
engine has that; else the first of both that there was, from its registry. What lies in it is found by following imports
from the client and the environments. The wheel, for machines on which agents play, has the same modules; as it brings
the package `swarm` in part, it does not belong into an environment that has ajet itself.
"""

import ast
import base64
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from filelock import FileLock

from research.files import read_json, write_json
from research.installation.home import Home
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine, EngineRefusal, wrap_errors
from sandboxes.images.build import Image, Note, client_image, derive_image, identity

ROOTS = ("swarm.client", "swarm.environments")
PACKAGES = ("aiohttp", "pydantic", "openai[aiohttp]")
USUAL_BASE = "python:3.11-slim"
NAME = "ajet-client"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Of every file in it, so that the same sources make the same bytes."""


def ensure_client_image(engine: ContainerEngine, home: Home, note: Note, *, base: str | None = None) -> Image:
    """Return the client image of this installation, built where the engine has none; SandboxError for no base image."""
    with _image_lock(home):
        last = _read_record(home).get("base")
        names = [base] if base else [name for name in (last, USUAL_BASE) if name]
        name = next((name for name in names if identity(engine, name) is not None), names[0])
        if identity(engine, name) is None:
            note(f"pulling {name}")
            reason = "the registry has none"
            try:
                with wrap_errors(engine, f"pulling {name}"):
                    for _ in engine.client.api.pull(name, stream=True, decode=True):
                        pass
            except EngineRefusal as error:
                reason = str(error)[:200]
            if identity(engine, name) is None:
                raise SandboxError(
                    f"expected base image {name}; the engine has none and could not pull it ({reason}); name one that "
                    "it has (ajet sandbox build --base IMAGE)"
                )
        image = client_image(engine, client_sources(), PACKAGES, home.images, base=name, note=note)
        _remember(home, image.tag, {"base": name, "id": image.id, "tag": image.tag})
    return image


def ensure_derived_image(
    engine: ContainerEngine, home: Home, requirements: str, note: Note, *, base: str | None = None
) -> Image:
    parent = ensure_client_image(engine, home, note, base=base)
    with _image_lock(home):
        image = derive_image(engine, parent, requirements, home.images, note=note)
        _remember(home, image.tag, {})
    return image


@contextmanager
def _image_lock(home: Home) -> Iterator[None]:
    home.sandboxes.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(home.sandboxes / "image.lock"):
        yield


def list_image_tags(home: Home) -> list[str]:
    return list(_read_record(home).get("made", ()))


def client_sources() -> dict[str, bytes]:
    """Return the light client's modules by path, with the tables beside them: the two packages, and every module of
    `swarm` that they import."""
    spec = find_spec("swarm")
    assert spec is not None
    assert spec.origin is not None
    top = Path(spec.origin).parents[1]
    left = [path for root in ROOTS for path in (top / root.replace(".", "/")).rglob("*.py")]
    found: dict[str, bytes] = {}
    while left:
        path = left.pop()
        name = path.relative_to(top).as_posix()
        if name in found:
            continue
        found[name] = path.read_bytes()
        if (table := path.with_suffix(".toml")).is_file():
            found[table.relative_to(top).as_posix()] = table.read_bytes()
        modules: list[str] = []
        for node in ast.walk(ast.parse(found[name], name)):
            if isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for parts in (module.split(".") for module in modules if module.split(".")[0] == "swarm"):
            places = (top.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1))
            files = (path for place in places for path in (place.with_suffix(".py"), place / "__init__.py"))
            left += [path for path in files if path.is_file()]
    return dict(sorted(found.items()))


def _read_record(home: Home) -> Mapping[str, Any]:
    found = read_json(home.sandboxes / "image.json")
    return found if isinstance(found, dict) else {}


def last_image(home: Home) -> str | None:
    """Return the id of the client image that was made or found last, None when there was none yet."""
    found = _read_record(home).get("id")
    return None if found is None else str(found)


def _remember(home: Home, tag: str, current: Mapping[str, str]) -> None:
    before = _read_record(home)
    after = {**before, **current, "made": sorted({*before.get("made", ()), tag})}
    if after != before:
        write_json(home.sandboxes / "image.json", after, durable=False)


def build_wheel(folder: Path) -> Path:
    """Write the wheel into a folder and return it, whole or not at all."""
    release = version("ajet")
    target = folder / f"ajet_client-{release}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".part")
    info = f"ajet_client-{release}.dist-info"
    needs = [f"Requires-Dist: {package}" for package in PACKAGES if "[" not in package]
    extra = [f'Requires-Dist: {package}; extra == "openai"' for package in PACKAGES if "[" in package]
    about = [
        "Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {release}", "License: Apache-2.0",
        "Summary: The client of an ajet swarm server: agents play, the server trains.",
        "Requires-Python: >=3.11,<3.13", *needs, "Provides-Extra: openai", *extra, "",
    ]  # fmt: skip
    tags = ["Wheel-Version: 1.0", "Generator: ajet", "Root-Is-Purelib: true", "Tag: py3-none-any", ""]
    contents = {
        **client_sources(),
        f"{info}/METADATA": "\n".join(about).encode(),
        f"{info}/WHEEL": "\n".join(tags).encode(),
    }
    record = [f"{info}/RECORD,,\n"]  # PEP 427: name, hash and size of each file
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.insert(-1, f"{name},sha256={digest},{len(data)}\n")
    contents[f"{info}/RECORD"] = "".join(record).encode()
    try:
        with ZipFile(draft, "w", ZIP_DEFLATED) as wheel:
            for name, data in contents.items():
                entry = ZipInfo(name, _EPOCH)
                entry.compress_type, entry.external_attr = ZIP_DEFLATED, 0o644 << 16
                wheel.writestr(entry, data)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target
