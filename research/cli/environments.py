"""`ajet env`."""

import json
import random
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from research.cli.app import Json, answer, console, make_table, show_progress
from research.design.pricing import runs_at_once
from research.environments import catalog
from research.environments import check as checks
from research.environments.catalog import write_example
from research.environments.install import load_environment, packages_of, remove
from research.errors import BadEnvironment
from research.installation.base_job import base_job, require_backend
from research.installation.home import Home
from research.models.fetch import check_loader
from research.text import did_you_mean, format_size
from sandboxes.spec import escape_control as safe
from studies import EventLog
from studies.statistics.proportions import rate_interval
from swarm.environments.base import Environment
from swarm.environments.building import SPLITS
from swarm.environments.custom import CustomEnvironment
from swarm.environments.play import format_message
from swarm.errors import to_invalid_request
from swarm.job import KNOB, Job, TinyModel

_OURS = ("environment", "model", "tracking")


def parse_trial(
    file: Path | None, model_path: str | None, tiny: bool, groups: int, held: Sequence[str], models: Path
) -> checks.ModelTrial | None:
    """Return what options ask for, None for no model. Raises BadEnvironment, BadInput, InvalidRequest (its folder)."""
    if tiny and (model_path is not None or file is not None):
        other = "--model" if model_path is not None else "--job (it names its model)"
        raise BadEnvironment(f"expected --tiny or {other}; found both; choose one")
    base = Job() if tiny else base_job(file, model_path, models)
    if base is None:
        if held:
            raise BadEnvironment("expected --set beside --tiny or --model; found no model that it could matter to")
        return None
    fields: dict[str, Any] = {}
    for text in held:
        name, equals, value = text.partition("=")
        if not equals or name not in Job.model_fields or name in _OURS:
            near = "" if name in Job.model_fields else did_you_mean(name, Job.model_fields)
            raise BadEnvironment(
                f"expected --set FIELD=VALUE with a field of a job; found {text!r:.80}{near}; see `ajet job explain`"
            )
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    try:
        job = checks.job_of(base, fields)
    except ValidationError as error:
        raise BadEnvironment(f"{to_invalid_request(error)}; see `ajet job explain`") from error
    require_backend(job.backend)
    seconds = 1800.0  # for the evaluation, and again for the training
    return checks.ModelTrial(job, groups, seconds, runs_at_once([job], check_loader(models)).runs)


Line = Table | Text
_LONGEST = 400
"""Characters of a message that are shown."""


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "padding": (0, 2, 0, 0)}
    return make_table(columns, rows, wraps=columns, title=title, **style)


def _custom_row(each: Mapping[str, Any]) -> tuple[str, ...]:
    if "fault" in each:
        return each["name"], each["fault"], "", "", "", "", ""
    apart = "apart from its code" if each["hidden_apart"] else "its code has them"
    size, tasks = format_size(each["bytes"]), _format_splits(each["tasks"])
    models, faults = each["measured_with"], len(each["faults"])
    checked = "no" if not models else "yes" if models == [catalog.NO_MODEL] else "yes, with a model"
    if models and faults:
        checked += f": {faults} fault{'s' if faults > 1 else ''}"
    return each["name"], each["title"], tasks, apart, checked, size, each["from"]


def _format_splits(splits: Mapping[str, int]) -> str:
    return "/".join(str(splits[split]) for split in SPLITS)


