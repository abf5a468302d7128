"""`ajet swarm list` and `ajet swarm token`: the servers of this installation, and keys for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from research.cli.output import console, print_json, warn
from research.files import read_json
from research.installation.home import Home
from research.installation.server_process import SwarmProcess
from research.servers.names import servers
from research.servers.running import NoSwarm, own_name, running
from swarm.client import SwarmClient
from swarm.errors import SwarmError, UnknownAnswer

PATIENCE_S = 3.0
"""A server that does not say within so long what it does is listed as silent."""
UNNAMED = "-"


class KeyRole(StrEnum):
    """What a key allows: everything; playing; looking."""

    ADMIN = "admin"
    CLIENT = "client"
    VIEWER = "viewer"


def list_servers(json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """List the swarm servers of this installation.

    Examples:

        ajet swarm list

        ajet swarm list --json
    """
    rows = [_row(name, process) for name, process in servers(Home.locate())]
    if json:
        print_json(rows)
    elif not rows:
        console().print("no swarm server was ever started here; ajet swarm start --environment guess")
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("name", "address", "pid", "state", "step"):
            table.add_column(column)
        for row in rows:
            step = "-" if row["steps"] is None else f"{row['step']} of {row['steps']}"
            table.add_row(row["name"] or UNNAMED, row["url"] or UNNAMED, str(row["pid"] or UNNAMED), row["state"], step)
        console().print(table)


def token(
    role: Annotated[KeyRole, typer.Option(help="What the key allows.")] = KeyRole.CLIENT,
    name: Annotated[
        str | None,
        typer.Option("--server", "--name", help="Name of the server; else that of AJET_SERVER, else the one without."),
    ] = None,
) -> None:
    """Print a key of a server that runs here, and nothing else: export AJET_TOKEN=$(ajet swarm token).

    Examples:

        export AJET_TOKEN=$(ajet swarm token)

        ajet swarm token --role admin --server speaker
    """
    process = running(own_name(name))
    keys = read_json(process.folder / "tokens.json") or {}
    if role not in keys:
        raise NoSwarm(f"expected a key for the role {role} in {process.folder / 'tokens.json'}; found none")
    if sys.stdout.isatty():
        warn("a key is shown on this terminal: who reads it may use the server")
    sys.stdout.write(f"{keys[role]}\n")


def _row(name: str | None, process: SwarmProcess | None) -> Mapping[str, Any]:
    about: dict[str, Any] = {"name": name, "url": None, "pid": None, "state": "down", "step": None, "steps": None}
    if process is None:
        return about
    about |= {"url": process.url, "pid": process.pid}
    try:
        with SwarmClient(process.url, process.admin_token) as client:
            status = client.status(within_s=PATIENCE_S)
    except UnknownAnswer:
        return about | {"state": "not understood"}
    except SwarmError:
        return about | {"state": "silent"}
    return about | {"state": str(status.state), "step": status.step, "steps": status.steps}
