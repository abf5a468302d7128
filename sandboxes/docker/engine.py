"""The container engine that sandboxes run on: found as docker's own client finds it, asked what it can do, or refused.

Docker Engine is what is promised (20.10 or newer, with Linux containers); what answers is judged by what it says it
can do, once, when we connect. An engine is local when it shares this machine's file system and kernel, so that a
folder of ours, with sockets in it, can be bound into a container; any other engine (ssh, TCP, one in a virtual machine)
is reached through a tunnel (`sandboxes.docker.tunnel`).

What it does not know: where the engine is (`sandboxes.docker.address`), and what a container is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.docker.address import HOW_TO_GET_DOCKER as HOW_TO_GET_DOCKER
from sandboxes.docker.address import Address, find
from sandboxes.docker.address import NoEngine as NoEngine
from sandboxes.docker.ssh import SshSocket

if TYPE_CHECKING:
    import docker

ANSWER_TIMEOUT_S = 10.0
"""For the first answer: longer than that means that no engine is there."""
CALL_TIMEOUT_S = 120.0
"""For every later one: a busy engine may take long to start its fiftieth container."""
OLDEST_API = (1, 41)
"""Docker Engine 20.10; what was tested."""


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """A container engine that answers."""

    client: docker.DockerClient
    host: str
    """Its address for people: no user, no password."""
    local: bool
    """Whether it sees this machine's files, and a socket in them."""
    version: str
    lacks: tuple[str, ...] = ()
    """What the isolation needs and this engine does not do, with what to do; untrusted code must not run on it then."""
    gpus: bool = False
    """Whether it can hand GPUs to containers."""


def connect(environ: Mapping[str, str]) -> ContainerEngine:
    """Return the engine that `environ` names (DOCKER_HOST, DOCKER_CONTEXT, ...), else the local one; raise NoEngine."""
    address = find(environ)
    ssh = _ssh_socket(address.url, tuple(sorted(environ.items()))) if address.parts.scheme == "ssh" else None
    try:
        found, client = _asked(address, ssh)
        facts = client.info()
    except Exception as error:  # the SDK lets errors of three libraries through
        raise NoEngine(_why(address, error, ssh)) from error
    _refuse_unfit(address, found)
    return ContainerEngine(
        client,
        address.shown,
        _is_local(address, client, facts),
        str(found["Version"]),
        lacks(facts),
        offers_gpus(facts),
    )


@cache
def _ssh_socket(url: str, environ: tuple[tuple[str, str], ...]) -> SshSocket:
    """Return the one ssh of this process to an engine over ssh."""
    return SshSocket(Address(url).parts, dict(environ))


def _asked(address: Address, ssh: SshSocket | None) -> tuple[dict[str, Any], docker.DockerClient]:
    """Return what the engine says of its version, and a client that speaks it.

    The environment's proxies, .netrc and CA bundles are for the web, not for an engine: requests would let a CA bundle
    of the environment stand in for the engine's own.
    """
    import docker
    from docker.tls import TLSConfig

    folder, tls = address.certificates, None
    if folder is not None:
        ends = (str(folder / "cert.pem"), str(folder / "key.pem"))
        tls = TLSConfig(client_cert=ends, ca_cert=str(folder / "ca.pem"), verify=True)
    url = address.url if ssh is None else f"unix://{ssh.socket}"
    first = docker.APIClient(url, version="1.41", timeout=int(ANSWER_TIMEOUT_S), tls=tls or False)
    first.trust_env = False
    with first:
        found = dict(first.version(api_version=False))
    client = docker.DockerClient(url, version=str(found["ApiVersion"]), timeout=int(CALL_TIMEOUT_S), tls=tls or False)
    client.api.trust_env = False
    return found, client