def show_lines(
    environment: Environment, plays: checks.Plays, measured: Sequence[catalog.MeasuredEnvironment]
) -> Iterator[Line]:
    yield Text(environment.name, "bold")
    low, high = environment.reward_range
    yield Text(f"title         {environment.title}")
    yield Text(f"success       {environment.measures}")
    solved = f", solved from {environment.solved_at:g}" if environment.solved_at is not None else ""
    yield Text(f"reward        {low:g} to {high:g}{solved}")
    yield Text("tasks         " + ", ".join(f"{len(environment.tasks(split))} {split}" for split in SPLITS))
    kinds = {task.kind for split in SPLITS[:2] for task in environment.tasks(split) if task.kind}
    if kinds:
        yield Text(f"kinds         {', '.join(sorted(kinds)[:10])}{' ...' if len(kinds) > 10 else ''}")
    for name, knob in environment.list_knobs().items():
        yield Text(f"knob          {KNOB}{name} = {str(knob.default).lower()} ({knob.describe()}): {knob.does}")
    if isinstance(environment, CustomEnvironment):
        manifest = environment.manifest
        unsafe = "its code can make or holds them, and clients hold it"
        yield Text(f"hidden tasks  {'apart from its code' if manifest.hidden_apart else unsafe}")
        yield Text(f"brought from  {manifest.reference}")
        for part in ("code", "data", "requirements"):
            yield Text(f"{part:<14}{manifest.hashes[part] or 'none'}", "dim")
    yield from _faults(plays.faults)
    if (example := plays.example) is not None:
        yield Text(f"\na play by {example['player']}, task {example['task']}", "bold")
        for tool in example["tools"]:
            function = tool["function"]
            names = ", ".join(function.get("parameters", {}).get("properties", {}))
            yield Text(f"  tool        {function['name']}({names}): {function.get('description', '')}")
        for message in example["messages"]:
            text = format_message(message)
            beginning = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
            yield Text(f"  {message['role']:<12}" + safe(beginning).replace("\n", "\n" + " " * 14))
        facts = "".join(f", {name} {value:g}" for name, value in example["facts"].items())
        yield Text(f"  reward      {example['reward']:g}, {'solved' if example['success'] else 'not solved'}{facts}")
    for measurement in measured:
        yield Text("")
        yield from measurement_lines(measurement)
    if not measured:
        yield Text(f"not measured yet: ajet env check {environment.name}", "dim")


def check_lines(found: checks.EnvironmentCheck) -> Iterator[Line]:
    yield Text.assemble((found.environment.name, "bold"), f"   {found.environment.title}")
    twice = {True: ", drawn twice the same", False: "", None: ""}[found.drawn_twice]
    counts = ", ".join(f"{count} {split}" for split, count in found.tasks.items())
    yield Text(f"tasks         {counts}; splits are disjoint{twice}")
    yield from (Text(f"knob          {KNOB}{name}: {knob.does}") for name, knob in found.environment.knobs.items())
    if found.kinds:
        yield Text("kinds         " + ", ".join(f"{kind}: {count}" for kind, count in sorted(found.kinds.items())[:10]))
    if found.players:
        rows = (
            (each.player, f"{each.reward:.3f}", f"{each.success:.0%}", f"{each.calls:.1f}", f"{each.characters:.0f}",
             f"{1000 * each.seconds:.1f} ms", str(each.plays))
            for each in found.players.values()
        )  # fmt: skip
        columns = ("player", "reward", "solved", "answers", "characters", "own code", "plays")
        yield _table("without a model, a play each of train and search tasks", columns, rows)
    yield from _faults(found.faults)
    yield from (Text.assemble(("note          ", "yellow"), remark) for remark in found.remarks)
    if not found.faults:
        yield Text("sound", "green")


def _faults(found: Iterable[str]) -> Iterator[Text]:
    return (Text.assemble(("fault         ", "red"), fault) for fault in found)


def measurement_lines(known: catalog.MeasuredEnvironment) -> Iterator[Text]:
    """Yield what was measured of an environment, by the players without a model, or with one."""
    if known.model == catalog.NO_MODEL:
        yield Text(f"measured {known.measured_at}, without a model", "bold")
        yield from _faults(known.faults or ())
        if known.calls_per_episode is not None and known.environment_seconds_per_episode is not None:
            seconds = 1000 * known.environment_seconds_per_episode
            yield Text(f"an episode    {known.calls_per_episode:.1f} answers, {seconds:.1f} ms of its own code")
        return
    yield Text(f"with the model {known.model}, measured {known.measured_at}", "bold")
    if unusual := catalog.unusual_conditions(known):
        yield Text("holds for     jobs with " + ", ".join(f"{name} {value}" for name, value in unusual.items()))
    if known.base_success is not None:
        interval = rate_interval(round(known.base_success * known.base_success_n), known.base_success_n)
        assert interval is not None
        yield Text(
            f"base success  {interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}] of {known.base_success_n} "
            "search episodes (95 % Wilson)"
        )
    if known.equal_groups is not None:
        advice = ""
        if known.equal_groups >= 0.9 and known.base_success is not None:
            hard = ": too hard for it, or its answers are not understood"
            advice = ": too easy for it" if known.base_success > 0.5 else hard
        yield Text(
            f"equal groups  {known.equal_groups:.0%} of {known.equal_groups_n} groups of {known.group_size} have one "
            f"reward throughout, and teach nothing{advice}"
        )
    yield Text("an episode    " + ", ".join(_episode(known)))
    if known.cut_short:
        yield Text.assemble(
            ("note          ", "yellow"),
            f"{known.cut_short:.0%} of answers were cut at max_tokens or max_context: --set max_tokens=...",
        )
    if known.startup_s is not None:
        yield Text(f"startup       {known.startup_s:.1f} s")


