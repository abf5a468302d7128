"""The swarm server that an agent is to play on: named, or the one that runs in this installation."""

from __future__ import annotations

from collections.abc import Mapping

from research.agent_order import BadOption, Server
from research.files import read_json
from research.home import Home
from research.swarm_process import SwarmProcessError, find_swarm
from swarm.client import SwarmClient
from swarm.job import Job

HOW_TO_START = "start one with `ajet swarm start --environment guess`"


def find_server(asked: str | None, environ: Mapping[str, str], home: Home) -> Server:
    """Return the server asked for, else that of AJET_SERVER, else this installation's own. Raises ResearchError.

    Another server's client token is read from AJET_TOKEN; the own one's from its folder.
    """
    own = find_swarm(home.path / "swarm")
    url = (asked or environ.get("AJET_SERVER") or (own.url if own else "")).rstrip("/")
    if not url:
        raise SwarmProcessError(f"no swarm server runs here; {HOW_TO_START}, or name one with --server")
    if not url.startswith(("http://", "https://")):
        raise BadOption(f"expected an address like http://127.0.0.1:8700 as the server, found {url!r}")
    if own is not None and url == own.url:
        return Server(url, str((read_json(own.folder / "tokens.json") or {})["client"]))
    token = environ.get("AJET_TOKEN", "").strip()
    if not token:
        raise BadOption(f"expected the client token of {url} in AJET_TOKEN, found none; see tokens.json in its folder")
    if not (token.isascii() and token.isprintable()):
        raise BadOption(
            "expected a token in AJET_TOKEN, as tokens.json in the server's folder has it; found other characters"
        )
    return Server(url, token)


def check_ready(server: Server, *, train: bool) -> Job:
    """Return the server's job; raise BadOption if it has none, or none that can still be trained."""
    with SwarmClient(server.url, server.token, owner="ajet client run") as client:
        status, job = client.status(), client.job()
    if job is None or status.group_size is None:
        raise BadOption(f"expected a job on the server at {server.url}, found none; {HOW_TO_START}")
    if train and status.finished:
        raise BadOption(
            f"expected a job with steps to train, found one whose {status.steps} steps are done; evaluate it with "
            "--eval, or stop the server (`ajet swarm stop`) and start it with another job"
        )
    return job
