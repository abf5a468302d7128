"""`ajet swarm top`: a server as it trains, drawn anew each second."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live

from research.cli.output import console, print_json
from research.cli.swarm.watching.frame import TopFrame, Watcher
from research.cli.swarm.watching.keys import pressed, unbuffered
from research.cli.swarm.watching.screen import screen
from research.servers.option import Server
from research.servers.running import reached
from swarm.client import SwarmClient

EVERY_S = 1.0
"""Seconds between two frames."""
PIPED_WIDTH = 80
"""Columns of a frame that goes to no terminal."""


def top(
    server: Server = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The data of one frame, machine-readable.")] = False,
) -> None:
    """Watch the swarm server train, live: what its step waits for, streams, clients, curves, drops.

    `q` or Ctrl-C ends it; the server goes on. Where the output is no terminal one frame is printed.

    Examples:

        ajet swarm top

        ajet swarm top --once

        ajet swarm top --server http://10.0.0.7:8700

        ajet swarm top --json
    """
    at = reached(server)
    with SwarmClient(at.url, at.token) as client:
        watcher = Watcher(at.url, client)
        if json:
            print_json(watcher.look().to_json())
        elif once or not console().is_terminal:
            console().print(_drawn(watcher.look()), no_wrap=True)
        else:
            _live(watcher)


def _live(watcher: Watcher) -> None:
    first = watcher.look()  # what is wrong is told on the screen that stays
    try:
        with unbuffered(), Live(_drawn(first), console=console(), screen=True, auto_refresh=False) as live:
            while not pressed("q", EVERY_S):
                live.update(_drawn(watcher.look()), refresh=True)
    except KeyboardInterrupt:
        return


def _drawn(frame: TopFrame) -> Group:
    out = console()
    width = out.width if out.is_terminal else PIPED_WIDTH
    return Group(*screen(frame, width, unicode=out.encoding.startswith("utf")))
