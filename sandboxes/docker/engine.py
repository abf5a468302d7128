"""The container engine: found as docker's own client finds it, asked, or refused.

It is in DOCKER_HOST, else the docker context in use, else the local socket. Promised is Docker Engine 20.10 or newer
with Linux containers, at a Unix socket of this machine, since a folder with sockets is bound into containers. It is
judged by what it says it can do, once, when we connect.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sandboxes.spec import SandboxError

if TYPE_CHECKING:
    import docker

DEFAULT_HOST = "unix:///var/run/docker.sock"
HOW_TO_GET_DOCKER = (
    "install Docker Engine (Debian: apt-get install docker.io) and see that `docker version` shows a server, "
    "or name one in DOCKER_HOST"
)
ANSWER_TIMEOUT_S = 10.0
"""For the first answer: longer than that means that no engine is there."""
CALL_TIMEOUT_S = 120.0
"""For every later one: a busy engine may take long to start its fiftieth container."""
OLDEST_API = (1, 41)
"""Docker Engine 20.10; what was tested."""


class EngineNotFound(SandboxError):
    """No usable container engine answers; the message says what was found and how to get one."""


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """A container engine that answers."""

    client: "docker.DockerClient"
    host: str
    """Its socket, `unix://PATH`."""
    version: str
    lacks: tuple[str, ...] = ()
    """What the isolation needs and this engine does not do, with what to do; untrusted code must not run on it then."""
    gpus: bool = False


def connect(environ: Mapping[str, str]) -> ContainerEngine:
    """Return the engine that `environ` names (DOCKER_HOST, DOCKER_CONTEXT, ...), else the local one; raise NoEngine."""
    import docker

    url, source = find(environ)
    try:
        with docker.APIClient(url, version="1.41", timeout=int(ANSWER_TIMEOUT_S)) as first:
            version = dict(first.version(api_version=False))
        client = docker.DockerClient(url, version=str(version["ApiVersion"]), timeout=int(CALL_TIMEOUT_S))
        facts = client.info()
    except Exception as error:  # the SDK lets errors of three libraries through
        raise EngineNotFound(_explain(url, source, error)) from error
    components = [str(part.get("Name")) for part in version.get("Components") or ()]
    if "Podman Engine" in components:
        raise EngineNotFound(
            f"expected Docker Engine at {url}; found Podman {version['Version']}, which cannot give a RAM file "
            f"system an owner, as the isolation needs; {HOW_TO_GET_DOCKER}"
        )
    if version.get("Os") != "linux":
        raise EngineNotFound(
            f"expected an engine of Linux containers at {url}; found one of {version.get('Os')} containers; "
            f"switch it to Linux containers"
        )
    if tuple(int(part) for part in str(version["ApiVersion"]).split(".")) < OLDEST_API:
        raise EngineNotFound(
            f"expected Docker Engine 20.10 or newer at {url}; found {version['Version']} (API "
            f"{version['ApiVersion']}); upgrade it"
        )
    same_kernel = facts.get("KernelVersion") == os.uname().release
    desktop = "Docker Desktop" in str(facts.get("OperatingSystem"))  # with WSL, which may have our kernel
    selinux = any(option.startswith("name=selinux") for option in facts.get("SecurityOptions") or ())
    if not same_kernel or desktop or selinux or not _sees_our_files(client):
        raise EngineNotFound(
            f"expected an engine that shares this machine's kernel and files at {url}; found one of another machine, "
            f"of a virtual one (Docker Desktop) or with SELinux, whose containers reach no socket of ours; run Docker "
            f"Engine on this machine itself, without selinux-enabled"
        )
    devices = (str(device.get("ID")) for device in facts.get("DiscoveredDevices") or ())
    gpus = "nvidia" in (facts.get("Runtimes") or {}) or any(name.startswith("nvidia.com/gpu") for name in devices)
    return ContainerEngine(client, url, str(version["Version"]), find_lacks(facts), gpus)


def find(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the Unix socket that `environ` names, as a URL, and what named it; EngineNotFound for what is none."""
    configuration = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or Path.home()) / ".docker")
    host, name = environ.get("DOCKER_HOST"), environ.get("DOCKER_CONTEXT")
    if not (host or name):
        name = str(_json(configuration / "config.json").get("currentContext") or "")
    if host:
        url, source = host, "DOCKER_HOST"
    elif not name or name == "default":
        url, source = DEFAULT_HOST, "docker's default"
    else:
        meta = configuration / "contexts" / "meta" / sha256(name.encode()).hexdigest() / "meta.json"
        try:
            url, source = str(_json(meta)["Endpoints"]["docker"]["Host"]), f"docker context {name}"
        except (KeyError, TypeError) as error:
            raise EngineNotFound(
                f"expected an engine's address in the docker context {name!r}, {meta}; found no {error} there; "
                "`docker context ls` shows those that there are"
            ) from error
    if not url.startswith("unix://"):
        scheme, mark, rest = url.rpartition("://")  # no user and no password lands in logs
        raise EngineNotFound(
            f"expected a Unix socket of this machine (unix://PATH) in {source}; found "
            f"{scheme}{mark}{rest.rpartition('@')[2]}; name the socket of an engine here: DOCKER_HOST={DEFAULT_HOST}"
        )
    return url, source


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise EngineNotFound(
            f"expected JSON in {path}; found something else ({error}); repair it or remove it"
        ) from error
    return dict(found) if isinstance(found, dict) else {}


