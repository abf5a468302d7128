"""Making and starting a container: its input in a volume, the container by its name, and only then its start.

A controller may be killed after each step. The next one finds the container by its name and goes on from there, or
finds none and removes what was left. The caller holds the folder's lock.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandboxes.docker import archive, options
from sandboxes.docker.asking import EngineRefused, asking, inspect, remove, remove_volume
from sandboxes.docker.engine import ContainerEngine
from sandboxes.folders import write_once
from sandboxes.shim import write_atomic
from sandboxes.spec import SandboxError, SandboxSpec

CLIENT_LABEL = "ajet.client"


def names(name: str, installation: str) -> tuple[str, str, str]:
    """Return the names of a sandbox's container, loader and volume in the engine."""
    container = options.container_name(name, installation)
    return container, f"{container}.loader", f"{container}.input"


def clear(engine: ContainerEngine, name: str, installation: str) -> None:
    """Remove all that the engine holds of a sandbox."""
    container, loader, volume = names(name, installation)
    remove(engine, container)
    remove(engine, loader)
    remove_volume(engine, volume)


def make(engine: ContainerEngine, installation: str, spec: SandboxSpec, folder: Path) -> None:
    """Create the container of `spec`, not started; raise SandboxError with nothing left behind if it cannot be."""
    from docker.errors import NotFound

    check_engine(engine, spec)
    check_image(engine, spec)
    clear(engine, spec.name, installation)
    write_atomic(folder / "spec.json", to_json(spec))
    try:
        volume = _load(engine, installation, spec) if spec.archive is not None else None
        wanted = options.container(spec, installation, volume=volume)
        with asking(engine, f"creating sandbox {spec.name}"):
            engine.client.containers.create(**wanted)
    except (EngineRefused, NotFound):
        clear(engine, spec.name, installation)
        raise


def start(engine: ContainerEngine, engine_id: str, installation: str, name: str, folder: Path) -> None:
    """Start the created container; when the engine refuses, nothing is left, and it may be launched again."""
    from docker.errors import NotFound

    container = options.container_name(name, installation)
    note_started(engine_id, folder)
    try:
        with asking(engine, f"starting sandbox {name}"):
            engine.client.api.start(container)
    except (EngineRefused, NotFound):
        clear(engine, name, installation)
        (folder / "started.json").unlink()
        raise
    with suppress(SandboxError):  # it works already; what is left of its making goes with it in the end
        remove(engine, names(name, installation)[1])


def note_started(engine_id: str, folder: Path) -> None:
    """Write down that it was started, in which engine, and will never be again."""
    write_once(folder / "started.json", {"engine": engine_id, "started_at": time.time()})


def check_engine(engine: ContainerEngine, spec: SandboxSpec) -> None:
    """Raise SandboxError unless the engine can isolate untrusted code, and has GPUs for whoever asks for some."""
    if engine.lacks and not spec.trusted:
        raise SandboxError(
            f"sandbox {spec.name}: expected an engine that isolates untrusted code; the one at {engine.host} lacks "
            + "; ".join(engine.lacks)
        )
    if spec.gpus and not engine.gpus:
        raise SandboxError(
            f"sandbox {spec.name}: expected an engine that hands GPUs to containers ({', '.join(spec.gpus)}); the one "
            f"at {engine.host} has no nvidia runtime. Install the NVIDIA Container Toolkit there, or ask for no GPU"
        )


def check_image(engine: ContainerEngine, spec: SandboxSpec) -> None:
    """Raise SandboxError unless the image is there, a client image, and has no volume, which nothing would bound."""
    from docker.errors import NotFound

    try:
        with asking(engine, f"looking at image {spec.image}"):
            config: Mapping[str, Any] = engine.client.images.get(str(spec.image)).attrs["Config"] or {}
    except NotFound as error:
        raise SandboxError(
            f"sandbox {spec.name}: expected image {spec.image} in the engine at {engine.host}; found none. "
            "Make it: `ajet sandbox build`"
        ) from error
    if CLIENT_LABEL not in (config.get("Labels") or {}):
        raise SandboxError(
            f"sandbox {spec.name}: expected a client image (label {CLIENT_LABEL}); image {spec.image} is none. "
            "Make one upon it: `ajet sandbox build --base IMAGE`"
        )
    if config.get("Volumes"):
        raise SandboxError(
            f"sandbox {spec.name}: expected an image without volumes, for nothing bounds their size; "
            f"image {spec.image} declares {', '.join(config['Volumes'])}. Use a base image without VOLUME"
        )


def to_json(spec: SandboxSpec) -> dict[str, Any]:
    """Return what is written down of a spec: names, no values, of its environment."""
    return {
        "name": spec.name,
        "command": list(spec.command),
        "environment": sorted(spec.environment),
        "labels": dict(spec.labels),
        "time_limit_s": spec.time_limit_s,
        "image": spec.image,
        "archive_sha256": None if spec.archive is None else hashlib.sha256(spec.archive).hexdigest(),
        "results": dict(spec.results),
        "created_at": time.time(),
    }


def _load(engine: ContainerEngine, installation: str, spec: SandboxSpec) -> str:
    """Put the archive into a volume of its own; return the volume's name."""
    assert spec.archive is not None
    packed = archive.pack(archive.check(spec.archive))
    _, loader, volume = names(spec.name, installation)
    with asking(engine, f"loading the archive of sandbox {spec.name}"):
        client = engine.client
        client.api.create_volume(volume, labels=options.labels(spec, installation, "input"))
        client.containers.create(**options.loader(spec, installation, volume))
        client.api.put_archive(loader, options.INPUT, packed)
    return volume


def launched(engine: ContainerEngine, installation: str, name: str) -> str | None:
    """Return the status of this sandbox's container, None for none; raise SandboxError when it is somebody else's."""
    container = options.container_name(name, installation)
    if (found := inspect(engine, container)) is None:
        return None
    if (owner := (found["Config"]["Labels"] or {}).get(options.INSTALLATION)) != installation:
        raise SandboxError(
            f"sandbox {name}: expected container {container} to be of installation {installation}; found "
            f"{owner or 'no such label'}. Remove it (`docker rm -f {container}`) or use another name"
        )
    return str(found["State"]["Status"])
