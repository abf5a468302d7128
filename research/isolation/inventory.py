"""The sandboxes of this installation: listed and pruned.

Listing changes no container: one that ended is collected by whoever polls its handle. Pruned is what nobody needs, by
this installation's labels and records alone: nothing that runs within its time, no folder of a sandbox (they are the
record), and no image that a container or an unfinished study of this installation names.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from research.installation.home import Home
from research.isolation.client_image import last_image, list_image_tags
from research.text import did_you_mean
from sandboxes import DockerSandbox, Exit, ExitReason, Handle, ProcessSandbox, SandboxError
from sandboxes.docker import launch
from sandboxes.docker.container import OVERDUE_S
from sandboxes.docker.engine import ContainerEngine, EngineRefusal, wrap_errors
from sandboxes.images.build import BUILD_LABEL, PACKAGES_REPOSITORY
from sandboxes.spec import read

Kind = Literal["process", "docker"]
ABANDONED_S = 3600.0
"""Compiling for an image takes minutes at most: a container for it so much older is of a build that was killed."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One sandbox. `state` is `ended`, `not started`, `unknown` (its engine did not say), or the engine's own word."""

    name: str
    kind: Kind
    state: str
    exit: Exit | None
    created_at: float
    image: str | None
    labels: Mapping[str, str]


def find_sandboxes(home: Home, engine: ContainerEngine | None) -> list[SandboxInfo]:
    states = container_states(home, engine) if engine is not None else {}
    found = []
    for path in (*home.sandboxes.glob("*/spec.json"), *home.containers.glob("*/spec.json")):
        spec, name, state = read(path) or {}, path.parent.name, "not started"
        kind: Kind = "process" if path.parent.parent == home.sandboxes else "docker"
        ended: Exit | None = None
        if kind == "process":
            if (handle := ProcessSandbox(home.sandboxes).adopt(name)) is not None:
                state, ended = "running", handle.poll()
        else:
            state = states.get(name, "unknown" if path.with_name("started.json").exists() else state)
            if (end := read(path.with_name("exit.json"))) is not None:
                ended = Exit(cast(ExitReason, end["reason"]), end["code"])
        state = state if ended is None else "ended"
        found.append(
            SandboxInfo(name, kind, state, ended, spec["created_at"], spec.get("image"), spec.get("labels", {}))
        )
    return sorted(found, key=lambda each: (-each.created_at, each.name))


def container_states(home: Home, engine: ContainerEngine) -> dict[str, str]:
    """Return the engine's word on each container of this installation, by the sandbox's name."""
    if (owner := installation_id(home)) is None:
        return {}
    filters = {"label": [f"{launch.INSTALLATION}={owner}", f"{launch.ROLE}=container"]}
    with wrap_errors(engine, "listing this installation's containers"):
        found = engine.client.api.containers(all=True, filters=filters)
    return {each["Labels"][launch.NAME]: str(each["State"]) for each in found}


def installation_id(home: Home) -> str | None:
    found = read(home.containers / ".installation")
    return None if found is None else str(found["id"])


def find_handle(home: Home, engine: ContainerEngine | None, name: str) -> Handle:
    """Return the handle of the sandbox of that name, or of the only one whose name begins so; raise SandboxError."""
    known = {each.name: each for each in find_sandboxes(home, engine)}
    fitting = [name] if name in known else [key for key in known if key.startswith(name)]
    if not fitting:
        hint = did_you_mean(name, known) or "; `ajet sandbox ls --all` lists them"
        raise SandboxError(f"expected the name of a sandbox of this installation; found {name[:80]!r}{hint}")
    if len(fitting) > 1:
        more = f" and {len(fitting) - 3} more" if len(fitting) > 3 else ""
        found = f"{', '.join(fitting[:3])}{more}"
        raise SandboxError(f"expected one sandbox whose name begins with {name!r}; found {found}")
    sandbox = known[fitting[0]]
    if sandbox.kind == "process":
        handle: Handle | None = ProcessSandbox(home.sandboxes).adopt(sandbox.name)
    elif engine is None:
        raise SandboxError(f"sandbox {sandbox.name} is a container, and no engine answers; start it, and try again")
    else:
        handle = DockerSandbox(home.containers, engine).adopt(sandbox.name)
    if handle is None:
        raise SandboxError(f"sandbox {sandbox.name} was never started; there is nothing to show or stop")
    return handle


