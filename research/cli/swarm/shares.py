"""`ajet swarm shares`: what each stream of a training gets and has got, and new shares while it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from research.cli.output import columns, console, print_json
from research.errors import ResearchError
from research.servers.option import Server
from research.servers.running import reached
from swarm.client import SwarmClient
from swarm.job import Job
from swarm.wire import Status, StreamStatus, stream_label

_MEASURED = {"reward": "reward/mean", "success": "success/mean"}
_HEADER = ("stream", "share", "groups a batch", "played", "open", "trained", "in the last", "reward", "success")


class BadShares(ResearchError):
    """Shares that mean nothing, or that would take one from a stream by mistake."""


def shares(
    new: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=SHARE]...", help="New shares, in any unit; shown when left out."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Let others have none from now on, which refuses their clients, and add new ones."
        ),
    ] = False,
    server: Server = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Show each stream with its share, and what of it was played and trained; or change the shares while training.

    New shares hold from the next group that begins, and through a restart of the server.

    Examples:

        ajet swarm shares

        ajet swarm shares math=50 code=25 web=25

        ajet swarm shares math=1 chess=1 --replace --json
    """
    wanted = shares_of(new or ())
    at = reached(server)
    with SwarmClient(at.url, at.token) as client:
        found = client.streams().streams
        if wanted:
            if not replace:
                require_same(wanted, found)
            found = client.share(wanted).streams
        rows = described(found, client.status(), client.job())
    if json:
        print_json({"changed": bool(wanted), "streams": rows})
    elif not rows:
        console().print("no stream has played yet, and the job gives no shares")
    else:
        console().print(columns(_HEADER, [_cells(row) for row in rows]))


def shares_of(texts: Sequence[str]) -> dict[str, float]:
    """Return the shares of `NAME=SHARE` texts; raises BadShares."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, share = text.rpartition("=")
        if not name:
            raise BadShares(f"expected NAME=SHARE; found {text[:60]!r}")
        if name in found:
            raise BadShares(f"expected one share for each stream; found two for {name[:60]!r}")
        found[name] = _number(name, share)
    return found


def _number(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise BadShares(f"expected a number above 0 as the share of {name[:60]!r}; found {text[:40]!r}")
    return share


def require_same(wanted: Mapping[str, float], known: Sequence[StreamStatus]) -> None:
    """Raise BadShares unless the streams that have shares (where none have: all there are) are those that get one."""
    had = {stream.name for stream in known if stream.share is not None} or {stream.name for stream in known}
    listed = ", ".join(sorted(had))
    if had and (unknown := sorted(wanted.keys() - had)):
        raise BadShares(
            f"expected streams among {listed}; found {unknown[0][:60]!r}; --replace gives a new one a share"
        )
    if missing := sorted(had - wanted.keys()):
        raise BadShares(
            f"expected a share for each of {listed}; found none for {', '.join(missing)}; name it too, or say "
            "--replace to take its share away, which refuses its clients"
        )


def described(streams: Sequence[StreamStatus], status: Status, job: Job | None) -> list[dict[str, Any]]:
    """Return what is shown of each stream, with the last step's metrics where it has some."""
    return [_described(stream, status.metrics, job) for stream in streams]


def _described(stream: StreamStatus, metrics: Mapping[str, float], job: Job | None) -> dict[str, Any]:
    label, share = f"stream/{stream_label(stream.name)}", stream.share
    return {
        "name": stream.name,
        "share": share,
        "groups_per_batch": None if share is None or job is None else round(share * job.tasks_per_step, 6),
        "groups_played": stream.cursor,
        "groups_open": stream.groups_open,
        "groups_trained": stream.groups_trained,
        "groups_in_last_batch": int(metrics[f"{label}/groups"]) if f"{label}/groups" in metrics else None,
        **{name: metrics.get(f"{label}/{metric}") for name, metric in _MEASURED.items()},
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        "-" if row["share"] is None else f"{row['share']:.1%}",
        "-" if row["groups_per_batch"] is None else f"{row['groups_per_batch']:.3g}",
        *(str(row[f"groups_{what}"]) for what in ("played", "open", "trained")),
        "-" if row["groups_in_last_batch"] is None else str(row["groups_in_last_batch"]),
        *("-" if row[name] is None else f"{row[name]:.3f}" for name in _MEASURED),
    )
