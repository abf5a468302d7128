"""The swarm server that a command means: one of this installation by its name, or any by its address."""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from research.errors import ResearchError
from research.installation.home import Home
from research.installation.server_process import SwarmProcess, find_swarm
from research.servers.names import BadServer, checked, named, servers
from swarm.client.home import folder_of

HOW_TO_START = "start one with `ajet swarm start --environment guess`"
SERVER, TOKEN = "AJET_SERVER", "AJET_TOKEN"
UserRole = Literal["admin", "client"]
"""What commands use a server as."""
_LIKE = "http://127.0.0.1:8700"


class NoSwarm(ResearchError):
    """No such swarm server runs in this installation."""


@dataclass(frozen=True, slots=True)
class ReachedServer:
    """A server with a key for it."""

    url: str
    token: str = field(repr=False)
    process: SwarmProcess | None = None
    """Its process, where it is one of this installation."""


def running(name: str | None = None, home: Home | None = None) -> SwarmProcess:
    """Return a server of this installation that runs; NoSwarm says how to start it."""
    home = home or Home.locate()
    found = find_swarm(folder_of(home.path, name))
    if found is not None:
        return found
    if name is None:
        others = f"; {', '.join(running_names(home))} run here: --server NAME" if running_names(home) else ""
        raise NoSwarm(f"no swarm server runs here; {HOW_TO_START}, or name one with --server{others}")
    known = f"; those started here were {', '.join(named(home))}" if named(home) else ""
    raise NoSwarm(f"no swarm server called {name} runs here; start it with `ajet swarm start --name {name}`{known}")


def own_name(asked: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of a server of this installation that is asked for, else by AJET_SERVER; None: the unnamed one.

    Raises BadServer for an address: what is asked of it lies on its own machine.
    """
    name = asked if asked is not None else environ.get(SERVER, "").strip() or None
    if name is not None and _is_address(name):
        raise BadServer(
            f"expected the name of a server that was started here, found the address {name!r}: its files lie on its "
            "own machine; run this command there"
        )
    return None if name is None else checked(name)


def starting(
    name: str | None, server: str | None, environ: Mapping[str, str] = os.environ
) -> tuple[str | None, str | None]:
    """Return the name of the server that is to be started here, and the address of one elsewhere that takes its place.

    Where neither is said AJET_SERVER is heeded, as by all commands that look at what was started.
    """
    asked = environ.get(SERVER, "").strip()
    if name is not None or server is not None or not asked:
        return name, server
    return (None, asked) if _is_address(asked) else (asked, None)


def running_names(home: Home) -> list[str]:
    """Return the names of the named servers that run here."""
    return [name for name, process in servers(home) if name is not None and process is not None]


def reached(
    asked: str | None, *, role: UserRole = "admin", environ: Mapping[str, str] = os.environ, home: Home | None = None
) -> ReachedServer:
    """Return the server that is asked for by name or address, else that of AJET_SERVER, else this installation's own.

    The key of one that runs here is read from its folder; that of another from AJET_TOKEN. Raises BadServer for what
    is neither name nor address and for a key that is missing, and NoSwarm for a name of which none runs.
    """
    place = home or Home.locate()
    known = asked if asked is not None else environ.get(SERVER, "").strip() or None
    if known is not None and _is_address(known):
        return _addressed(known.rstrip("/"), role, environ, place)
    process = running(None if known is None else checked(known), place)
    return ReachedServer(process.url, _key(process, role), process)


def _is_address(server: str) -> bool:
    return any(mark in server for mark in ":/.")


def _addressed(url: str, role: UserRole, environ: Mapping[str, str], home: Home) -> ReachedServer:
    _check_address(url)
    for _, process in servers(home):
        if process is not None and process.url == url:
            return ReachedServer(url, _key(process, role), process)
    token = environ.get(TOKEN, "").strip()
    if not token:
        raise BadServer(
            f"expected the {role} token of {url} in {TOKEN}, found none; `ajet swarm token --role {role}` prints it "
            "where the server runs"
        )
    if not (token.isascii() and token.isprintable()):
        raise BadServer(f"expected a token in {TOKEN}, as `ajet swarm token` prints it; found other characters")
    if role == "client" and _role_of(token) != "client":
        raise BadServer(
            f"expected a client's token of {url} in {TOKEN}, as `ajet swarm token` prints it where the server runs; "
            "found another: an admin's opens more than is needed here, and would stand behind whatever code plays"
        )
    return ReachedServer(url, token)


def _role_of(token: str) -> str | None:
    """Return the role that a signed token says it has; None for an admin's of somebody's own choice."""
    try:
        claims = json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))
        return str(claims["role"])
    except (ValueError, LookupError, TypeError):
        return None


def _check_address(url: str) -> None:
    """Raise BadServer for what is no server's address; what it says in place of a host's name may be a secret."""
    try:
        parts = urlsplit(url)
        said = parts.port != 0 and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        raise BadServer(f"expected an address like {_LIKE} as the server, found {url[:80]!r}") from None
    if "@" in parts.netloc:
        raise BadServer(f"expected an address like {_LIKE}, with the key in {TOKEN}; found a name or password in it")
    if not said or parts.query or parts.fragment:
        raise BadServer(f"expected an address like {_LIKE} as the server, found {url[:80]!r}")


def _key(process: SwarmProcess, role: UserRole) -> str:
    return process.admin_token if role == "admin" else process.client_token
