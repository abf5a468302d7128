"""`--server`, as every command has it that talks to a swarm server."""

from __future__ import annotations

from typing import Annotated

import typer

Server = Annotated[
    str | None,
    typer.Option(
        help="A swarm server: the name of one started here, or an address, whose key is read from AJET_TOKEN; else "
        "that of AJET_SERVER, else the one here without a name.",
        show_default=False,
    ),
]