def _episode(known: catalog.MeasuredEnvironment) -> Iterator[str]:
    if known.calls_per_episode is not None:
        yield f"{known.calls_per_episode:.1f} calls"
    if known.prompt_tokens is not None and known.sampled_tokens is not None:
        yield f"{known.prompt_tokens:.0f} prompt and {known.sampled_tokens:.0f} sampled tokens"
    if known.seconds_per_episode is not None:
        yield f"{known.seconds_per_episode:.3f} s with {known.concurrency} at once"
    if known.seconds_per_trained_episode is not None:
        yield f"{known.seconds_per_trained_episode:.3f} s trained"


FieldOverrides = Annotated[
    list[str],
    typer.Option("--set", help="FIELD=VALUE of the job, such as max_tokens=64 (ajet job explain).", show_default=False),
]
app = typer.Typer(no_args_is_help=True)
Reference = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="A name (`ajet env list`), a folder, FILE.py, module:Name, tasks.jsonl (with --reward), or an address.",
    ),
]
Reward = Annotated[
    str | None, typer.Option(help="FILE.py[:NAME], the function that judges answers to TASKS.jsonl.", metavar="FILE")
]


@app.command("list")
def show_all(json: Json = False) -> None:
    """List environments: built in, of installed packages, brought here, and what addresses there are.

    Example:
        ajet env list
    """
    found = catalog.catalogue(Home.locate().for_reading())
    built_in = ((each["name"], each["title"], _format_splits(each["tasks"])) for each in found["built_in"])
    lines: list[Line] = [_table("built in", ("name", "title", "tasks"), built_in)]
    if found["installed"]:
        objects = ((each["name"], each["object"]) for each in found["installed"])
        lines.append(_table("installed", ("name", "object"), objects))
    if found["brought"]:
        columns = ("name", "title", "tasks", "hidden tasks", "checked", "size", "brought from")
        lines.append(_table("brought here", columns, map(_custom_row, found["brought"])))
    addresses = (
        (each["example"], "here" if each["here"] else f"not here: pip install '{each['requirement']}'")
        for each in found["addresses"]
    )
    lines.append(_table("by address", ("example", "package"), addresses))
    answer(json, found, *lines, Text("tasks: train/search/hidden. Begin your own: ajet env init FOLDER", "dim"))


@app.command()
def show(ref: Reference, reward: Reward = None, json: Json = False) -> None:
    """Show what an environment is: its words, tasks and hashes, a play, and what was measured of it.

    One that is not here yet is brought first.

    Examples:
        ajet env show guess
        ajet env show my_shop --json
    """
    home = Home.locate().prepare()
    with show_progress(json, "looking", lambda line: None) as note:
        environment = load_environment(ref, reward, home, note)
        packages = packages_of(environment.name, home, note)
        plays = checks.play_alone(environment.name, home, packages, checks.PlayBounds(plays=1), note)
    measured = catalog.find_measurements(home, environment.name)
    facts: dict[str, Any] = {
        "environment": environment.name, "title": environment.title, "measures": environment.measures,
        "reward_range": list(environment.reward_range), "solved_at": environment.solved_at,
        **(environment.manifest.model_dump(mode="json") if isinstance(environment, CustomEnvironment) else {}),
        "knobs": {name: asdict(knob) for name, knob in environment.list_knobs().items()},
        "example": plays.example, "faults": list(plays.faults),
        "measured": measured,
    }  # fmt: skip
    answer(json, facts, show_lines(environment, plays, measured))


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="Where to begin; made if missing.")], json: Json = False) -> None:
    """Write a small, whole environment with a tool into FOLDER, to be changed into one's own.

    Example:
        ajet env init my_shop
    """
    path = write_example(folder)
    following = f"ajet env check {shlex.quote(str(folder))}"
    answer(json, {"wrote": str(path), "next": following}, f"wrote  {path}", f"next   {following}")


