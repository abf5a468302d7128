"""`ajet up`: the local Prefect server, started to look at studies, or stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from research.cli.output import console, print_json
from research.errors import ResearchError
from research.installation.home import Home
from research.orchestration import PrefectUnavailable, ensure_server, stop_server


class NoPrefect(ResearchError):
    """The Prefect server could not be started."""


def up(
    stop: Annotated[bool, typer.Option("--stop", help="Stop it instead.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Start (or find) the local Prefect server and print its address.

    Examples:

        ajet up

        ajet up --stop
    """
    folder = Home.locate().prepare().prefect
    if stop:
        stopped = stop_server(folder)
        if json:
            print_json({"stopped": stopped})
        else:
            console().print("stopped the Prefect server" if stopped else "no Prefect server of this installation runs")
        return
    try:
        server = ensure_server(folder)
    except PrefectUnavailable as error:
        raise NoPrefect(str(error)) from error
    if json:
        print_json({"url": server.url, "reused": server.reused, "note": server.note})
    else:
        console().print(f"Prefect UI  {server.url}" + (f"  ({server.note})" if server.note else ""))
