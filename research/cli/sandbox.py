"""`ajet sandbox`: the image that containers run in, and the sandboxes of this installation."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from research.cli.app import Json, answer, console, make_table, print_json, show_progress
from research.installation.home import Home
from research.installation.studies import readable_studies
from research.isolation.inventory import find_handle, find_sandboxes
from research.isolation.mode import one_line, read_sandboxing
from research.scheduler.next_step import is_done
from research.text import format_seconds, warn
from sandboxes import SandboxError
from sandboxes.docker.engine import ContainerEngine, EngineNotFound, connect
from sandboxes.spec import escape_control
from studies import EventLog

app = typer.Typer(no_args_is_help=True)


@app.command()
def build(
    base: Annotated[
        str | None, typer.Option(help="Image with Python 3.11 or newer to build on; the last one when left out.")
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(help="A requirements.txt of an agent: its packages are added in an image of their own."),
    ] = None,
    json: Json = False,
) -> None:
    """Build the client image that containers run in; nothing is done when it is there already.

    Examples:
        ajet sandbox build
        ajet sandbox build --base python:3.12-slim --requirements agent/requirements.txt
    """
    from research.isolation.client_image import ensure_client_image, ensure_derived_image

    try:
        text = None if requirements is None else requirements.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"in UTF-8 at {requirements}; it cannot be read: {error}"
        if isinstance(error, FileNotFoundError):
            found = f"at {requirements}; there is no such file"
        raise SandboxError(f"expected a requirements.txt {found}") from error
    home, engine = Home.locate().prepare(), connect(os.environ)
    began = time.monotonic()
    with show_progress(json, "asking the engine") as note:
        if text is None:
            image = ensure_client_image(engine, home, note, base=base)
        else:
            image = ensure_derived_image(engine, home, text, note, base=base)
    size = int(engine.client.images.get(image.id).attrs["Size"])
    below = int(engine.client.images.get(image.base).attrs["Size"])
    told = {"id": image.id, "tag": image.tag, "base": image.base, "bytes": size, "bytes_over_base": size - below}
    answer(
        json,
        told,
        f"image    {image.tag}   {image.id[:19]}",
        f"base     {image.base}",
        f"size     {size / 1e6:.0f} MB, {(size - below) / 1e6:.0f} MB over the base",
        f"time     {time.monotonic() - began:.1f} s",
    )


@app.command("ls")
def list_sandboxes(
    everything: Annotated[bool, typer.Option("--all", help="Those that ended, too.")] = False, json: Json = False
) -> None:
    """List the sandboxes that run, containers and processes alike.

    Examples:
        ajet sandbox ls
        ajet sandbox ls --all --json
    """
    home = Home.locate()
    engine, trouble = _engine()
    sandboxes = find_sandboxes(home, engine)
    shown = [sandbox for sandbox in sandboxes if everything or sandbox.state != "ended"]
    if json:
        answers = None if engine is None else {"host": engine.host, "version": engine.version}
        print_json({"engine": answers, "sandboxes": shown})
        return
    if trouble is not None:
        warn(f"containers are shown as their folders have them, for no engine answers: {trouble}")
    if shown:
        names, rows = ("sandbox", "kind", "state", "age", "image"), []
        for box in shown:
            state = box.state
            if (ended := box.exit) is not None:
                state = ended.reason.replace("_", " ") + (f", code {ended.code}" if ended.reason == "error" else "")
            age = format_seconds(max(0.0, time.time() - box.created_at))
            image = (box.image or "").removeprefix("sha256:")[:12]
            rows.append(tuple(map(Text, (box.name, box.kind, state, age, image))))
        table = make_table(names, rows)
        for place, column in enumerate(table.columns[:4]):  # whole in any terminal: names are typed again
            column.min_width = max(len(names[place]), *(len(row[place]) for row in rows))
        console().print(table)
    else:
        none_runs = f"no sandbox runs ({len(sandboxes)} ended: ajet sandbox ls --all)"
        console().print(none_runs if sandboxes else "no sandbox yet")


@app.command()
def logs(name: Annotated[str, typer.Argument(help="Name of the sandbox, or its beginning.")]) -> None:
    """Show what a sandbox wrote on its standard output and error: the end of it, when there is much.

    Example:
        ajet sandbox logs ajet-larger-group-r3-a1
    """
    handle = find_handle(Home.locate(), _engine()[0], name)
    sys.stdout.write(escape_control(handle.logs(tail_bytes=1 << 20)))


@app.command()
def prune(json: Json = False) -> None:
    """Remove what nobody needs from the engine: containers of ended sandboxes, their inputs, older client images.

    Only what this installation made is touched, and nothing that runs within its time.

    Example:
        ajet sandbox prune
    """
    from research.isolation.inventory import find_waste, image_bytes

    home, engine = Home.locate().prepare(), connect(os.environ)
    # One whose log is corrupt cannot go on, and needs no image.
    unfinished = (state for state in readable_studies(EventLog(home.database)) if not is_done(state))
    pinned = [image for state in unfinished if (image := read_sandboxing(state.settings).image)]
    waste = find_waste(home, engine, pinned)
    before = image_bytes(engine)
    for each in waste:
        each.remove()
    after = image_bytes(engine)
    freed = None if before is None or after is None else before - after
    removed = [{"kind": each.kind, "name": each.name, "why": each.why} for each in waste]
    of_images = "" if freed is None else f", {freed / 1e6:.0f} MB of images freed"
    answer(
        json,
        {"removed": removed, "image_bytes_freed": freed},
        *(Text(f"removed {each.kind} {each.name}: {each.why}") for each in waste),
        f"{len(waste)} removed{of_images}" if waste else "nothing to remove",
    )


def _engine() -> tuple[ContainerEngine | None, str | None]:
    try:
        return connect(os.environ), None
    except EngineNotFound as error:
        return None, one_line(error)
