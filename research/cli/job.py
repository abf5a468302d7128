"""`ajet job explain`: what each field of a job does to training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from rich.table import Table

from research.cli.output import console, print_json
from research.errors import ResearchError
from research.spelling import did_you_mean
from swarm.job import Job, tunables

app = typer.Typer(help="Jobs: what a swarm server trains.", no_args_is_help=True)


HOW_TO_WRITE_ONE = (
    'A job file is a JSON object of such fields: {"steps": 80, "model": {"kind": "tiny", "layers": 4}}. What it leaves '
    "out has its default."
)


class UnknownField(ResearchError):
    """A field was named that no job has."""


@app.callback()
def job() -> None:
    """Jobs: what a swarm server trains."""


@app.command()
def explain(
    field: Annotated[str | None, typer.Argument(help="One field, and those in it; all when left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Explain every field of a job, or one.

    Examples:

        ajet job explain

        ajet job explain group_size

        ajet job explain verl

        ajet job explain --json
    """
    rows = explanations()
    if field is not None:
        rows = [row for row in rows if row["field"] == field or row["field"].startswith((f"{field}.", f"{field}("))]
        if not rows:
            names = ", ".join(row["field"] for row in explanations())
            near = did_you_mean(field, (row["field"] for row in explanations()))
            raise UnknownField(f"a job has no field {field!r}{near}; its fields are {names}")
    if json:
        print_json(rows)
        return
    table = Table(title="Job", show_lines=False)
    table.add_column("field", style="bold cyan", no_wrap=True)
    table.add_column("default", style="green", overflow="fold", max_width=14)
    table.add_column("try", style="dim", overflow="fold", max_width=21)
    table.add_column("what it does", overflow="fold", min_width=36)
    for row in rows:
        table.add_row(row["field"], _default(row["default"]), _ladder(row["ladder"] or ()), row["description"])
    console().print(table)
    if field is None:
        console().print(HOW_TO_WRITE_ONE)


def _default(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, dict) and "kind" in value else str(value)


def _ladder(values: Sequence[Any]) -> str:
    """Return values in one line, words one below the other."""
    return ("\n" if any(isinstance(value, str) for value in values) else ", ").join(map(str, values))


def explanations() -> list[dict[str, Any]]:
    """Return field, type, default, ladder and description of each job field, nested models included."""
    marks = tunables()
    rows = _all_fields(Job, "")
    return [{**row, "ladder": list(marks[row["field"]].ladder) if row["field"] in marks else None} for row in rows]


def _all_fields(model: type[BaseModel], prefix: str) -> list[dict[str, Any]]:
    """Return a model's fields, and after them those of the models that are values of one."""
    rows = _fields(model, prefix)
    for name, field in model.model_fields.items():
        for inner in get_args(field.annotation) or (field.annotation,):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                kind = inner.model_fields.get("kind")
                rows += _all_fields(inner, f"{prefix}{name}." if kind is None else f"{prefix}{name}({kind.default}).")
    return rows


def _fields(model: type[BaseModel], prefix: str) -> list[dict[str, Any]]:
    rows = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        rows.append({
            "field": prefix + name,
            "default": None if default is PydanticUndefined else _plain(default),
            "required": field.is_required(),
            "description": " ".join((field.description or "").split()),
        })  # fmt: skip
    return rows


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
