"""The options that `ajet research` and `ajet study plan` share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from research.cli.output import warn
from research.planners.factory import BUILT_IN, planner_names
from research.servers.names import BadServer
from research.servers.running import SERVER

RECORD_HELP = "Write what the language model says to this file; AJET_PLANNER_RECORD too. No key is in it."
REPLAY_HELP = "Take what the language model says from such a file, without a network; AJET_PLANNER_REPLAY too."


def refuse_server(server: str | None) -> None:
    """Refuse `--server`, which other commands have: a study's servers are its own, beside its files (docs/swarm.md)."""
    if server is not None:
        raise BadServer(
            "expected no --server: a study starts a server of its own for each of its runs, and judges by the files "
            f"that they leave beside it; found {server[:80]!r}. Start the study on that machine (`ajet research ... "
            "--detach`), or a single training there: `ajet swarm start --server URL --job FILE`"
        )
    if elsewhere := os.environ.get(SERVER):
        warn(f"{SERVER} is set ({elsewhere[:80]}), and is not asked: a study has servers of its own, on this machine")


OtherServer = Annotated[str | None, typer.Option("--server", hidden=True, callback=refuse_server, expose_value=False)]
Topic = Annotated[str | None, typer.Argument(help="The question, in plain words.", show_default=False)]
Vary = Annotated[
    list[str],
    typer.Option(help="FIELD=VALUE,VALUE,... in place of a topic, the control first; repeatable.", show_default=False),
]
Held = Annotated[
    list[str], typer.Option("--set", help="FIELD=VALUE that all arms share, beside --vary.", show_default=False)
]
Shaped = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="How the fields of --vary go: `apart` (the default: each against the control), `together` (all of them in "
        "one arm), `interaction` (whether the first one's effect depends on the second) or `trend` (one field's values "
        "along a line).",
        show_default=False,
    ),
]
Env = Annotated[
    str | None,
    typer.Option(
        help="Environment: a name, a folder, module:Name, tasks.jsonl (with --reward), or an address such as "
        "reasoning-gym:chain_sum (docs/environments.md).",
        show_default=False,
    ),
]
Reward = Annotated[
    str | None,
    typer.Option(help="FILE.py[:NAME], the function that judges answers to `--env TASKS.jsonl`.", show_default=False),
]
JobFile = Annotated[
    Path | None,
    typer.Option("--job", help="The job under all arms as JSON (see `ajet job explain`).", show_default=False),
]
ModelPath = Annotated[
    str | None,
    typer.Option(help="Folder of the model that is trained, in place of the tiny one.", show_default=False),
]
Backend = Annotated[
    str | None,
    typer.Option(help="What generates and learns: local, verl (docs/cluster.md), ...", show_default=False),
]
_BROUGHT = "".join(f", `{name}` (of a package)" for name in planner_names() if name not in BUILT_IN)
PlannerName = Annotated[
    str, typer.Option(help=f"Who plans: `rules`, or `llm` (any OpenAI-compatible endpoint){_BROUGHT}.")
]
PlannerModel = Annotated[str | None, typer.Option(help="Name of the language model that plans, for `--planner llm`.")]
WallClock = Annotated[str, typer.Option(help="Wall clock for the whole study: 90s, 10m, 2h, 1d.")]
MaxRuns = Annotated[int | None, typer.Option(min=4, help="Most training runs.")]
Effect = Annotated[
    float | None,
    typer.Option(
        help="Smallest difference that matters, in the metric's unit: 0.05 of hidden success, 500 episodes; smaller "
        "ones count as none.",
        show_default="of success 0.1, of others a part of their range",
    ),
]
Judged = Annotated[
    list[str],
    typer.Option(
        "--metric",
        help="What runs are judged by: NAME, NAME:THRESHOLD or NAME:OF, such as episodes:0.7 (`ajet metric list`); "
        "else what the topic asks for, or hidden success after the last step.",
        show_default=False,
    ),
]
Power = Annotated[
    float,
    typer.Option(help="Probability with which a difference of that size must be seen, or the design is refused."),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        envvar="AJET_ROUNDS",
        help="Most questions that are asked one after the other, each on what the last one found, under one bound on "
        "false claims; 1 for the topic's own alone.",
        show_default="as many as the budget leaves time for, 4 at most",
    ),
]
LookCount = Annotated[int, typer.Option(help="Most times the data are analysed; 1 for once, at the end.")]
Episodes = Annotated[int, typer.Option(help="Hidden episodes of each evaluation; more make less noise and cost time.")]
Approve = Annotated[
    str,
    typer.Option(
        help="What a person is asked before it begins: `plan` (all trainings, once the design is locked, and A/A runs "
        "before it), `stages` (A/A runs, screen, each look, replication, each when its turn comes) or `none`. It waits "
        "as long as it takes."
    ),
]
Sandbox = Annotated[
    str | None,
    typer.Option(
        help="Where clients and evaluators run: `docker` (the default where an engine answers) or `process`, which "
        "isolates nothing; AJET_SANDBOX sets another default.",
        show_default=False,
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Hand it to this machine's worker (`ajet up --work`) and return.")
]
Record = Annotated[Path | None, typer.Option(help=RECORD_HELP, dir_okay=False, show_default=False)]
Replay = Annotated[Path | None, typer.Option(help=REPLAY_HELP, dir_okay=False, show_default=False)]
