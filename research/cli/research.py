"""`ajet research`: create, run, say how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from research.cli.app import answer, console, print_json, show_progress, takes_options
from research.cli.progress import LineLog, LiveScreen, Progress
from research.cli.studies import render_ending, summary
from research.controller import options
from research.controller.controller import Observer, budget_left
from research.controller.progress import verdict_key
from research.controller.session import Session, hold_lease, new_study_id
from research.controller.wandb import wandb_login
from research.environments.reference import requirements_of
from research.errors import BadInput
from research.files import ignore_disk_full
from research.installation.base_job import describe_unusual_rate, require_job
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.isolation.mode import UNISOLATED, Isolation, choose
from research.orchestration.server import PrefectUnavailable, client_settings, require_prefect
from research.planners.context import Planner
from research.runs.files import AttemptFolder, read_progress
from research.scheduler.required_runs import is_stopped_by_budget
from research.terminal import strip_control_chars, warn
from studies import EventLog, RunState, StudyState, fold
from studies.log.locks import ControllerLease
from studies.proof import verdict_fault

if TYPE_CHECKING:
    from research.orchestration.deployment import ScheduleStudy
    from research.orchestration.projection import PrefectView

BUDGET_ENDED = 3
INTERRUPTED = 130


def conduct(
    home: Home,
    log: EventLog,
    study: str,
    planner: Planner,
    *,
    lease: ControllerLease,
    isolation: Isolation = UNISOLATED,
    prefect: bool,
    json: bool,
) -> None:
    """Drive a study to its end, showing its progress; raise typer.Exit unless it was concluded."""
    say = warn if json else console().print
    begun = fold(log.read(study))
    view: PrefectView | None = None
    if prefect:
        try:
            prepare_prefect(home)
        except PrefectUnavailable as error:
            warn(f"{error}; the study goes on without Prefect's view")
        else:
            from research.orchestration.projection import PrefectView

            view = PrefectView(home, begun, say, warn)
    mirror = options.make_mirror(home, begun, say, warn)
    session = Session(home, log, study, planner, isolation, lease.check, mirror)
    try:
        with view or nullcontext(), mirror or nullcontext():
            with show_progress(json, "planning"):
                planned = session.plan()
            records = [] if planned.noise_plan is None else [planned.noise_plan.job]
            if (design := planned.design) is not None:
                records = [{**design.base_job, **arm.job_overrides} for arm in design.arms]
            for odd in dict.fromkeys(filter(None, map(describe_unusual_rate, map(require_job, records)))):
                warn(odd)
            observer, shown = make_observer(home, planned, json=json)
            with shown:
                observer.observe(planned)
                state = session.run(observer)
    except KeyboardInterrupt:
        warn(
            f"left at once; runs that were started go on. Go on with: ajet study resume {study}; or end them: "
            f"ajet study stop {study}"
        )
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json({**summary(state, home.study(study)), "prefect": view.url if view else None})
    else:
        console().print(render_ending(state, home.study(study)))
        if view is not None and view.own:
            console().print(f"prefect  goes on at {view.url}, for this study and the next; end it with: ajet up --stop")
    if state.status == "stopped" and not is_stopped_by_budget(state):
        raise typer.Exit(INTERRUPTED)
    judged = any(verdict.verdict != "invalid" for each in state.rounds for verdict in each.verdicts)
    if state.status == "stopped" and not judged:  # what a budget carried to a verdict is an end as any other
        raise typer.Exit(BUDGET_ENDED)


def require_detachable(planner_timeout: float | None = None, *, prefect: bool) -> None:
    """Raise BadInput where a study cannot be handed to a worker as it is asked for."""
    if not prefect:
        raise BadInput(
            "expected --detach without --no-prefect, as it is through Prefect that the worker is given a study; leave "
            "one of the two out"
        )
    if planner_timeout is not None:
        raise BadInput(
            "expected --detach without --planner-timeout, as the worker plans in its own process; leave it out, or set "
            "AJET_PLANNER_TIMEOUT where the worker is started"
        )


def prepare_prefect(home: Home) -> None:
    """Set what Prefect reads once, when it is first imported; raise PrefectUnavailable where it is not installed."""
    require_prefect()
    os.environ.update(client_settings(home.prefect))


def find_worker(home: Home) -> ScheduleStudy:
    """Return the way to the worker; raise NotReady where there is none."""
    prepare_prefect(home)
    from research.orchestration.deployment import worker_scheduler

    return worker_scheduler(home)


def hand_to_worker(give: ScheduleStudy, study: str, json: bool) -> None:
    address = give(study)
    said = f"study {study} is the worker's now: {address}"
    answer(json, {"study": study, "flow_run": address}, said, f"follow it with: ajet study watch {study}")


def choose_isolation(json: bool, find: Callable[[Note], Isolation]) -> Isolation:
    """Return what `find` finds, showing what it notes: a client image may have to be made first."""
    with show_progress(json, "looking for a container engine"):
        found = find(warn if json else console().print)
    if found.sandboxing.kind == "docker" and not json:
        console().print(f"sandbox     {found.sandboxing.describe()}")
    return found


def make_observer(home: Home, state: StudyState, *, json: bool = False) -> tuple[Observer, AbstractContextManager[Any]]:
    """Return a live screen, or lines where there is no terminal, and its context; verdicts must follow to be shown."""
    folder = home.study(state.id)
    reasons = {
        verdict_key(v): verdict_fault(each, folder, v)
        for each in state.rounds
        for v in (*each.verdicts, *each.replications)
    }
    doubts = {key: reason for key, reason in reasons.items() if reason is not None}

    def read(run: RunState) -> Progress:
        assert run.active is not None
        folder = AttemptFolder(home.attempt(state.id, run.run_id, run.active.number))
        progress = read_progress(folder)
        return progress.model_dump() if progress is not None else {}

    if not json and console().is_terminal:
        live = LiveScreen(console(), budget_left, read, doubts)
        return live, live
    stream = sys.stderr if json else sys.stdout

    def write(line: str) -> None:
        stream.write(strip_control_chars(line) + "\n")
        stream.flush()

    return LineLog(ignore_disk_full(write), budget_left, doubts), nullcontext()


@takes_options(options.ResearchOptions)
def research(
    asked: options.ResearchOptions,
    planner_timeout: options.PlannerTimeout = None,
    prefect: Annotated[bool, typer.Option(help="Show the study in a local Prefect server.")] = True,
    detach: options.Detach = False,
    json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, progress on stderr.")] = False,
) -> None:
    """Turn a topic into hypotheses, training runs, verdicts and a report.

    Everything runs on this machine: no GPU and no account is needed; with Docker, clients and evaluators run in
    containers without a network. Ctrl-C stops cleanly; `ajet study resume` goes on.

    Exit codes: 0 concluded, or judged on what its budget carried; 2 bad input, or a machine that cannot do it; 3
    stopped by its budget with nothing to judge (`ajet study amend --budget` gives it more); 130 stopped by a person.

    Examples:

        ajet research "Does a larger group size make GRPO learn the guessing game faster?"

        ajet research "Does a larger group size make GRPO learn the guessing game faster?" --explore

        ajet research "learning rate 1e-3 vs 3e-3 on arith" --budget 20m --max-runs 12

        ajet research --vary group_size=4,16 --set steps=80 --env guess --budget 20m

        ajet research --vary learning_rate=0.001,0.003 --env guess --metric episodes:0.6 --budget 40m

        ajet research --vary group_size=4,16 --vary learning_rate=0.001,0.003 --as interaction --budget 1h

        ajet research "group size 4 vs 8 on arith" --effect 0.05 --budget 30m

        ajet research "group size 4 vs 8 on arith" --sandbox docker

        ajet research "group size 4 vs 8 on arith" --budget 2h --approve plan

        ajet research "learning rate 1e-5 vs 3e-5 on arith" --job job.json --model-path models/mine --budget 4h

        ajet research "group size 4 vs 8 on guess" --backend verl --model-path models/mine --budget 4h

        ajet research --vary model=models/mine,models/theirs --env arith --budget 4h

        OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=x ajet research "..." --planner llm --planner-model NAME

        AJET_PLANNER_REPLAY=conversation.jsonl ajet research "..." --planner llm

        ajet research "learning rate 1e-3 vs 3e-3 on arith" --budget 4h --detach

        ajet research "Does a denser reward help with sums?" --planner llm --planner-model NAME --sandbox docker
    """
    request = options.make_request(asked, warn)
    planner = options.require_planner(request, warn, planner_timeout, ask=options.ask_on_terminal, asked=asked)
    if detach:
        require_detachable(planner_timeout, prefect=prefect)
    home = Home.locate().prepare()
    give = find_worker(home) if detach else None
    log = EventLog(home.database)
    needs = requirements_of(request.requested.custom_environments)
    isolation = choose_isolation(json, lambda note: choose(asked.sandbox, os.environ, home, note, needs))
    study = new_study_id(request.topic)
    created = replace(
        request, planner=planner.name, model=planner.model, command=tuple(sys.argv[1:]), sandbox=isolation.sandboxing,
        wandb=wandb_login(os.environ).online, served=give is not None,
    )  # fmt: skip
    if give is not None:
        with hold_lease(home, log, study, warn):  # so that it is this installation's, whatever becomes of its flow run
            options.begin_study(home, log, study, created)
        hand_to_worker(give, study, json)
        return
    with hold_lease(home, log, study, warn) as lease:
        options.begin_study(home, log, study, created)
        conduct(home, log, study, planner, lease=lease, isolation=isolation, prefect=prefect, json=json)
