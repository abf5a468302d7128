"""Names of an installation's swarm servers, and where each keeps its files.

The one without a name lies in `<home>/swarm/`, as every version wrote it; one called NAME in `<home>/swarms/NAME/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from research.errors import ResearchError
from research.installation.home import Home
from research.installation.server_process import SwarmProcess, find_swarm
from swarm.client.home import folder_of

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")


class BadServer(ResearchError):
    """A swarm server that is named or addressed in a way that means none."""


def checked(name: str) -> str:
    """Return a server's name; raise BadServer for one that could not be a folder's."""
    if not _NAME.fullmatch(name):
        raise BadServer(
            f"expected the name of a server of at most 64 small letters, digits and inner hyphens, such as `speaker`; "
            f"found {name[:80]!r}"
        )
    return name


def servers(home: Home) -> Iterator[tuple[str | None, SwarmProcess | None]]:
    """Yield the installation's servers by name, None for the one without: its process, or None where it is down."""
    if (own := folder_of(home.path)).is_dir():
        yield None, find_swarm(own)
    for name in named(home):
        yield name, find_swarm(folder_of(home.path, name))


def named(home: Home) -> list[str]:
    """Return the names of servers that were ever started here, in order."""
    folder = home.path / "swarms"
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
