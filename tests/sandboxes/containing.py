"""What the tests of containers share: specs of small Python programs, and what the engine holds of an installation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sandboxes import DockerSandbox, SandboxSpec
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.options import INSTALLATION
from sandboxes.images import Image

DEADLINE_S = 180.0


def spec(image: Image, code: str, name: str = "one", **more: Any) -> SandboxSpec:
    """Return a spec of a container that runs `code`."""
    command = ("python3", "-I", "-S", "-c", code)
    return SandboxSpec(name, command, Path("/"), image=image.id, **{"labels": {"study": "s"}, **more})


def held(engine: ContainerEngine, sandbox: DockerSandbox) -> list[str]:
    """Return the names of all containers and volumes that the engine has of this installation."""
    ours: Any = {"label": [f"{INSTALLATION}={sandbox.installation}"]}
    containers = [
        str(name) for found in engine.client.api.containers(all=True, filters=ours) for name in found["Names"]
    ]
    return sorted(containers + [volume["Name"] for volume in engine.client.api.volumes(filters=ours)["Volumes"] or []])


def in_engine(sandbox: DockerSandbox, name: str = "one") -> str:
    """Return the engine's name of the sandbox `name`."""
    return f"{name}.{sandbox.installation}"
