"""What a base image brings: its Python and its platform, asked of the image itself by running it without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.docker.asking import EngineRefused, asking
from sandboxes.docker.engine import ContainerEngine
from sandboxes.shim import write_atomic
from sandboxes.spec import SandboxError

if TYPE_CHECKING:
    from docker.models.containers import Container

OLDEST_PYTHON = (3, 11)
ASK_TIMEOUT_S = 60.0
BUILD_LABEL = "ajet.kind=image-build"
"""On the containers that ask and compile for images, which live for seconds."""

_ASK = """
import asyncio, importlib.util, json, os, platform, sys
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "libc": " ".join(platform.libc_ver()).strip(),
    "library": os.path.realpath(os.path.dirname(os.__file__)),
    "compiled": os.path.exists(importlib.util.cache_from_source(asyncio.__file__)),
    "markers": {
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_system": platform.system(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    },
}))
"""


@dataclass(frozen=True, slots=True)
class Base:
    """A base image and its Python."""

    name: str
    id: str
    version: tuple[int, int]
    libc: str
    """As `glibc 2.36`; empty for musl."""
    library: str
    """Folder of its standard library."""
    compiled: bool
    """Whether that was compiled; python's official images delete what was."""
    markers: Mapping[str, str]
    """What packages' requirements depend on, as `python_version`."""

    @property
    def python(self) -> str:
        """Its Python's version, as `3.11`."""
        return ".".join(str(part) for part in self.version)

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags of wheels that it can load, the most exact first."""
        machine = self.markers["platform_machine"]
        glibc = re.fullmatch(r"glibc 2\.(\d+).*", self.libc)
        if glibc is None:
            return tuple(f"musllinux_1_{minor}_{machine}" for minor in range(2, -1, -1))
        exact = [f"manylinux_2_{minor}_{machine}" for minor in range(int(glibc[1]), 4, -1)]
        return (*exact, *(f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")), f"linux_{machine}")


def inspect(engine: ContainerEngine, name: str, cache: Path) -> Base:
    """Return what the present image `name` brings; asked once per image, and kept in the folder `cache`."""
    if (found := identity(engine, name)) is None:
        raise SandboxError(f"expected a base image {name}; the engine at {engine.host} has none of that name")
    kept = cache / f"base-{found.removeprefix('sha256:')[:32]}.json"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, asdict(_ask(engine, name, found)))
    return _base(name, found, json.loads(kept.read_text(encoding="utf-8")))


def identity(engine: ContainerEngine, name: str) -> str | None:
    """Return the id of a present image, or None."""
    from docker.errors import ImageNotFound

    try:
        with asking(engine, f"looking for image {name}"):
            return str(engine.client.images.get(name).id)
    except ImageNotFound:
        return None


@contextmanager
def python_in(engine: ContainerEngine, image: str, *arguments: str) -> Iterator[Container]:
    """Yield a created container that runs the image's Python, without network or rights, and remove it.

    It runs as root, so that it may write into what it was given, and as nobody else's: it runs our code only.
    """
    with asking(engine, f"running the Python of image {image[:19]}"):
        container = engine.client.containers.create(
            image,
            ["-S", "-B", *arguments],
            entrypoint=["python3"],
            environment={"PYTHONHASHSEED": "0"},
            network_mode="none",
            user="0:0",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=64,
            working_dir="/",
            labels=dict([BUILD_LABEL.split("=")]),
        )
        try:
            yield container
        finally:
            container.remove(force=True, v=True)


def last_line(container: Container) -> str:
    """Return the last line of what a container said, for an error."""
    lines = container.logs(tail=20).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing"


def _ask(engine: ContainerEngine, name: str, identity: str) -> Base:
    _refuse_volumes(engine, name)
    try:
        with python_in(engine, identity, "-c", _ASK) as container:
            container.start()
            if container.wait(timeout=ASK_TIMEOUT_S)["StatusCode"] != 0:
                raise SandboxError(
                    f"expected Python in base image {name}; asked about it, it said {last_line(container)}"
                )
            base = _base(name, identity, json.loads(container.logs(stdout=True, stderr=False)))
    except EngineRefused as error:
        raise SandboxError(
            f"expected `python3` in base image {name}; found none that starts ({error}); name another with --base, as "
            "python:3.11-slim"
        ) from error
    if base.version < OLDEST_PYTHON:
        raise SandboxError(f"expected Python 3.11 or newer in base image {name}; found {base.python}; name another")
    return base


def _refuse_volumes(engine: ContainerEngine, name: str) -> None:
    with asking(engine, f"looking at image {name}"):
        volumes = (engine.client.images.get(name).attrs["Config"] or {}).get("Volumes")
    if volumes:
        raise SandboxError(
            f"expected a base image without volumes, for nothing bounds their size; {name} declares "
            f"{', '.join(volumes)}; name another"
        )


def _base(name: str, identity: str, said: Mapping[str, Any]) -> Base:
    version = (int(said["version"][0]), int(said["version"][1]))
    return Base(name, identity, version, said["libc"], said["library"], said["compiled"], said["markers"])
