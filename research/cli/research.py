"""`ajet research`: a topic goes in, a report comes out."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from research.backends import require_backend
from research.budget import parse_budget
from research.cli.control import conduct, isolating
from research.cli.output import warn
from research.controllers import controlling
from research.errors import BadTopic, PlannerUnready
from research.home import Home
from research.planner import Planner, make_planner
from research.planner.actions import DEFAULT_EFFECT
from research.planner.requests import asks_for_power
from research.planner.rules import RulesPlanner, require_readable
from research.pricing import EVALUATION_EPISODES
from research.sandboxing import choose
from research.session import StudyRequest, create_study, new_study_id
from research.terms import DEFAULT_LOOKS, DEFAULT_POWER, Terms
from research.wanted import Wanted, topic_of
from studies import EventLog
from swarm.job import Job

DEFAULT_BUDGET = "12m"
RECORD_HELP = "Write what the language model says to this file; AJET_PLANNER_RECORD too. No key is in it."
REPLAY_HELP = "Take what the language model says from such a file, without a network; AJET_PLANNER_REPLAY too."


def refuse_model(name: str | None) -> None:
    """Refuse `--model`, which named the planner's model before the name was needed for the model that is trained."""
    if name is not None:
        raise PlannerUnready(
            f"expected --planner-model, which names the model that plans; found --model {name}; rename it"
        )


Topic = Annotated[str | None, typer.Argument(help="The question, in plain words.", show_default=False)]
Vary = Annotated[
    list[str],
    typer.Option(help="FIELD=VALUE,VALUE,... in place of a topic, the control first; repeatable.", show_default=False),
]
Held = Annotated[
    list[str], typer.Option("--set", help="FIELD=VALUE that all arms share, beside --vary.", show_default=False)
]
Env = Annotated[str | None, typer.Option(help="Environment, where the topic names none.", show_default=False)]
PlannerName = Annotated[str, typer.Option(help="Who plans: `rules`, or `llm` (any OpenAI-compatible endpoint).")]
PlannerModel = Annotated[str | None, typer.Option(help="Name of the language model that plans, for `--planner llm`.")]
OldModel = Annotated[str | None, typer.Option("--model", hidden=True, callback=refuse_model, expose_value=False)]
"""An option of old commands."""
WallClock = Annotated[str, typer.Option(help="Wall clock for the whole study: 90s, 10m, 2h, 1d.")]
MaxRuns = Annotated[int | None, typer.Option(min=4, help="Most training runs.")]
Effect = Annotated[
    float | None,
    typer.Option(
        help="Smallest difference of hidden success that matters, such as 0.05; smaller ones count as none.",
        show_default=f"{DEFAULT_EFFECT:g}",
    ),
]
Power = Annotated[
    float,
    typer.Option(help="Probability with which a difference of that size must be seen, or the design is refused."),
]
LookCount = Annotated[int, typer.Option(help="Most times the data are analysed; 1 for once, at the end.")]
Episodes = Annotated[int, typer.Option(help="Hidden episodes of each evaluation; more make less noise and cost time.")]


def research(
    topic: Topic = None,
    vary: Vary = [],  # noqa: B006  # typer's own copy
    held: Held = [],  # noqa: B006
    env: Env = None,
    planner: PlannerName = "rules",
    planner_model: PlannerModel = None,
    model: OldModel = None,
    budget: WallClock = DEFAULT_BUDGET,
    max_runs: MaxRuns = None,
    effect: Effect = None,
    power: Power = DEFAULT_POWER,
    looks: LookCount = DEFAULT_LOOKS,
    episodes: Episodes = EVALUATION_EPISODES,
    sandbox: Annotated[
        str | None,
        typer.Option(
            help="Where clients and evaluators run: `docker` (the default where an engine answers) or `process`, which "
            "isolates nothing; AJET_SANDBOX sets another default.",
            show_default=False,
        ),
    ] = None,
    record: Annotated[Path | None, typer.Option(help=RECORD_HELP, dir_okay=False, show_default=False)] = None,
    replay: Annotated[Path | None, typer.Option(help=REPLAY_HELP, dir_okay=False, show_default=False)] = None,
    prefect: Annotated[bool, typer.Option(help="Show the study in a local Prefect server.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, progress on stderr.")] = False,
) -> None:
    """Turn a topic into hypotheses, training runs, verdicts and a report.

    Everything runs on this machine: no GPU and no account is needed; with Docker, clients and evaluators run in
    containers without a network. Ctrl-C stops cleanly; `ajet study resume` goes on.

    Exit codes: 0 concluded; 2 bad input, or a machine that cannot do it; 3 stopped by its budget (what was measured is
    judged; `ajet study amend --budget` gives it more); 130 stopped by a person.

    Examples:

        ajet research "Does a larger group size make GRPO learn the guessing game faster?"

        ajet research "learning rate 1e-3 vs 3e-3 on arith" --budget 20m --max-runs 6

        ajet research --vary group_size=4,16 --set steps=80 --env guess --budget 20m

        ajet research "group size 4 vs 8 on arith" --effect 0.05 --budget 30m

        ajet research "group size 4 vs 8 on arith" --sandbox docker

        OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=x ajet research "..." --planner llm --planner-model NAME

        ajet research "..." --planner llm --replay conversation.jsonl

        ajet research "Does a denser reward help with sums?" --planner llm --planner-model NAME --sandbox docker
    """
    seconds, terms = parse_budget(budget), Terms.asked(effect, power, looks, episodes)
    wanted = Wanted.asked(vary, held, env)
    asked = topic_of(topic, wanted)
    if asks_for_power(asked):
        raise BadTopic(
            f"expected a question that training runs answer; found {asked!r}, which a table answers; see it with: "
            f"ajet study plan {shlex.quote(asked)}"
        )
    chosen = planning_by(wanted, planner, planner_model, record=record, replay=replay)
    if isinstance(chosen, RulesPlanner):
        require_readable(asked, wanted)
    require_backend(Job().backend)
    home = Home.locate().prepare()
    log = EventLog(home.database)
    isolation = isolating(json, lambda note: choose(sandbox, os.environ, home, note))
    study = new_study_id(asked)
    request = StudyRequest(
        asked,
        chosen.name,
        chosen.model,
        seconds,
        max_runs,
        tuple(sys.argv[1:]),
        isolation.sandboxing,
        terms,
        wanted,
    )
    with controlling(home, log, study, warn) as lease:
        create_study(log, study, request)
        conduct(home, log, study, chosen, lease=lease, isolation=isolation, prefect=prefect, json=json)


def planning_by(
    wanted: Wanted, name: str, model: str | None, *, record: Path | None = None, replay: Path | None = None
) -> Planner:
    """Return the planner of this name; raise BadTopic where flags say all that a planner would."""
    if wanted.vary and name != RulesPlanner.name:
        raise BadTopic(
            f"expected --vary without a planner, as it leaves nothing to plan; found --planner {name}; leave it out"
        )
    return make_planner(name, model, os.environ, record=record, replay=replay, note=warn)
