"""Starting a server of this installation the way it was started before: host, store, token file and peers are kept.

`start.json` beside the server's files holds them, for the owner alone, as a store's URL may have a password.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from research.files import read_json
from research.installation.home import Home
from research.installation.server_process import LOOPBACK, STORE, Binding, SwarmProcess, find_swarm, start_swarm
from research.servers.names import BadServer
from swarm.client.home import folder_of

KEPT = "start.json"
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Wish:
    """What options say of a server; None and nothing for what they leave as it was."""

    name: str | None = None
    host: str | None = None
    store: str | None = None
    token_file: Path | None = None
    peers: Sequence[str] = ()
    backend: str | None = None

    @property
    def says_nothing(self) -> bool:
        """Whether a server that runs is what is wished for."""
        return (self.host, self.store, self.token_file, self.backend) == (None,) * 4 and not self.peers


def started(home: Home, wish: Wish, *, port: int, idle: bool) -> tuple[SwarmProcess, bool]:
    """Return the wished server, and whether it ran before; raise BadServer where it runs with other options.

    What is not said is as it was at the last start of the same server.
    """
    folder = folder_of(home.path, wish.name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(folder / "start.lock"):  # two commands at once: the second finds what the first started
        return _started(home, folder, wish, port=port, idle=idle)


def _started(home: Home, folder: Path, wish: Wish, *, port: int, idle: bool) -> tuple[SwarmProcess, bool]:
    known, found = kept(folder), find_swarm(folder)
    wanted = _merged(known, wish)
    if found is not None:
        if not wish.says_nothing and wanted != known:
            stop = "ajet swarm stop" if wish.name is None else f"ajet swarm stop --server {wish.name}"
            raise BadServer(
                f"expected options (and a job's backend) that the server at {found.url} was started with; found "
                f"others; stop it first "
                f"(`{stop}`), and start it with them"
            )
        return found, True
    _require_token(wanted)
    before = path.read_bytes() if (path := folder / KEPT).exists() else None
    if wanted != known:
        _keep(folder, wanted)  # before it is started: whoever kills this command in between leaves no server unknown
    try:
        return start_swarm(folder, models=home.models, port=port, idle=idle, binding=wanted), False
    except BaseException:  # what does not start is not what the server was started with last
        if before is not None:
            path.write_bytes(before)
        else:
            path.unlink(missing_ok=True)
        raise


def _merged(known: Binding, wish: Wish) -> Binding:
    return Binding(
        host=wish.host or known.host,
        store=wish.store or os.environ.get(STORE) or known.store,
        token_file=known.token_file if wish.token_file is None else str(wish.token_file.expanduser().absolute()),
        peers=tuple(wish.peers) or known.peers,
        backend=wish.backend or known.backend,
    )


def _require_token(wanted: Binding) -> None:
    if wanted.host not in LOCAL and wanted.token_file is None:
        raise BadServer(
            f"--host {wanted.host} is reached by others: expected --token-file FILE with an admin token of at least 32 "
            "characters that its owner alone can read; found none"
        )


def kept(folder: Path) -> Binding:
    """Return how a server was started last; the default where it never was, or by an earlier version."""
    path = folder / KEPT
    try:
        known = read_json(path)
        if known is None:
            return LOOPBACK
        return Binding(
            known["host"],
            known["store"],
            known["token_file"],
            backend=known.get("backend", "local"),
            peers=tuple(known["peers"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadServer(
            f"expected in {path} how the server was started last; found it broken ({type(error).__name__}); remove it, "
            "and say its --host, --store, --token-file and --peer again"
        ) from None


def _keep(folder: Path, binding: Binding) -> None:
    path, part = folder / KEPT, folder / f"{KEPT}.part"
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    part.write_text(json.dumps(asdict(binding)))
    part.replace(path)
