"""The sandboxes of an installation, of both kinds, as one list: read from their folders and the engine, if any.

Listing changes no container: one that ended is collected by whoever polls its handle. The engine's labels tell of what
the engine still has; what ended, or never started, is in its folder alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from research.installation.home import Home
from sandboxes import DockerSandbox, Exit, ExitReason, Handle, ProcessSandbox, SandboxError
from sandboxes.docker import options
from sandboxes.docker.asking import asking
from sandboxes.docker.engine import ContainerEngine
from sandboxes.folders import read

Kind = Literal["process", "docker"]


@dataclass(frozen=True, slots=True)
class Listed:
    """One sandbox. `state` is `ended`, `not started`, `unknown` (its engine did not say), or the engine's own word."""

    name: str
    kind: Kind
    state: str
    exit: Exit | None
    created_at: float
    image: str | None
    labels: Mapping[str, str]


def listed(home: Home, engine: ContainerEngine | None) -> list[Listed]:
    """Return all sandboxes of the installation, newest first."""
    states = container_states(home, engine) if engine is not None else {}
    found = [
        *(_process(home, path) for path in home.sandboxes.glob("*/spec.json")),
        *(_container(path, states) for path in home.containers.glob("*/spec.json")),
    ]
    return sorted(found, key=lambda each: (-each.created_at, each.name))


def container_states(home: Home, engine: ContainerEngine) -> dict[str, str]:
    """Return the engine's word on each container of this installation, by the sandbox's name."""
    if (owner := installation(home)) is None:
        return {}
    filters = {"label": [f"{options.INSTALLATION}={owner}", f"{options.ROLE}=container"]}
    with asking(engine, "listing this installation's containers"):
        found = engine.client.api.containers(all=True, filters=filters)
    return {each["Labels"][options.NAME]: str(each["State"]) for each in found}


def installation(home: Home) -> str | None:
    """Return the id under which the installation's containers are known; None when it never had any."""
    found = read(home.containers / ".installation")
    return None if found is None else str(found["id"])


def find(home: Home, engine: ContainerEngine | None, name: str) -> Listed:
    """Return the sandbox of that name, or the only one whose name begins so; raise SandboxError naming near ones."""
    known = {each.name: each for each in listed(home, engine)}
    fitting = [name] if name in known else [key for key in known if key.startswith(name)]
    if len(fitting) == 1:
        return known[fitting[0]]
    if fitting:
        more = f" and {len(fitting) - 3} more" if len(fitting) > 3 else ""
        raise SandboxError(
            f"expected one sandbox whose name begins with {name!r}; found {', '.join(fitting[:3])}{more}"
        )
    near = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.5))
    hint = f"; near: {near}" if near else "; `ajet sandbox ls --all` lists them"
    raise SandboxError(f"expected the name of a sandbox of this installation; found {name[:80]!r}{hint}")


def handle(home: Home, engine: ContainerEngine | None, sandbox: Listed) -> Handle:
    """Return the handle of a listed sandbox; raise SandboxError for one that never started or whose engine is gone."""
    if sandbox.kind == "process":
        found = ProcessSandbox(home.sandboxes).adopt(sandbox.name)
    elif engine is None:
        raise SandboxError(f"sandbox {sandbox.name} is a container, and no engine answers; start it, and try again")
    else:
        found = DockerSandbox(home.containers, engine).adopt(sandbox.name)
    if found is None:
        raise SandboxError(f"sandbox {sandbox.name} was never started; there is nothing to show or stop")
    return found


def _process(home: Home, path: Path) -> Listed:
    adopted = ProcessSandbox(home.sandboxes).adopt(path.parent.name)
    return _listed(path, "process", "running" if adopted else "not started", adopted.poll() if adopted else None)


def _container(path: Path, states: Mapping[str, str]) -> Listed:
    ended = read(path.with_name("exit.json"))
    how = None if ended is None else Exit(cast(ExitReason, ended["reason"]), ended["code"])
    started = path.with_name("started.json").exists()
    return _listed(path, "docker", states.get(path.parent.name, "unknown" if started else "not started"), how)


def _listed(path: Path, kind: Kind, state: str, ended: Exit | None) -> Listed:
    spec = read(path) or {}
    now = "ended" if ended is not None else state
    return Listed(path.parent.name, kind, now, ended, spec["created_at"], spec.get("image"), spec.get("labels", {}))
