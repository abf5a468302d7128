"""`ajet research`: a topic goes in, a report comes out."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from research.cli.output import warn
from research.cli.study.request import (
    Approve,
    Backend,
    Detach,
    Effect,
    Env,
    Episodes,
    Held,
    JobFile,
    Judged,
    LookCount,
    MaxRuns,
    ModelPath,
    OtherServer,
    PlannerModel,
    PlannerName,
    Power,
    Record,
    Replay,
    Reward,
    Rounds,
    Sandbox,
    Shaped,
    Topic,
    Vary,
    WallClock,
)
from research.cli.study.run import conduct, detached, isolating, require_detachable
from research.design.estimates import EVALUATION_EPISODES
from research.design.requirements import DEFAULT_LOOKS, DEFAULT_POWER, StatisticalRequirements
from research.environments.record import requirements_of
from research.installation.home import Home
from research.isolation.mode import choose
from research.planner import Planner
from research.requests import DEFAULT_BUDGET, TopicRequest, begin_study, planner_of
from research.scheduling.approvals import ApprovalMode, approval_mode
from research.serving.handing import Giving, worker_of
from research.study.one_controller import controlling
from research.study.session import StudyRequest, new_study_id
from research.tracking.login import wandb_login
from studies import EventLog


def research(
    topic: Topic = None,
    vary: Vary = [],  # noqa: B006  # typer's own copy
    shape: Shaped = None,
    held: Held = [],  # noqa: B006
    env: Env = None,
    reward: Reward = None,
    job: JobFile = None,
    model_path: ModelPath = None,
    backend: Backend = None,
    planner: PlannerName = "rules",
    planner_model: PlannerModel = None,
    budget: WallClock = DEFAULT_BUDGET,
    max_runs: MaxRuns = None,
    metric: Judged = [],  # noqa: B006
    effect: Effect = None,
    power: Power = DEFAULT_POWER,
    looks: LookCount = DEFAULT_LOOKS,
    rounds: Rounds = None,
    episodes: Episodes = EVALUATION_EPISODES,
    approve: Approve = "none",
    sandbox: Sandbox = None,
    record: Record = None,
    replay: Replay = None,
    prefect: Annotated[bool, typer.Option(help="Show the study in a local Prefect server.")] = True,
    detach: Detach = False,
    server: OtherServer = None,
    json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, progress on stderr.")] = False,
) -> None:
    """Turn a topic into hypotheses, training runs, verdicts and a report.

    Everything runs on this machine: no GPU and no account is needed; with Docker, clients and evaluators run in
    containers without a network. Ctrl-C stops cleanly; `ajet study resume` goes on.

    Exit codes: 0 concluded, or judged on what its budget carried; 2 bad input, or a machine that cannot do it; 3
    stopped by its budget with nothing to judge (`ajet study amend --budget` gives it more); 130 stopped by a person.

    Examples:

        ajet research "Does a larger group size make GRPO learn the guessing game faster?"

        ajet research "learning rate 1e-3 vs 3e-3 on arith" --budget 20m --max-runs 6

        ajet research --vary group_size=4,16 --set steps=80 --env guess --budget 20m

        ajet research --vary learning_rate=0.001,0.003 --env guess --metric episodes:0.7 --budget 40m

        ajet research --vary group_size=4,16 --vary learning_rate=0.001,0.003 --as interaction --budget 1h

        ajet research "group size 4 vs 8 on arith" --effect 0.05 --budget 30m

        ajet research "group size 4 vs 8 on arith" --sandbox docker

        ajet research "group size 4 vs 8 on arith" --budget 2h --approve plan

        ajet research "learning rate 1e-5 vs 3e-5 on arith" --job job.json --model-path models/mine --budget 4h

        ajet research "group size 4 vs 8 on guess" --backend verl --model-path models/mine --budget 4h

        ajet research --vary model=models/mine,models/theirs --env arith --budget 4h

        OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=x ajet research "..." --planner llm --planner-model NAME

        ajet research "..." --planner llm --replay conversation.jsonl

        ajet research "learning rate 1e-3 vs 3e-3 on arith" --budget 4h --detach

        ajet research "Does a denser reward help with sums?" --planner llm --planner-model NAME --sandbox docker
    """
    asks = approval_mode(approve)
    requirements = StatisticalRequirements.asked(effect, power, looks, episodes, metric, rounds)
    request = TopicRequest.read(
        topic, vary, held, env, reward, requirements, budget, max_runs, job, model_path,
        backend=backend, shape=shape, note=warn,
    )  # fmt: skip
    chosen = planner_of(request, planner, planner_model, record=record, replay=replay, note=warn)
    if detach:
        require_detachable(record, replay, prefect=prefect)
    give = worker_of(Home.locate().prepare()) if detach else None
    _begin(request, chosen, sandbox, asks, give, prefect=prefect, json=json)


def _begin(
    request: TopicRequest,
    planner: Planner,
    sandbox: str | None,
    approve: ApprovalMode,
    give: Giving | None,
    *,
    prefect: bool,
    json: bool,
) -> None:
    """Create the study that was asked for, and give it to the worker, or drive it to its end as its controller."""
    home = Home.locate().prepare()
    log = EventLog(home.database)
    needs = requirements_of(request.requested.brought)
    isolation = isolating(json, lambda note: choose(sandbox, os.environ, home, note, needs))
    study = new_study_id(request.topic)
    created = StudyRequest(
        request.topic, planner.name, planner.model, request.budget_s, request.max_runs, tuple(sys.argv[1:]),
        isolation.sandboxing, request.requirements, request.requested, request.base, approve,
        wandb_login(os.environ).online, served=give is not None,
    )  # fmt: skip
    if give is not None:
        with controlling(home, log, study, warn):  # so that it is this installation's, whatever becomes of its flow run
            begin_study(home, log, study, created)
        detached(give, study, json)
        return
    with controlling(home, log, study, warn) as lease:
        begin_study(home, log, study, created)
        conduct(home, log, study, planner, lease=lease, isolation=isolation, prefect=prefect, json=json)
