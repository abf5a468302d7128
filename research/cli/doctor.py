"""`ajet doctor`: what is installed, what works, what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from research.cli.output import console, print_json
from research.doctor import examine, healthy

_MARKS = {"ok": Text("ok", "green"), "optional": Text("-", "yellow"), "missing": Text("missing", "red")}


def doctor(json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False) -> None:
    """Say what is installed, what works and what to do.

    Ends with exit code 1 when a default study cannot run.

    Examples:

        ajet doctor

        ajet doctor --json
    """
    checks = examine()
    if json:
        print_json({"healthy": healthy(checks), "checks": [asdict(check) for check in checks]})
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("", "part", "found", "what to do"):
            table.add_column(column, overflow="fold")
        for check in checks:
            table.add_row(_MARKS[check.level], check.name, check.found, check.remedy)
        console().print(table)
        ready, not_ready = ("ready:", "green"), ("not ready:", "red")
        said = (ready, ' ajet research "..."') if healthy(checks) else (not_ready, " see above")
        console().print(Text.assemble(*said))
    raise typer.Exit(0 if healthy(checks) else 1)