@dataclass(frozen=True, slots=True)
class Waste:
    """A thing in the engine that nobody needs, and how to be rid of it."""

    kind: Literal["container", "volume", "image"]
    name: str
    why: str
    remove: Callable[[], object]


def find_waste(home: Home, engine: ContainerEngine, pinned: Iterable[str]) -> list[Waste]:
    """Return what `prune` is to remove; `pinned` are the ids of images that unfinished studies name."""
    waste: list[Waste] = []
    api, now = engine.client.api, time.time()
    if (owner := installation_id(home)) is not None:
        for name, state in container_states(home, engine).items():
            if (why := _removal_reason(home, name, state)) is not None:
                waste.append(Waste("container", name, why, partial(_remove, home, engine, owner, name)))
        with wrap_errors(engine, "listing this installation's volumes"):
            volumes = api.volumes(filters={"label": f"{launch.INSTALLATION}={owner}"})["Volumes"] or []
        for name in (volume["Labels"][launch.NAME] for volume in volumes):
            folder = home.containers / name
            if (folder / "exit.json").exists() or not (folder / "spec.json").exists():
                remove = partial(launch.clear, engine, name, owner)
                waste.append(Waste("volume", f"{name} (its input)", "its sandbox ended or is gone", remove))
    with wrap_errors(engine, "listing containers of builds"):
        builds = api.containers(all=True, filters={"label": BUILD_LABEL})
    for build in builds:
        if build["Created"] < now - ABANDONED_S:
            remove = partial(api.remove_container, build["Id"], v=True, force=True)
            waste.append(Waste("container", build["Id"][:12], "its build was killed", remove))
    current, mine = last_image(home), set(list_image_tags(home))
    with wrap_errors(engine, "listing client images"):
        clients = api.images(filters={"label": "ajet.client"})
        packages = api.images(name=PACKAGES_REPOSITORY)
        used = {image["ImageID"] for image in api.containers(all=True)}
    kept = used | set(pinned) | ({current} if current is not None else set())
    # Ours by record, while neither it nor the client image below it is to be kept.
    ours = [image for image in clients if mine & set(image["RepoTags"] or ())]
    old = [image for image in ours if not {image["Id"], image["Labels"].get("ajet.parent", "")} & kept]
    needed = [_packages(image) for image in clients if image not in old]
    alone = [image for image in packages if _packages(image) in map(_packages, old) and _packages(image) not in needed]
    tags = [tag for image in [*old, *alone] for tag in image["RepoTags"] or []]
    waste += [Waste("image", tag, "a newer one took its place", partial(api.remove_image, tag)) for tag in tags]
    return waste


def image_bytes(engine: ContainerEngine) -> int | None:
    """Return what all images of the engine take on its disk; None while it measures that for somebody else."""
    try:
        with wrap_errors(engine, "asking how much its images take"):
            return int(engine.client.api.df()["LayersSize"] or 0)
    except EngineRefusal:
        return None


def _removal_reason(home: Home, name: str, state: str) -> str | None:
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


def _remove(home: Home, engine: ContainerEngine, owner: str, name: str) -> None:
    held = DockerSandbox(home.containers, engine).adopt(name)
    if held is not None:
        held.stop()
    launch.clear(engine, name, owner)


def _packages(image: Mapping[str, Any]) -> tuple[str, str]:
    return image["Labels"].get("ajet.base", ""), image["Labels"].get("ajet.requirements", "")
