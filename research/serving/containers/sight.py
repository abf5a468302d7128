"""What a process sees of what a study needs: compared between a container and this machine before a pool serves.

Run as a module it prints that of its own process, as JSON on one line; whatever is in its way ends it with the reason.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from research.errors import ResearchError
from research.installation.home import Home
from studies import EventLog, StudiesError
from studies.log.leases import Holder

HEAVY = ("torch", "transformers")
"""Packages that need the most of an operating system; looked for where they are installed."""
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is to be the same in a container, by what a person calls it."""

    python: str
    ajet: str
    host: str
    processes: str
    """The boot and the namespace of process ids, by which leases tell who lives."""
    folder: str

    @classmethod
    def here(cls, home: Path) -> Sight:
        """Return what this process sees."""
        me = Holder.here(home)
        return cls(sys.version, str(Path(__file__)), me.host, me.boot, str(Path.cwd()))

    def lacks(self, other: Sight) -> str | None:
        """Return in words what differs first in another one; None where nothing does."""
        pairs = zip(asdict(self).items(), asdict(other).values(), strict=True)
        return next((f"{name} {found!r} instead of {own!r}" for (name, own), found in pairs if own != found), None)


def use(api: str) -> Home:
    """Use once all that a study needs: the folder, the event log, Prefect's server, the large packages."""
    home = Home.locate().prepare()
    with closing(EventLog(home.database)) as log:
        log.heads()
    with urllib.request.urlopen(f"{api}/health", timeout=_ANSWER_S):
        pass
    for name in HEAVY:
        if find_spec(name) is not None:
            import_module(name)
    return home


def main(api: str) -> int:
    """Print what this process sees, or why it sees less than a study needs; return the exit code."""
    try:
        home = use(api)
    except (ResearchError, StudiesError, OSError, ImportError) as error:
        sys.stdout.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(Sight.here(home.path))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
