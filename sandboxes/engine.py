"""The Docker Engine that containers run on: found by DOCKER_HOST as docker's own client finds it, or refused in a line.

An engine is local when it shares this machine's file system, so that a folder of ours can be bound into a container;
any other engine (ssh, TCP, one in a virtual machine) is reached through a tunnel (`sandboxes.tunnel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandboxes.spec import SandboxError

if TYPE_CHECKING:
    import docker

HOW_TO_GET_DOCKER = (
    "install Docker Engine (Debian: apt-get install docker.io) and see that `docker version` shows a server, "
    "or name one in DOCKER_HOST"
)
ANSWER_TIMEOUT_S = 10.0


class NoEngine(SandboxError):
    """No usable container engine answers; the message says what was found and how to get one."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that answers."""

    client: docker.DockerClient
    host: str
    """Its address for people: no user, no password."""
    local: bool
    """Whether it sees this machine's files."""
    version: str


def connect(environ: Mapping[str, str]) -> Engine:
    """Return the engine that `environ` names (DOCKER_HOST, DOCKER_TLS_VERIFY, DOCKER_CERT_PATH), else the local one.

    Raises NoEngine.
    """
    import docker
    from docker.errors import DockerException

    host = environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        client = docker.from_env(environment=dict(environ), timeout=int(ANSWER_TIMEOUT_S))
        version = str(client.version()["Version"])
    except DockerException as error:
        raise NoEngine(
            f"expected a Docker Engine at {host}; found none that answers ({error}); {HOW_TO_GET_DOCKER}"
        ) from error
    return Engine(client, host, host.startswith("unix://"), version)
