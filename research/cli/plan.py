"""`ajet study plan`: what a study would be, could see and would cost, without running it."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from rich.table import Table
from rich.text import Text

from research.cli.app import Json, answer, make_table, show_progress, takes_options
from research.controller import options
from research.controller.preview import PlanPreview, preview_study
from research.errors import DesignRefused, TopicDeclined
from research.installation.base_job import require_known
from research.installation.home import Home
from research.planners.rules import RulesPlanner
from research.shown.plan import Fact, describe_plan
from research.text import warn
from studies import EventLog
from swarm.job import Job


@takes_options(options.ResearchOptions, omit={"approve", "sandbox"})
def plan(asked: options.ResearchOptions, json: Json = False) -> None:
    """Show what a study would be, what it could see and what it would cost; nothing is run.

    Its flags mean what they mean to `ajet research`. Exit code 2 where the design would be refused, with the reason and
    what would do on the last line.

    Examples:
        ajet study plan "Does a larger group size make GRPO learn the guessing game faster?"
        ajet study plan "learning rate 1e-3 vs 3e-3" --env arith --effect 0.05 --budget 30m
        ajet study plan --vary group_size=4,16 --set steps=80 --env guess
        ajet study plan --vary learning_rate=0.001,0.003 --env guess --metric episodes:0.6
        ajet study plan --vary group_size=4,16 --vary learning_rate=0.001,0.003 --as interaction
        ajet study plan "group size 4 vs 8" --json
    """
    asked = asked.with_fetched_model(warn)
    request = options.make_request(asked, warn)
    require_known((request.base or Job()).backend)
    chosen = options.select_planner(request, warn)
    if isinstance(chosen, RulesPlanner):
        options.require_understood(request, options.ask_on_terminal, asked, "study plan")
    home = Home.locate().prepare()
    with show_progress(json, "planning"):
        try:
            seen = preview_study(home, EventLog(home.database), request, chosen)
        except TopicDeclined as end:
            message = {"by": end.said.by, "reason": end.said.text}
            answer(json, {"accepted": False, "declined": message}, Text(f"declined  {end.message}"))
            return
    answer(json, as_json(seen), screen(seen))
    if seen.refused is not None:
        raise DesignRefused(seen.refused)


def screen(seen: PlanPreview) -> Iterator[Text | Table]:
    for part in describe_plan(seen):
        if isinstance(part, Fact):
            name = "  " * part.inset + (f"{part.name}  " if part.name else "    " * part.inset)
            if part.name in ("asked", "tested"):
                yield Text.assemble((name, "dim"), (part.text, "italic" if part.name == "asked" else ""))
            else:
                yield Text(f"{name}{part.text}", "yellow" if part.warns else "")
            continue
        yield Text(f"\n{part.caption}")
        table = make_table(part.names, (), right=part.right)
        for index, row in enumerate(part.rows):
            table.add_row(*row, style=part.styles[index] if part.styles else "")
        yield table


_FOR_PEOPLE = ("requested_metric", "requested_episodes", "budget")
_THROWN_AWAY: Any = {"seeds": True, "screen": {"seed"}, "replication": {"seeds"}}
"""Seeds that a plan's design was compiled with: a study draws its own."""


def as_json(seen: PlanPreview) -> dict[str, Any]:
    facts = {field.name: getattr(seen, field.name) for field in fields(seen) if field.name not in _FOR_PEOPLE}
    return facts | {"design": seen.design.model_dump(mode="json", exclude=_THROWN_AWAY) if seen.design else None}
