"""A second engine on this machine, with data of its own, reached as one on another machine: over TLS, or over ssh."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandboxes.docker.engine import ContainerEngine
from sandboxes.images import Image

LEFT_OUT = ("var/", "usr/share/", "usr/lib/python3/", "usr/lib/apt/", "usr/bin/perl", "usr/sbin/")
"""Most of an image; no client needs any of it."""
STARTS_S = 60.0


@dataclass(frozen=True, slots=True)
class FarEngine:
    """Its folder of TLS files, its TCP port, and its own socket, which only ssh leads to."""

    certificates: Path
    port: int
    socket: Path

    @property
    def environ(self) -> dict[str, str]:
        """What names it, over TLS."""
        address = f"tcp://127.0.0.1:{self.port}"
        return {"DOCKER_HOST": address, "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(self.certificates)}


def missing(*programs: str) -> str | None:
    """Return why such an engine cannot be started here, if so."""
    lacking = [name for name in programs if _program(name) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    return None if os.geteuid() == 0 else "only root can start an engine"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextmanager
def far_engine(folder: Path) -> Iterator[FarEngine]:
    """Start the engine; end it, and what it started, afterwards."""
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    certify(certificates)
    far = FarEngine(certificates, _free_port(), folder / "docker.sock")
    command = [
        "dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid",
        "--bridge=none", "--iptables=false", "--ip6tables=false", "-H", f"unix://{far.socket}", "-H",
        f"tcp://127.0.0.1:{far.port}", "--tlsverify", "--tlscacert", certificates / "ca.pem", "--tlscert",
        certificates / "server.pem", "--tlskey", certificates / "server-key.pem",
    ]  # fmt: skip
    with _running([str(part) for part in command], folder / "log", lambda: _answers(far.socket)):
        yield far


@contextmanager
def far_ssh(folder: Path, engine: Path) -> Iterator[dict[str, str]]:
    """Start an ssh server whose docker speaks to the engine at a socket; yield what names that."""
    folder.mkdir()
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = _free_port()
    known = f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}"
    (folder / "known").write_text(known)
    (folder / "config").write_text(f"IdentityFile {folder}/key\nUserKnownHostsFile {folder}/known\n")
    (folder / "server").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/key.pub\n"
        f"StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nSetEnv DOCKER_HOST=unix://{engine}\n"
    )
    (folder / "bin").mkdir()
    program = folder / "bin" / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    program.chmod(0o755)
    path = f"{folder}/bin:{os.environ['PATH']}"
    command = [str(_program("sshd")), "-D", "-e", "-f", str(folder / "server")]
    with _running(command, folder / "log", lambda: socket.create_connection(("127.0.0.1", port), 1).close()):
        yield {**os.environ, "PATH": path, "DOCKER_HOST": f"ssh://root@127.0.0.1:{port}"}


@contextmanager
def _running(command: list[str], log: Path, ask: Callable[[], None]) -> Iterator[None]:
    """Run a server, ready once `ask` raises no OSError."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + STARTS_S
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
            try:
                ask()
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _answers(path: Path) -> None:
    """Ask an engine whether it is there."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(path))
        sock.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        if b"200 OK" not in sock.recv(100):
            raise ConnectionError("not ready")


def copied(image: Image, source: ContainerEngine, target: ContainerEngine) -> Image:
    """Bring a client image into another engine, without what no client needs: faster than to save and load it."""
    config = source.client.api.inspect_image(image.id)["Config"]
    changes = [f"LABEL {key}={json.dumps(value)}" for key, value in config["Labels"].items()]
    changes += [f"ENV {setting}" for setting in config["Env"]]
    with tempfile.NamedTemporaryFile(suffix=".tar") as small:
        with tempfile.TemporaryFile() as whole:
            _export(image, source, whole)
            _write_needed(whole, small)
        target.client.api.import_image(small.name, repository="ajet-client", tag="far", changes=changes)
    found = target.client.images.get("ajet-client:far")
    return Image(str(found.id), "ajet-client:far", image.base)


def _export(image: Image, source: ContainerEngine, to: IO[bytes]) -> None:
    container = source.client.containers.create(image.id, entrypoint=["/nothing"], network_mode="none")
    try:
        for chunk in container.export():
            to.write(chunk)
    finally:
        container.remove(v=True)
    to.seek(0)


def _write_needed(whole: IO[bytes], to: IO[bytes]) -> None:
    with tarfile.open(fileobj=whole) as read, tarfile.open(fileobj=to, mode="w") as written:
        for member in read:
            if not member.name.startswith(LEFT_OUT):
                written.addfile(member, read.extractfile(member) if member.isreg() else None)
    to.flush()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def certify(folder: Path) -> None:
    """Make an authority of two days, and its certificates of an engine and of a client."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=ajet tests")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name, key_file in (("server", "server-key.pem"), ("cert", "key.pem")):
        openssl("req", *key, "-keyout", key_file, "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days",
            "2", "-extfile", "extensions", "-out", f"{name}.pem",
        )  # fmt: skip
