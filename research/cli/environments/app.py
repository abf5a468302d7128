"""`ajet env`: environments, from the first file to what a study will be told of one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from research.cli.environments.request import Held, trial_of
from research.cli.environments.tables import catalogue_tables, check_lines, show_lines, size_of, trial_lines
from research.cli.output import console, print_json
from research.environments.beginning import begin_in
from research.environments.bring import environment_of, packages_of
from research.environments.catalogue import catalogue
from research.environments.checking.check import EnvironmentCheck
from research.environments.checking.check import check as check_environment
from research.environments.checking.playing import PlayBounds, play_alone
from research.environments.checking.with_model import try_model
from research.environments.measured import MeasuredEnvironment, all_measured, keep
from research.environments.removal import remove
from research.installation.home import Home
from research.installation.tiny_model import Note
from studies import EventLog
from swarm.environments.brought import BroughtEnvironment, shown_facts

FAULTS = 1
"""The exit code of a check that found some."""

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
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@app.callback()
def env() -> None:
    """Environments: what there are, what one is, how to begin one, what it is worth."""


@app.command("list")
def show_all(json: Json = False) -> None:
    """List environments: built in, of installed packages, brought here, and what addresses there are.

    Examples:

        ajet env list

        ajet env list --json
    """
    found = catalogue(Home.locate().for_reading())
    if json:
        print_json(found)
        return
    for part in catalogue_tables(found):
        console().print(part)


@app.command()
def show(ref: Reference, reward: Reward = None, json: Json = False) -> None:
    """Show what an environment is: its words, tasks and hashes, a play, and what was measured of it.

    One that is not here yet is brought first.

    Examples:

        ajet env show guess

        ajet env show my_shop --json
    """
    home = Home.locate().prepare()
    with _noting(json) as note:
        environment = environment_of(ref, reward, home, note)
        packages = packages_of(environment.name, home, note)
        plays = play_alone(environment.name, home, packages, PlayBounds(plays=1), note)
    facts: dict[str, Any] = {
        "environment": environment.name, "title": environment.title, "measures": environment.measures,
        "reward_range": list(environment.reward_range), "solved_at": environment.solved_at,
        **(shown_facts(environment.manifest) if isinstance(environment, BroughtEnvironment) else {}),
        "example": plays.example, "faults": list(plays.faults),
        "measured": [each.model_dump(mode="json") for each in all_measured(home, environment.name)],
    }  # fmt: skip
    if json:
        print_json(facts)
        return
    for line in show_lines(environment, plays, all_measured(home, environment.name)):
        console().print(line)


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="Where to begin; made if missing.")], json: Json = False) -> None:
    """Write a small, whole environment with a tool into FOLDER, to be changed into one's own.

    Examples:

        ajet env init my_shop

        ajet env init my_shop --json
    """
    path = begin_in(folder)
    following = f"ajet env check {shlex.quote(str(folder))}"
    if json:
        print_json({"wrote": str(path), "next": following})
        return
    console().print(f"wrote  {path}")
    console().print(f"next   {following}")


@app.command("remove")
def remove_one(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its full name, such as stock@900455175278.")],
    json: Json = False,
) -> None:
    """Remove an environment that was brought; what it was brought from, and what was measured of it, stay.

    Refused where a study of this installation uses it that is not concluded. Reports and proofs do not need it.

    Examples:

        ajet env remove stock@900455175278

        ajet env remove stock@900455175278 --json
    """
    home = Home.locate().prepare()
    with closing(EventLog(home.database)) as log:
        freed = remove(name, home, log)
    if json:
        print_json({"removed": name, "bytes": freed})
        return
    console().print(f"removed  {name} ({size_of(freed)})", soft_wrap=True)


@app.command()
def check(
    ref: Reference,
    reward: Reward = None,
    model_path: Annotated[str | None, typer.Option(help="Let the model in this folder play it too.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Let a tiny model, made on the spot, play it too.")] = False,
    groups: Annotated[int, typer.Option(min=1, max=512, help="Search tasks the model plays 8 times each.")] = 16,
    job: Annotated[Path | None, typer.Option(help="Play it as a study of this job would, with its model.")] = None,
    held: Held = [],  # noqa: B006  # typer's own copy
    plays: Annotated[int, typer.Option(min=1, max=10_000, help="Plays of each player without a model.")] = 64,
    play_seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="What one such play may take.")] = 20.0,
    json: Json = False,
) -> None:
    """Play an environment and say what it is worth: is it drawn the same twice, are rewards sound, what does it cost?

    Without a model it is played by its oracle, its demonstrations, empty and random answers. With one (--tiny,
    --model-path, --job) a real server plays search tasks, and learns for two steps. What was measured is kept for
    studies whose job samples alike. Hidden tasks are never played. Exit codes: 0 sound; 1 faults were found; 2 it could
    not be brought, or bad input.

    Examples:

        ajet env check my_shop

        ajet env check my_shop --tiny --set max_tokens=64 --set max_context=512

        ajet env check tasks.jsonl --reward judge.py --model-path models/mine

        ajet env check my_shop --job job.json --model-path models/mine
    """
    trial = trial_of(job, model_path, tiny, groups, held, Home.locate().models)
    home = Home.locate().prepare()
    with _noting(json) as note:
        found = check_environment(ref, reward, home, PlayBounds(plays=plays, play_s=play_seconds), note)
    if not json:
        for line in check_lines(found):
            console().print(line)
    played: MeasuredEnvironment | None = None
    if trial is not None and not found.faults:
        with _noting(json) as note:
            name = found.environment.name
            asked = trial.of(found.environment)
            played = try_model(asked, trial.tasks(found.environment), home, packages_of(name, home, note), note)
        keep(home, played)
    if json:
        print_json(_as_json(found, played))
    elif played is not None:
        for line in trial_lines(played):
            console().print(line)
    raise typer.Exit(FAULTS if found.faults else 0)


@contextmanager
def _noting(json: bool) -> Iterator[Note]:
    """Yield where to say what is being done: a line that changes for a person, nothing for a script."""
    if json or not sys.stdout.isatty():
        yield _quiet
        return
    with console().status("looking") as status:
        yield status.update


def _quiet(_: str) -> None:
    return


def _as_json(found: EnvironmentCheck, played: MeasuredEnvironment | None) -> dict[str, Any]:
    return {
        "environment": found.environment.name, "tasks": dict(found.tasks), "kinds": dict(found.kinds),
        "drawn_twice": found.drawn_twice, "players": [each.model_dump() for each in found.players.values()],
        "faults": list(found.faults), "remarks": list(found.remarks),
        "measured": found.measured.model_dump(mode="json"),
        "with_model": played.model_dump(mode="json") if played is not None else None,
    }  # fmt: skip