@app.command("remove")
def remove_one(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its full name, such as stock@900455175278.")],
    json: Json = False,
) -> None:
    """Remove an environment that was brought; what it was brought from, and what was measured of it, stay.

    Refused where a study of this installation uses it that is not concluded. Reports and proofs do not need it.

    Example:
        ajet env remove stock@900455175278
    """
    home = Home.locate().prepare()
    with closing(EventLog(home.database)) as log:
        freed = remove(name, home, log)
    answer(json, {"removed": name, "bytes": freed}, f"removed  {name} ({format_size(freed)})")


@app.command()
def check(
    ref: Reference,
    reward: Reward = None,
    model_path: Annotated[
        str | None, typer.Option("--model", "--model-path", help="Let the model in this folder play it too.")
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Let a tiny model, made on the spot, play it too.")] = False,
    groups: Annotated[int, typer.Option(min=1, max=512, help="Search tasks the model plays 8 times each.")] = 16,
    job: Annotated[Path | None, typer.Option(help="Play it as a study of this job would, with its model.")] = None,
    held: FieldOverrides = [],  # noqa: B006  # typer's own copy
    plays: Annotated[int, typer.Option(min=1, max=10_000, help="Plays of each player without a model.")] = 64,
    play_seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="What one such play may take.")] = 20.0,
    json: Json = False,
) -> None:
    """Play an environment and say what it is worth: is it drawn the same twice, are rewards sound, what does it cost?

    Without a model it is played by its oracle, its demonstrations, empty and random answers. With one (--tiny,
    --model, --job) a real server plays search tasks, and learns for two steps. What was measured is kept for
    studies whose job samples alike. Hidden tasks are never played. Exit codes: 0 sound; 1 faults were found; 2 it could
    not be brought, or bad input.

    Examples:
        ajet env check my_shop
        ajet env check my_shop --tiny --set max_tokens=64 --set max_context=512
        ajet env check tasks.jsonl --reward judge.py --model models/mine
        ajet env check my_shop --job job.json --model models/mine
    """
    trial = parse_trial(job, model_path, tiny, groups, held, Home.locate().models)
    home = Home.locate().prepare()
    with show_progress(json, "looking", lambda line: None) as note:
        found = checks.check(ref, reward, home, checks.PlayBounds(plays=plays, play_s=play_seconds), note)
    for line in () if json else check_lines(found):
        console().print(line)
    environment, played = found.environment, None
    if trial is not None and not found.faults:
        if isinstance(trial.job.model, TinyModel) and not checks.has_parts(environment)[1]:
            raise BadEnvironment(
                f"expected demonstrations of {environment.name}, which a tiny model imitates first; it has none; give "
                "it `imitate`, or name a model: --model DIR"
            )
        named = {"environment": environment.name, "environment_args": {}}  # what is kept of it is of the usual game
        trial = replace(trial, job=trial.job.model_copy(update=named))
        tasks = list(environment.tasks("search"))
        chosen = random.Random(0).sample(tasks, min(groups, len(tasks)))
        with show_progress(json, "looking", lambda line: None) as note:
            packages = packages_of(environment.name, home, note)
            played = checks.try_model(trial, chosen, home, packages, note)
        catalog.save_measurement(home, played)
    told = {
        "environment": environment.name, "tasks": found.tasks, "kinds": found.kinds,
        "drawn_twice": found.drawn_twice, "players": list(found.players.values()), "faults": found.faults,
        "remarks": found.remarks, "measured": found.measured, "with_model": played,
    }  # fmt: skip
    answer(json, told, measurement_lines(played) if played is not None else iter(()))
    raise typer.Exit(1 if found.faults else 0)
