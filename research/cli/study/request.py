"""The options that `ajet research` and `ajet study plan` share, read into one request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from research.cli.output import warn
from research.design.requirements import StatisticalRequirements
from research.durations import parse_budget
from research.errors import BadTopic, PlannerUnready
from research.planner import Planner
from research.planners.factory import make_planner
from research.proposals.actions import DEFAULT_EFFECT
from research.proposals.flags import RequestedComparison, topic_of
from research.rule_planner.planner import RulesPlanner

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
Sandbox = Annotated[
    str | None,
    typer.Option(
        help="Where clients and evaluators run: `docker` (the default where an engine answers) or `process`, which "
        "isolates nothing; AJET_SANDBOX sets another default.",
        show_default=False,
    ),
]
Record = Annotated[Path | None, typer.Option(help=RECORD_HELP, dir_okay=False, show_default=False)]
Replay = Annotated[Path | None, typer.Option(help=REPLAY_HELP, dir_okay=False, show_default=False)]


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """What is to be studied, under which requirements, within which budget."""

    topic: str
    requested: RequestedComparison
    """What flags ask for, in the place of a topic or beside it."""
    requirements: StatisticalRequirements
    budget_s: float
    max_runs: int | None

    @classmethod
    def read(
        cls,
        topic: str | None,
        vary: Sequence[str],
        held: Sequence[str],
        environment: str | None,
        requirements: StatisticalRequirements,
        budget: str,
        max_runs: int | None,
    ) -> TopicRequest:
        """Return the request that options make; raise BadBudget or BadTopic."""
        comparison = RequestedComparison.asked(vary, held, environment)
        return cls(topic_of(topic, comparison), comparison, requirements, parse_budget(budget), max_runs)


def planning_by(
    wanted: RequestedComparison, name: str, model: str | None, *, record: Path | None = None, replay: Path | None = None
) -> Planner:
    """Return the planner of this name; raise BadTopic where flags say all that a planner would."""
    if wanted.vary and name != RulesPlanner.name:
        raise BadTopic(
            f"expected --vary without a planner, as it leaves nothing to plan; found --planner {name}; leave it out"
        )
    return make_planner(name, model, os.environ, record=record, replay=replay, note=warn)