def _explain(url: str, source: str, error: Exception) -> str:
    if any(isinstance(cause, PermissionError) for cause in _causes(error)):
        return (
            f"expected an engine that this user may use at {url}; found its socket closed to them; add the user to the "
            f"group `docker` (which makes them root on this machine), or run a rootless engine and name it in "
            f"DOCKER_HOST"
        )
    plain = (cause.strerror for cause in _causes(error) if isinstance(cause, OSError) and cause.strerror)
    return (
        f"expected a Docker Engine at {url} (from {source}); found none that answers ({next(plain, str(error))}); "
        f"{HOW_TO_GET_DOCKER}"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and what it wraps: as cause, as context, or, as requests and urllib3 do, among its arguments."""
    seen: list[BaseException] = [error]
    for known in seen:
        within = (known.__cause__, known.__context__, *known.args)
        seen += [x for x in within if isinstance(x, BaseException) and not any(x is y for y in seen)]
        yield known


def find_lacks(facts: Mapping[str, Any]) -> tuple[str, ...]:
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


def _sees_our_files(client: "docker.DockerClient") -> bool:
    """Ask for a container of no image with a new folder of ours, which the engine looks for first: which is refused?"""
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


class EngineRefusal(SandboxError):
    """The engine answered, and said no."""


class EngineMissing(EngineRefusal):
    """The engine has no such thing."""


@contextmanager
def wrap_errors(engine: ContainerEngine, what: str) -> Iterator[None]:
    """Turn the engine's troubles into SandboxError: no answer, but for EngineRefusal."""
    from docker.errors import APIError, DockerException, NotFound
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except APIError as error:
        answered = EngineMissing if isinstance(error, NotFound) else EngineRefusal
        refusal = answered if error.is_client_error() or error.is_server_error() else SandboxError
        raise refusal(f"{what}: the engine at {engine.host} refused: {_line(error.explanation or error)}") from error
    except (DockerException, RequestException, HTTPError, HTTPException, OSError) as error:
        raise SandboxError(
            f"{what}: expected an answer of the engine at {engine.host}; found none ({_line(error)}). "
            "See that it runs (`docker version`), and try again: nothing was concluded"
        ) from error


def inspect(engine: ContainerEngine, container: str) -> Mapping[str, Any] | None:
    with suppress(EngineMissing), wrap_errors(engine, f"looking at container {container}"):
        return cast(Mapping[str, Any], engine.client.api.inspect_container(container))
    return None


def remove(engine: ContainerEngine, container: str) -> None:
    with suppress(EngineMissing), wrap_errors(engine, f"removing container {container}"):
        engine.client.api.remove_container(container, v=True, force=True)


def _line(error: object) -> str:
    return " ".join(str(error).split())[:500]
