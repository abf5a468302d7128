"""`ajet research`: a topic goes in, a report comes out."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from research.cli.output import warn
from research.cli.study.request import (
    DEFAULT_BUDGET,
    Effect,
    Env,
    Episodes,
    Held,
    JobFile,
    Judged,
    LookCount,
    MaxRuns,
    ModelPath,
    OldModel,
    PlannerModel,
    PlannerName,
    Power,
    Record,
    Replay,
    Reward,
    Sandbox,
    Topic,
    TopicRequest,
    Vary,
    WallClock,
    planning_by,
)
from research.cli.study.run import conduct, isolating
from research.design.estimates import EVALUATION_EPISODES
from research.design.requirements import DEFAULT_LOOKS, DEFAULT_POWER, StatisticalRequirements
from research.environments.record import requirements_of
from research.errors import BadTopic
from research.installation.backends import require_backend
from research.installation.home import Home
from research.isolation.mode import choose
from research.models.checking import checks_in
from research.planner import Planner
from research.rule_planner.planner import RulesPlanner, require_readable
from research.study.one_controller import controlling
from research.study.session import StudyRequest, create_study, new_study_id
from research.topic.requests import asks_for_power
from research.tracking.login import wandb_login
from studies import EventLog
from swarm.job import Job


def research(
    topic: Topic = None,
    vary: Vary = [],  # noqa: B006  # typer's own copy
    held: Held = [],  # noqa: B006
    env: Env = None,
    reward: Reward = None,
    job: JobFile = None,
    model_path: ModelPath = None,
    planner: PlannerName = "rules",
    planner_model: PlannerModel = None,
    model: OldModel = None,
    budget: WallClock = DEFAULT_BUDGET,
    max_runs: MaxRuns = None,
    metric: Judged = [],  # noqa: B006
    effect: Effect = None,
    power: Power = DEFAULT_POWER,
    looks: LookCount = DEFAULT_LOOKS,
    episodes: Episodes = EVALUATION_EPISODES,
    sandbox: Sandbox = None,
    record: Record = None,
    replay: Replay = None,
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

        ajet research --vary learning_rate=0.001,0.003 --env guess --metric episodes:0.7 --budget 40m

        ajet research "group size 4 vs 8 on arith" --effect 0.05 --budget 30m

        ajet research "group size 4 vs 8 on arith" --sandbox docker

        ajet research "learning rate 1e-5 vs 3e-5 on arith" --job job.json --model-path models/mine --budget 4h

        ajet research --vary model=models/mine,models/theirs --env arith --budget 4h

        OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=x ajet research "..." --planner llm --planner-model NAME

        ajet research "..." --planner llm --replay conversation.jsonl

        ajet research "Does a denser reward help with sums?" --planner llm --planner-model NAME --sandbox docker
    """
    requirements = StatisticalRequirements.asked(effect, power, looks, episodes, metric)
    request = TopicRequest.read(topic, vary, held, env, reward, requirements, budget, max_runs, job, model_path)
    chosen = _planner_for(request, planner, planner_model, record, replay)
    _begin(request, chosen, sandbox, prefect=prefect, json=json)


def _begin(request: TopicRequest, planner: Planner, sandbox: str | None, *, prefect: bool, json: bool) -> None:
    """Create the study that was asked for, as its controller, and drive it to its end."""
    home = Home.locate().prepare()
    log = EventLog(home.database)
    needs = requirements_of(request.requested.brought)
    isolation = isolating(json, lambda note: choose(sandbox, os.environ, home, note, needs))
    study = new_study_id(request.topic)
    created = StudyRequest(
        request.topic, planner.name, planner.model, request.budget_s, request.max_runs, tuple(sys.argv[1:]),
        isolation.sandboxing, request.requirements, request.requested, request.base, wandb_login(os.environ).online,
    )  # fmt: skip
    with controlling(home, log, study, warn) as lease:
        create_study(log, study, created, checks_in(home.models))
        conduct(home, log, study, planner, lease=lease, isolation=isolation, prefect=prefect, json=json)


def _planner_for(
    request: TopicRequest, name: str, model: str | None, record: Path | None, replay: Path | None
) -> Planner:
    """Return the planner of a study on this request; refuse what no study could answer, before anything is begun."""
    topic = request.topic
    if asks_for_power(topic):
        raise BadTopic(
            f"expected a question that training runs answer; found {topic!r}, which a table answers; see it with: "
            f"ajet study plan {shlex.quote(topic)}"
        )
    chosen = planning_by(request.requested, name, model, record=record, replay=replay)
    if isinstance(chosen, RulesPlanner):
        require_readable(topic, request.requested, request.base, request.requirements.metric)
    require_backend((request.base or Job()).backend)
    return chosen
