"""Where the container engine is: in DOCKER_HOST, else in the docker context in use, else at the local socket.

That order, the contexts' files and DOCKER_CERT_PATH are those of docker's own client, so that whoever can use `docker`
need not configure anything. Two things docker allows are refused: TCP without verified TLS to another machine (whoever
answers there could give itself out for the engine, and whoever listens can become root on it), and a password in an
address.

What it does not know: whether anything answers there (`sandboxes.docker.engine`).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sandboxes.spec import SandboxError

DEFAULT_HOST = "unix:///var/run/docker.sock"
HOW_TO_GET_DOCKER = (
    "install Docker Engine (Debian: apt-get install docker.io) and see that `docker version` shows a server, "
    "or name one in DOCKER_HOST"
)
_TLS_FILES = ("ca.pem", "cert.pem", "key.pem")


class NoEngine(SandboxError):
    """No usable container engine answers; the message says what was found and how to get one."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is: a URL (unix, tcp or ssh), and the folder of the three TLS files where TLS is spoken."""

    url: str
    certificates: Path | None = None
    source: str = "DOCKER_HOST"
    """What named it."""

    @property
    def parts(self) -> SplitResult:
        """The URL's parts."""
        return urlsplit(self.url)

    @property
    def shown(self) -> str:
        """It for people: no user, no password."""
        return without_user(self.url)


def without_user(url: str) -> str:
    """Return `url` without what stands before an @."""
    scheme, mark, rest = url.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def find(environ: Mapping[str, str]) -> Address:
    """Return the address of the engine that `environ` names; raise NoEngine when it names none that may be used."""
    if host := environ.get("DOCKER_HOST"):
        return _checked(Address(host, _certificates(environ, host)))
    name = environ.get("DOCKER_CONTEXT") or _current_context(environ)
    if name in ("", "default"):
        return Address(DEFAULT_HOST, None, "docker's default")
    return _checked(_context(environ, name))


def _certificates(environ: Mapping[str, str], host: str) -> Path | None:
    """Return the folder of TLS files when DOCKER_TLS_VERIFY or DOCKER_CERT_PATH asks for TLS over TCP."""
    named = environ.get("DOCKER_CERT_PATH")
    if not host.startswith("tcp://") or not (named or environ.get("DOCKER_TLS_VERIFY")):
        return None
    return Path(named) if named else _configuration(environ)


def _configuration(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or Path.home()) / ".docker")


def _current_context(environ: Mapping[str, str]) -> str:
    path = _configuration(environ) / "config.json"
    try:
        found = _json(path)
    except FileNotFoundError:
        return ""
    return str(found.get("currentContext") or "")


def _context(environ: Mapping[str, str], name: str) -> Address:
    """Read a docker context from the files that docker's client keeps."""
    contexts, key = _configuration(environ) / "contexts", sha256(name.encode()).hexdigest()
    try:
        endpoint = _json(contexts / "meta" / key / "meta.json")["Endpoints"]["docker"]
        host, unverified = str(endpoint["Host"]), bool(endpoint.get("SkipTLSVerify"))
    except FileNotFoundError as error:
        raise NoEngine(
            f"expected the docker context {name!r} in {contexts}; found none; `docker context ls` shows them"
        ) from error
    except (KeyError, TypeError) as error:
        raise NoEngine(
            f"expected an engine's address in the docker context {name!r}; found no {error} there; make it anew with "
            f"`docker context create`"
        ) from error
    files = contexts / "tls" / key / "docker"
    if not (host.startswith("tcp://") and files.is_dir()):
        return Address(host, None, f"docker context {name}")
    if unverified:
        raise NoEngine(
            f"expected verified TLS in the docker context {name!r}; found SkipTLSVerify, with which anybody could "
            f"pass for the engine; make it anew with its ca file"
        )
    return Address(host, files, f"docker context {name}")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError:
        raise
    except ValueError as error:
        raise NoEngine(f"expected JSON in {path}; found something else ({error}); repair it or remove it") from error
    return dict(found) if isinstance(found, dict) else {}


def _checked(address: Address) -> Address:
    """Return `address` if it may be used."""
    try:
        parts, port = address.parts, address.parts.port
    except ValueError as error:
        raise NoEngine(f"expected an engine's address in {address.source}; found an unreadable one ({error})") from None
    if parts.password is not None:
        raise NoEngine(
            f"expected no password in {address.source}, which lands in logs; found one for {address.shown}; use an ssh "
            f"key or TLS files (DOCKER_CERT_PATH)"
        )
    if parts.scheme not in ("unix", "tcp", "ssh"):
        raise NoEngine(
            f"expected unix://, tcp:// or ssh:// in {address.source}; found {address.shown!r}; {HOW_TO_GET_DOCKER}"
        )
    if parts.scheme == "ssh":
        _check_ssh(address)
    if parts.scheme == "tcp":
        _check_tcp(address, parts.hostname or "", port)
    return address


def _check_ssh(address: Address) -> None:
    parts = address.parts
    if (
        not parts.hostname
        or parts.path not in ("", "/")
        or any(x.startswith("-") for x in (parts.hostname, parts.username or ""))
    ):
        raise NoEngine(f"expected ssh://USER@MACHINE:PORT in {address.source}; found {address.shown!r}")


def _check_tcp(address: Address, host: str, port: int | None) -> None:
    if not host or port is None:
        raise NoEngine(f"expected tcp://MACHINE:PORT in {address.source}; found {address.shown!r}")
    if address.certificates is None:
        if not _is_loopback(host):
            raise NoEngine(
                f"expected TLS to the engine at {address.shown}; found plain TCP, by which anybody on the way "
                f"becomes root there; use ssh://, or set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH"
            )
        return
    missing = [name for name in _TLS_FILES if not (address.certificates / name).is_file()]
    if missing:
        raise NoEngine(
            f"expected {', '.join(_TLS_FILES)} in {address.certificates}, for TLS to {address.shown}; missing: "
            f"{', '.join(missing)}; name their folder in DOCKER_CERT_PATH"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