def _why(address: Address, error: Exception, ssh: SshSocket | None) -> str:
    """Return the line that says why no engine was found."""
    if any(isinstance(cause, PermissionError) for cause in _causes(error)):
        return (
            f"expected an engine that this user may use at {address.shown}; found its socket closed to them; add the "
            f"user to the group `docker` (which makes them root on this machine), or run a rootless engine and name it "
            f"in DOCKER_HOST"
        )
    plain = (cause.strerror for cause in _causes(error) if isinstance(cause, OSError) and cause.strerror)
    words = (None if ssh is None else ssh.complaint()) or next(plain, str(error))
    if user := address.parts.username:
        words = words.replace(f"{user}@", "").replace(user, "USER")
    return (
        f"expected a Docker Engine at {address.shown} (from {address.source}); found none that answers ({words}); "
        f"{HOW_TO_GET_DOCKER}"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and what it wraps: as cause, as context, or, as requests and urllib3 do, among its arguments."""
    seen: list[BaseException] = [error]
    for known in seen:
        within = (known.__cause__, known.__context__, *known.args)
        seen += [x for x in within if isinstance(x, BaseException) and not any(x is y for y in seen)]
        yield known


def _refuse_unfit(address: Address, found: Mapping[str, Any]) -> None:
    components = [str(part.get("Name")) for part in found.get("Components") or ()]
    if "Podman Engine" in components:
        raise NoEngine(
            f"expected Docker Engine at {address.shown}; found Podman {found['Version']}, which cannot give a RAM file "
            f"system an owner, as the isolation needs; {HOW_TO_GET_DOCKER}"
        )
    if found.get("Os") != "linux":
        raise NoEngine(
            f"expected an engine of Linux containers at {address.shown}; found one of {found.get('Os')} containers; "
            f"switch it to Linux containers"
        )
    if tuple(int(part) for part in str(found["ApiVersion"]).split(".")) < OLDEST_API:
        raise NoEngine(
            f"expected Docker Engine 20.10 or newer at {address.shown}; found {found['Version']} (API "
            f"{found['ApiVersion']}); upgrade it"
        )


def lacks(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the isolation needs and the engine that says `facts` of itself (`docker info`) does not do."""
    cgroups = "let the engine limit it (rootless: delegate the controllers to the user; else see `docker info`)"
    needs = {
        "MemoryLimit": f"a limit of memory: {cgroups}",
        "SwapLimit": "a limit of swap: boot with swapaccount=1, or with cgroup v2",
        "PidsLimit": f"a limit of processes: {cgroups}",
        "CpuCfsQuota": f"a limit of CPU time: {cgroups}",
    }
    missing = [line for fact, line in needs.items() if not facts.get(fact)]
    filters = [x for x in facts.get("SecurityOptions") or () if x.startswith("name=seccomp")]
    if not filters or any("profile=unconfined" in x for x in filters):
        missing.append("a filter of system calls: start the engine with seccomp and a profile other than unconfined")
    return tuple(missing)


def offers_gpus(facts: Mapping[str, Any]) -> bool:
    """Return whether an engine that says `facts` of itself hands NVIDIA GPUs to containers."""
    named = [str(device.get("ID")) for device in facts.get("DiscoveredDevices") or ()]
    return "nvidia" in (facts.get("Runtimes") or {}) or any(name.startswith("nvidia.com/gpu") for name in named)


def _is_local(address: Address, client: docker.DockerClient, facts: Mapping[str, Any]) -> bool:
    """Return whether a socket in a folder of ours can be reached from a container of this engine.

    That it has a socket here says little: it may be forwarded from another machine, or mounted into the container we
    run in.
    """
    return address.parts.scheme == "unix" and shares_this_kernel(facts) and _sees_our_files(client)


def shares_this_kernel(facts: Mapping[str, Any]) -> bool:
    """Return whether an engine that says `facts` of itself is on this machine, and lets containers use our sockets.

    Desktop's virtual machine may share our kernel (WSL), but passes no sockets on. SELinux keeps containers from the
    sockets of processes outside.
    """
    if facts.get("KernelVersion") != os.uname().release or "Docker Desktop" in str(facts.get("OperatingSystem")):
        return False
    return not any(option.startswith("name=selinux") for option in facts.get("SecurityOptions") or ())


def _sees_our_files(client: docker.DockerClient) -> bool:
    """Ask for a container with a new folder of ours in it, of an image that is not there: which of both is refused?

    The engine looks for the folder first. Nothing is made.
    """
    from docker.errors import APIError, ImageNotFound
    from docker.types import Mount

    with tempfile.TemporaryDirectory(prefix="ajet-probe-") as folder:
        mounts = [Mount("/probe", folder, type="bind", read_only=True)]
        name = f"ajet-no-such-image:{Path(folder).name.lower().replace('_', '-')}"
        try:
            client.api.create_container(name, host_config=client.api.create_host_config(mounts=mounts))
        except ImageNotFound:
            return True
        except APIError as error:
            if "bind source path does not exist" in str(error):
                return False
            raise
    return False
