"""What a base image brings: its Python and its platform, asked of the image itself by running it without a network.

Its Python is also what compiles files for it, so that a container with a read-only root starts without compiling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sandboxes.engine import Engine
from sandboxes.images.trees import Tree, tar_of, tree_of
from sandboxes.spec import SandboxError

if TYPE_CHECKING:
    from docker.models.containers import Container

OLDEST_PYTHON = (3, 11)
COMPILE_TIMEOUT_S = 900.0
ASK_TIMEOUT_S = 60.0

_ASK = """
import json, os, platform, sys
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "libc": " ".join(platform.libc_ver()).strip(),
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
_COMPILE = ("-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash")


@dataclass(frozen=True, slots=True)
class Base:
    """A base image and its Python. `libc` is as `glibc 2.36`, empty for musl; `markers` decide what a package needs."""

    name: str
    id: str
    version: tuple[int, int]
    libc: str
    markers: Mapping[str, str]

    @property
    def python(self) -> str:
        """Its Python's version, as `3.11`."""
        return ".".join(str(part) for part in self.version)

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags of wheels that it can load, the most exact first."""
        machine = self.markers["platform_machine"]
        if not self.libc.startswith("glibc"):
            return tuple(f"musllinux_1_{minor}_{machine}" for minor in range(2, -1, -1))
        newest = int(self.libc.split(".")[1])
        exact = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
        return (*exact, *(f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")), f"linux_{machine}")


def inspect(engine: Engine, name: str, cache: Path) -> Base:
    """Return what the present image `name` brings; asked once per image, and kept in the folder `cache`."""
    from docker.errors import ImageNotFound

    try:
        identity = str(engine.client.images.get(name).id)
    except ImageNotFound as error:
        raise SandboxError(
            f"expected a base image {name}; the engine at {engine.host} has none of that name"
        ) from error
    kept = cache / f"base-{identity.removeprefix('sha256:')[:16]}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(_ask(engine, name, identity))), encoding="utf-8")
    found = json.loads(kept.read_text(encoding="utf-8"))
    return Base(name, identity, tuple(found["version"]), found["libc"], found["markers"])


def compiled(engine: Engine, base: Base, folder: str, tree: Tree) -> dict[str, bytes]:
    """Return the tree, which will lie in `folder` of an image, with what the base's Python compiles from it.

    What is no valid source stays uncompiled: packages ship such files as data.
    """
    place = Path(folder)
    container = _create(engine, base.id, (*_COMPILE, folder), {"PYTHONHASHSEED": "0"})
    try:
        container.put_archive("/", tar_of({f"{folder.lstrip('/')}/{path}": tree[path] for path in tree}))
        container.start()
        ended = container.wait(timeout=COMPILE_TIMEOUT_S)
        if ended["StatusCode"] not in (0, 1):
            raise SandboxError(f"{base.name}: its Python could not compile the client: {_last_line(container)}")
        data = b"".join(container.get_archive(folder)[0])
    finally:
        container.remove(force=True, v=True)
    return {path.removeprefix(f"{place.name}/"): content for path, content in tree_of(data).items()}


def _ask(engine: Engine, name: str, identity: str) -> Base:
    from docker.errors import APIError

    container = _create(engine, identity, ("-c", _ASK), {})
    try:
        container.start()
        ended = container.wait(timeout=ASK_TIMEOUT_S)
        if ended["StatusCode"] != 0:
            raise SandboxError(
                f"expected Python in base image {name}; asked its version, it said {_last_line(container)}"
            )
        said = json.loads(container.logs(stdout=True, stderr=False))
    except APIError as error:
        raise SandboxError(
            f"expected `python3` in base image {name}; found none that starts ({error.explanation}); "
            "name another with --base, as python:3.11-slim"
        ) from error
    finally:
        container.remove(force=True, v=True)
    return _checked(name, identity, cast(dict[str, Any], said))


def _checked(name: str, identity: str, said: Mapping[str, Any]) -> Base:
    base = Base(name, identity, (said["version"][0], said["version"][1]), said["libc"], said["markers"])
    if base.version < OLDEST_PYTHON:
        raise SandboxError(f"expected Python 3.11 or newer in base image {name}; found {base.python}; name another")
    return base


def _create(engine: Engine, image: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> Container:
    """Return a container of the base's Python without network or rights, as root: it writes into what it was given."""
    return engine.client.containers.create(
        image,
        ["-S", *arguments],
        entrypoint=["python3"],
        environment=dict(environment),
        network_mode="none",
        user="0:0",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        pids_limit=64,
        working_dir="/",
        labels={"ajet.kind": "image-build"},
    )


def _last_line(container: Container) -> str:
    lines = container.logs(tail=20).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing"
