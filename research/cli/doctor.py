"""`ajet doctor`: what is installed, what works, what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from research.cli.output import console, print_json
from research.doctor import examine, healthy

_MARKS = {"ok": "[green]ok[/]", "optional": "[yellow]-[/]", "missing": "[red]missing[/]"}


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
        ready = '[green]ready:[/] ajet research "..."' if healthy(checks) else "[red]not ready:[/] see above"
        console().print(ready)
    raise typer.Exit(0 if healthy(checks) else 1)
