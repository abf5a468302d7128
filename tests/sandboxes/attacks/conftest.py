"""An attacker in a real container of the client image, and the same attacker without the walls."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import socket
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from sandboxes.docker.container import ContainerHandle, DockerSandbox
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.launch import USER
from sandboxes.images.build import Image
from sandboxes.spec import Exit, Limits, SandboxSpec

if TYPE_CHECKING:
    from docker.models.containers import Container

HOSTILE = Path(__file__).parent / "hostile"
REPORT = "report.json"
SU = "/usr/bin/su"
WAIT_S = 180.0
SECRET = "sk-proj-Zq8Lr2TnVb6YxWc0KdHs4GmJ9PfUaE1R"
"""Of the form of a real key, and of no use anywhere."""

SPEC = SandboxSpec(
    "attack", ("true",), Path("/"), time_limit_s=120.0, results={REPORT: 1 << 20},
    limits=Limits(memory_bytes=256 << 20, workspace_bytes=16 << 20),
)  # fmt: skip


def attempts(module: str) -> dict[str, str]:
    """Return what each attempt of a module of `hostile` tries, by its name, in the order written."""
    found = {}
    for node in ast.parse((HOSTILE / f"{module}.py").read_text()).body:
        match node:
            case (
                ast.FunctionDef(name=name, decorator_list=[ast.Call(func=ast.Name(id="attempt"), args=[tried])])
                | ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name("trying" | "looking"), args=[tried, *_])
                )
            ):
                found[name] = ast.literal_eval(tried)
    return found


def hostile_files(facts: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what an attacker is given: its programs, and what it is told of the machine."""
    files = {path.name: path.read_bytes() for path in HOSTILE.glob("*.py")}
    return files | {"facts.json": json.dumps(dict(facts)).encode()}


@dataclass
class Attack:
    handle: ContainerHandle
    spec: SandboxSpec

    def ended(self) -> Exit:
        exit_ = self.handle.wait(WAIT_S)
        assert exit_ is not None, f"{self.spec.name} still runs after {WAIT_S:g} s:\n{self.handle.logs()[-2000:]}"
        return exit_

    def report(self) -> Any:
        exit_ = self.ended()
        found = self.handle.results().get(REPORT)
        assert found is not None, f"no report; it ended as {exit_}:\n{self.handle.logs()[-2000:]}"
        return json.loads(found.read_text())


@dataclass
class Attackers:
    """Lets attackers loose in containers of one installation."""

    sandbox: DockerSandbox
    root: Path
    engine: ContainerEngine
    image: Image
    facts: Mapping[str, Any] = field(default_factory=dict)
    spec: SandboxSpec = SPEC

    def run(self, *command: str, **fields: Any) -> Attack:
        """Start `python3 /input/COMMAND...` with the production's options; `fields` are changes of the spec."""
        spec = replace(
            self.spec, name=f"attack-{uuid.uuid4().hex[:12]}", image=self.image.id,
            command=("python3", f"/input/{command[0]}", *command[1:]),
            **{"files": hostile_files(self.facts), **fields},
        )  # fmt: skip
        return Attack(self.sandbox.run(spec), spec)


@pytest.fixture(scope="module")
def attackers(engine: ContainerEngine, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attackers]:
    """Return attackers of an installation of their own; what is left of them is removed afterwards."""
    root = tmp_path_factory.mktemp("installation") / "sandboxes"
    sandbox = DockerSandbox(root, engine)
    try:
        yield Attackers(sandbox, root, engine, image)
    finally:
        sandbox.reap({})


@dataclass
class Weak:
    """Starts attackers in containers that lack walls."""

    engine: ContainerEngine
    image: Image
    folder: Path
    network: str
    """A bridge, with another container on it."""
    started: list[Container] = field(default_factory=list)

    def neighbour(self, facts: Mapping[str, Any]) -> str:
        """Start a container that listens at the port of the facts; return its address."""
        container = self.run("probing.py", "--listen", facts=facts, network_mode=self.network)
        container.reload()
        return str(container.attrs["NetworkSettings"]["Networks"][self.network]["IPAddress"])

    def run(
        self, *command: str, facts: Mapping[str, Any], user: str = USER, binds: Iterable[str] = (), **options: Any
    ) -> Container:
        """Start the command in a container with these options of the SDK, and of the walls no others."""
        inputs = self.folder / uuid.uuid4().hex
        inputs.mkdir()
        for name, content in hostile_files(facts).items():
            (inputs / name).write_bytes(content)
        api = self.engine.client.api
        host = api.create_host_config(binds=[f"{inputs}:/input", *binds], tmpfs={"/workspace": "mode=0777"}, **options)
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
        made = api.create_container(
            self.image.id, [f"/input/{command[0]}", *command[1:]], entrypoint=["python3"], user=user,
            labels={"ajet.test": "weak"}, host_config=host,
        )  # fmt: skip
        container = self.engine.client.containers.get(made["Id"])
        self.started.append(container)
        container.put_archive("/usr/bin", _setuid(b"".join(container.get_archive(SU)[0])))
        container.start()
        return container


def _setuid(data: bytes) -> bytes:
    """Return a tar of one program with the right to become root: a base made here has none that has it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as given, tarfile.open(fileobj=made, mode="w") as tar:
        (entry,) = given
        entry.mode = 0o4755
        tar.addfile(entry, given.extractfile(entry))
    return made.getvalue()


@pytest.fixture(scope="module")
def weak(engine: ContainerEngine, image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weak]:
    """Return a way to containers without walls; they are removed afterwards."""
    network = engine.client.networks.create(f"ajet-attacks-{uuid.uuid4().hex[:8]}", driver="bridge")
    found = Weak(engine, image, tmp_path_factory.mktemp("weak"), str(network.name))
    try:
        yield found
    finally:
        for container in found.started:
            container.remove(force=True, v=True)
        network.remove()


@contextlib.contextmanager
def listening(address: str, backlog: int = 128) -> Iterator[socket.socket]:
    """Listen at a Unix address: the kernel connects whoever comes, up to the backlog."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(backlog)
        yield listener


@contextlib.contextmanager
def door(folder: Path, backlog: int = 4) -> Iterator[tuple[socket.socket, dict[str, Any]]]:
    """Listen where port 8000 of a container leads; yield the socket, and the fields of the container's spec."""
    (folder / "exchange").mkdir()
    with listening(str(folder / "exchange" / "server.sock"), backlog) as listener:
        (folder / "exchange" / "server.sock").chmod(0o666)
        yield listener, {"exchange": folder / "exchange", "ports": {8000: "server.sock"}}


def own_addresses() -> list[str]:
    """Return the addresses of this machine, and the usual names of them inside of containers."""
    found = [each.address for addresses in psutil.net_if_addrs().values() for each in addresses
             if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address]  # fmt: skip
    return ["172.17.0.1", "host.docker.internal", *found]
