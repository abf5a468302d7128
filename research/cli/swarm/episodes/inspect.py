"""`ajet swarm episodes`, `inspect` and `export`: what an episode's model really saw and sampled."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from research.cli.output import console, print_json
from research.cli.swarm.episodes.episode_page import episode_page
from research.cli.swarm.episodes.episode_screen import episode_screen, episode_table
from research.errors import ResearchError
from research.servers.option import Server
from research.servers.running import reached
from swarm.client import ExportFormat, SwarmClient

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


class Format(StrEnum):
    """What an export is written as."""

    OPENENV = "openenv"
    PARQUET = "parquet"


_FORMS: dict[Format, ExportFormat] = {Format.OPENENV: "openenv", Format.PARQUET: "parquet"}


_WIDEST = 10_000
"""Columns of a row, at most."""
_LEFT_OUT = {
    "pruned": "their tokens went with old checkpoints (a job's checkpoints_kept)",
    "no_tokens": "nothing was sampled in them",
    "withdrawn": "they were given up meanwhile",
}


class BadExport(ResearchError):
    """What to export, or where to, was not said clearly."""


def episodes(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 20,
    server: Server = None,
    json: Json = False,
) -> None:
    """List the newest episodes.

    Examples:

        ajet swarm episodes

        ajet swarm episodes --limit 100 --json
    """
    at = reached(server)
    with SwarmClient(at.url, at.token) as client:
        found = client.episodes(limit)
    if json:
        print_json(found.model_dump(mode="json"))
    elif not found.episodes:
        console().print("no episode has begun yet")
    else:
        _print_rows(episode_table(found))


def _print_rows(table: Table) -> None:
    """Print a line for each row: cut to a terminal's width, whole where the output is captured."""
    out = console()
    table.width = out.measure(table, options=out.options.update(max_width=_WIDEST)).maximum
    out.print(table, crop=out.is_terminal, soft_wrap=not out.is_terminal)


def inspect(
    episode: Annotated[str, typer.Argument(help="An episode's id (see `ajet swarm episodes`).")],
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page to this file.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Show long contexts to their last token.")] = False,
    server: Server = None,
    json: Json = False,
) -> None:
    """Show every token of an episode: what the model saw, what it sampled, and how likely that was.

    Examples:

        ajet swarm inspect 3f9a1c-0000007

        ajet swarm inspect 3f9a1c-0000007 --html episode.html

        ajet swarm inspect 3f9a1c-0000007 --json
    """
    at = reached(server)
    with SwarmClient(at.url, at.token) as client:
        record = client.episode(episode)
    if html is not None:
        html.write_text(episode_page(record), encoding="utf-8")
    if json:
        print_json(record.model_dump(mode="json"))
    elif html is not None:
        console().print(f"wrote {html}")
    else:
        console().print(episode_screen(record, full=full), soft_wrap=False)


def export(
    to: Annotated[Path, typer.Option(help="The file to write; it is replaced if it is there.")],
    format: Annotated[Format, typer.Option(help="OpenEnv training traces, or parquet.")] = Format.OPENENV,
    episode: Annotated[str | None, typer.Option(help="One episode's id.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Every episode the server knows.")] = False,
    server: Server = None,
    json: Json = False,
) -> None:
    """Export episodes with every token: OpenEnv training traces (a JSON line each) or parquet (a row per call).

    Texts of prompts and answers are there while an engine runs.

    Examples:

        ajet swarm export --all --to traces.jsonl

        ajet swarm export --all --format parquet --to calls.parquet

        ajet swarm export --episode 3f9a1c-0000007 --to trace.jsonl
    """
    if all == (episode is not None):
        raise BadExport("expected one of --episode ID and --all")
    at = reached(server)
    with SwarmClient(at.url, at.token) as client:
        size, found = client.exported(to, _FORMS[format], episode)
    counts = {} if found is None else found.model_dump()
    if json:
        print_json({"file": str(to), "format": format.value, "bytes": size, **counts})
        return
    console().print(f"wrote {to} ({size:,} bytes)")
    for name, why in _LEFT_OUT.items():
        if counts.get(name):
            console().print(f"left out {counts[name]:,} episodes: {why}")
