"""The swarm server of this installation, as the commands of `ajet swarm` find it."""

from __future__ import annotations

from pathlib import Path

from research.errors import ResearchError
from research.installation.home import Home
from research.installation.server_process import SwarmProcess, find_swarm


class NoSwarm(ResearchError):
    """No swarm server runs in this installation."""


def swarm_folder(home: Home) -> Path:
    """Return where an installation's own swarm server keeps its files."""
    return home.path / "swarm"


def running() -> SwarmProcess:
    """Return the running server; NoSwarm says how to start one."""
    found = find_swarm(swarm_folder(Home.locate()))
    if found is None:
        raise NoSwarm("no swarm server runs here; start one with `ajet swarm start --environment guess`")
    return found
