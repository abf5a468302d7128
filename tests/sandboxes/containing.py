"""What the tests of containers share: specs of small Python programs, and what the engine holds of an installation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxes import DockerSandbox, Exit, SandboxSpec
from sandboxes.docker.container import ContainerHandle
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.launch import INSTALLATION
from sandboxes.images.build import Image
from sandboxes.spec import wait_until

DEADLINE_S = 180.0
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


def spec(image: Image, code: str, name: str = "one", **more: Any) -> SandboxSpec:
    command = ("python3", "-I", "-S", "-c", code)
    return SandboxSpec(name, command, Path("/"), image=image.id, **{"labels": {"study": "s"}, **more})


def refused_results(handle: ContainerHandle) -> dict[str, str]:
    """Return the results that were asked for and not collected, each with the reason."""
    return dict(handle._read("exit")["refused"])


def held(engine: ContainerEngine, sandbox: DockerSandbox) -> list[str]:
    """Return the names of all containers and volumes that the engine has of this installation."""
    ours: Any = {"label": [f"{INSTALLATION}={sandbox.installation}"]}
    containers = [str(name) for one in engine.client.api.containers(all=True, filters=ours) for name in one["Names"]]
    return sorted(containers + [volume["Name"] for volume in engine.client.api.volumes(filters=ours)["Volumes"] or []])


@dataclass
class Box:
    sandbox: DockerSandbox
    image: Image
    engine: ContainerEngine
    root: Path

    @property
    def api(self) -> Any:
        return self.engine.client.api

    @property
    def held(self) -> list[str]:
        return held(self.engine, self.sandbox)

    def in_engine(self, name: str = "one") -> str:
        return f"{name}.{self.sandbox.installation}"

    def state(self, name: str = "one") -> str:
        return str(self.api.inspect_container(self.in_engine(name))["State"]["Status"])

    def spec(self, code: str, name: str = "one", **more: Any) -> SandboxSpec:
        return spec(self.image, code, name, **more)

    def run(self, code: str, name: str = "one", **more: Any) -> ContainerHandle:
        return self.sandbox.run(self.spec(code, name, **more))

    def adopt(self, name: str = "one") -> ContainerHandle:
        handle = self.sandbox.adopt(name)
        assert handle is not None
        return handle

    def ended(self, code: str, **more: Any) -> Exit | None:
        return self.run(code, **more).wait(DEADLINE_S)

    def up(self, code: str = SLEEPER, name: str = "one", **more: Any) -> ContainerHandle:
        handle = self.run(code, name, **more)
        assert wait_until(lambda: handle.logs() == "up\n", DEADLINE_S)
        return handle
