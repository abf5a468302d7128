"""`ajet client wheel`: the light client as a package for machines that have nothing else of ajet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from research.cli.output import console, print_json
from research.errors import ResearchError
from research.isolation.client_wheel import build_wheel


class BadFolder(ResearchError):
    """A folder that cannot be written to."""


def wheel(
    folder: Annotated[Path, typer.Argument(help="Where it is written.")] = Path("dist"),
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Write the light client as a wheel, for machines on which agents play: it needs aiohttp and pydantic alone.

    Examples:

        ajet client wheel dist

        scp dist/ajet_client-*.whl player: && ssh player pip install ./ajet_client-*.whl
    """
    try:
        made = build_wheel(folder)
    except OSError as error:
        raise BadFolder(
            f"expected a folder that can be written to; found {folder}: {error.strerror or error}"
        ) from error
    if json:
        print_json({"wheel": str(made), "bytes": made.stat().st_size})
    else:
        console().print(f"wrote {made} ({made.stat().st_size:,} bytes); there: pip install {made.name}")
