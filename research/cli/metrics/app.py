"""`ajet metric`: what a study can be judged by, and what each of it is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from research.cli.output import console, print_json, warn
from research.metrics.asked import form, known_kind
from research.metrics.words import default_threshold
from studies.metrics import MetricKind, kinds
from studies.metrics.packages import GROUP
from studies.metrics.registry import BUILT_IN, faults

app = typer.Typer(no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@app.callback()
def metric() -> None:
    """Metrics: what a study can be judged by, and what each of it is."""


@app.command("list")
def list_metrics(json: Json = False) -> None:
    """List what a study can be judged by: the metrics that are built in, and those of installed packages.

    Examples:

        ajet metric list

        ajet metric list --json
    """
    found = kinds()
    for fault in faults().values():
        warn(fault)
    if json:
        print_json([_as_json(kind) for kind in found.values()])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("metric", "unit", "asked for by", "what it is"):
        table.add_column(column, header_style="dim", no_wrap=column != "what it is")
    for kind in found.values():
        table.add_row(*map(Text, (kind.name, _unit(kind), _form(kind), kind.title)))
    console().print(table)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="A metric, as `ajet metric list` names it.")], json: Json = False
) -> None:
    """Say of a metric what it is, how it is asked for, by which words, and which difference of it matters.

    Examples:

        ajet metric explain episodes

        ajet metric explain area --json
    """
    kind = known_kind(name.partition(":")[0])
    if json:
        print_json(_as_json(kind))
        return
    for line in _screen(kind):
        console().print(Text(line))


def _screen(kind: MetricKind) -> Iterator[str]:
    yield f"{kind.name}  {kind.title}"
    yield ""
    yield from (inspect.getdoc(type(kind)) or "").splitlines()
    yield ""
    yield f"ask     {_form(kind)}"
    if kind.words:
        threshold = default_threshold(kind.name)
        by = "" if threshold is None else f" (to {threshold:g}, unless it names another threshold)"
        yield f"topics  that say {', '.join(kind.words)}, or the like{by}"
    yield f"unit    {_unit(kind)}"
    yield f"effect  {kind.effect:g} of its range is the smallest that matters, unless --effect names another one"
    yield f"from    {_origin(kind)}"


def _form(kind: MetricKind) -> str:
    if "threshold" in kind.takes and default_threshold(kind.name) is None:
        return f"--metric {kind.name}[:THRESHOLD]"
    return f"--metric {form(kind)}"


def _unit(kind: MetricKind) -> str:
    of_fact = "of" in kind.takes and not kind.of_environment
    return kind.unit or ("the fact's own" if of_fact else "a share")


def _origin(kind: MetricKind) -> str:
    return (
        "ajet" if kind.name in BUILT_IN else f"{type(kind).__module__}, an installed package's entry point of {GROUP}"
    )


def _as_json(kind: MetricKind) -> dict[str, Any]:
    return {
        "name": kind.name, "title": kind.title, "unit": kind.unit, "words": list(kind.words),
        "takes": sorted(kind.takes), "ask": _form(kind), "effect": kind.effect,
        "counts_collapsed_trainings": kind.reads_collapses, "built_in": kind.name in BUILT_IN,
        "describes": inspect.getdoc(type(kind)) or "",
    }  # fmt: skip
