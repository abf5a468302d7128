"""`ajet research`: create, run, show, say how it ended.

A study that runs is one line per change; on a terminal, what trains now stands below. What is shown is read from the
study's state and the attempts' progress files; it decides nothing.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer
from rich.text import Text

from research.cli.app import answer, console, print_json, show_progress, takes_options
from research.cli.studies import render_ending
from research.controller import options
from research.controller.controller import Observer, budget_left
from research.controller.progress import progress_lines, progress_of, verdict_key
from research.controller.session import Session, StudyRequest, begin_served, begin_study, hold_lease, new_study_id
from research.controller.wandb import wandb_login
from research.environments.catalog import requirements_of
from research.errors import BadInput
from research.files import ignore_disk_full
from research.installation.base_job import describe_unusual_rate, require_job
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.isolation.mode import UNISOLATED, Isolation, choose
from research.orchestration.handover import PrefectView, find_worker, prepare_prefect
from research.orchestration.server import PrefectUnavailable
from research.orchestration.supervision import pages_address, pages_line
from research.planners.context import Planner
from research.runs.files import AttemptFolder, read_progress
from research.scheduler.required_runs import is_stopped_by_budget
from research.shown.study import describe_pause, summary
from research.text import format_seconds, strip_control_chars, warn
from studies import EventLog, RunState, StudyState, fold
from studies.log.locks import ControllerLease
from studies.proof import verdict_fault

Progress = Mapping[str, Any]
ReadProgress = Callable[[RunState], Progress]


@dataclass(eq=False)
class LineLog:
    """One line per change, and to `show` what goes on now."""

    write: Callable[[str], None]
    budget_left: Callable[[StudyState], float]
    doubts: Mapping[str, str] = field(default_factory=dict)
    show: Callable[[StudyState], None] | None = None
    _seen: set[str] = field(default_factory=set)
    _paused: bool = False

    def observe(self, state: StudyState) -> None:
        before = not self._seen and any(run.attempts for run in state.every_run.values())  # the study is not new
        when = "earlier" if before else f"{format_seconds(self.budget_left(state))} left"
        for key, line in progress_lines(state, self.doubts):
            if key not in self._seen:
                self._seen.add(key)
                self.write(f"[{when}] {line}")
        if self._paused != (now := state.status == "paused"):
            self._paused = now
            self.write(describe_pause(state) if now else f"study {state.id} is paused no more")
        if self.show is not None:
            self.show(state)

    def note(self, line: str) -> None:
        if line not in self._seen:
            self._seen.add(line)
            self.write(line)


def describe_now(state: StudyState, left_s: float, read: ReadProgress) -> str:
    """Return how far a study is, what is left of its budget, and which runs train, in a line."""
    told = [f"{progress_of(state)}; {format_seconds(left_s)} of the budget left"]
    for run in (run for run in state.runs.values() if run.active is not None):
        progress = read(run)
        steps = int(progress.get("steps") or run.spec.job["steps"])
        told.append(f"{run.spec.arm}, seed {run.spec.seed}: {progress.get('step') or 0} of {steps}")
    return "; ".join(told)


BUDGET_ENDED = 3
INTERRUPTED = 130


def conduct(
    home: Home, log: EventLog, study: str, planner: Planner, *, lease: ControllerLease,
    isolation: Isolation = UNISOLATED, prefect: bool, json: bool,
) -> None:  # fmt: skip
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
            view = PrefectView(home, begun, say, warn)
    mirror = options.make_mirror(home, begun, say, warn)
    session = Session(home, log, study, planner, isolation, lease.check, mirror)
    if not json and pages_address(home):
        console().print(pages_line(home, study))
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
        console().print(pages_line(home, study))
        if view is not None and view.own:
            console().print(f"prefect  goes on at {view.url}, for this study and the next; end it with: ajet up --stop")
    if state.status == "stopped" and not is_stopped_by_budget(state):
        raise typer.Exit(INTERRUPTED)
    judged = any(verdict.verdict != "invalid" for each in state.rounds for verdict in each.verdicts)
    if state.status == "stopped" and not judged:  # what a budget carried to a verdict is an end as any other
        raise typer.Exit(BUDGET_ENDED)


def require_detachable(*, prefect: bool) -> None:
    if not prefect:
        raise BadInput(
            "expected --detach without --no-prefect, as it is through Prefect that the worker is given a study; leave "
            "one of the two out"
        )


def tell_handed_over(home: Home, study: str, address: str, *, json: bool) -> None:
    told = f"study {study} is the worker's now: {address}", f"follow it with: ajet study watch {study}"
    answer(json, {"study": study, "flow_run": address}, *told, pages_line(home, study))


def choose_isolation(json: bool, find: Callable[[Note], Isolation]) -> Isolation:
    """Return what `find` finds, showing what it notes: a client image may have to be made first."""
    with show_progress(json, "looking for a container engine"):
        found = find(warn if json else console().print)
    if found.sandboxing.kind == "docker" and not json:
        console().print(f"sandbox     {found.sandboxing.describe()}")
    return found


def make_observer(home: Home, state: StudyState, *, json: bool = False) -> tuple[Observer, AbstractContextManager[Any]]:
    """Return what tells a study in lines, and its context; verdicts must follow to be shown."""
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
        below = console().status("")

        def show(state: StudyState) -> None:
            line = Text(describe_now(state, budget_left(state), read), no_wrap=True, overflow="ellipsis")
            below.update(line)

        return LineLog(lambda line: console().print(strip_control_chars(line)), budget_left, doubts, show), below
    stream = sys.stderr if json else sys.stdout

    def write(line: str) -> None:
        stream.write(strip_control_chars(line) + "\n")
        stream.flush()

    return LineLog(ignore_disk_full(write), budget_left, doubts), nullcontext()


@takes_options(options.ResearchOptions)
def research(
    asked: options.ResearchOptions,
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
        ajet research "group size 4 vs 8 on arith" --effect 0.05 --budget 2h --approve plan
        ajet research --model smollm2-135m
        ajet research "learning rate 1e-5 vs 3e-5 on arith" --job job.json --model models/mine --budget 4h
        ajet research "group size 4 vs 8 on guess" --backend verl --model models/mine --budget 4h
        ajet research --vary model=models/mine,models/theirs --env arith --budget 4h
        OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=x ajet research "..." --planner llm --planner-model NAME
        ANTHROPIC_API_KEY=... ajet research "..." --planner llm --planner-model NAME --planner-max-tokens 500000
        AJET_PLANNER_REPLAY=conversation.jsonl ajet research "..." --planner llm
        ajet research "learning rate 1e-3 vs 3e-3 on arith" --budget 4h --detach --sandbox docker
        ajet research "Does a denser reward help with sums?" --planner llm --planner-model NAME --sandbox docker
    """
    asked = asked.with_fetched_model(warn)
    request = options.make_request(asked, warn)
    planner = options.require_planner(request, warn, ask=options.ask_on_terminal, asked=asked)
    begin(request, planner, asked.sandbox, prefect=prefect, detach=detach, json=json)


def begin(
    request: StudyRequest, planner: Planner, sandbox: str | None, *, prefect: bool, detach: bool, json: bool
) -> None:
    if detach:
        require_detachable(prefect=prefect)
    home = Home.locate().prepare()
    give = find_worker(home) if detach else None
    log = EventLog(home.database)
    needs = requirements_of(request.requested.custom_environments)
    isolation = choose_isolation(json, lambda note: choose(sandbox, os.environ, home, note, needs))
    created = replace(
        request, planner=planner.name, model=planner.model, command=tuple(sys.argv[1:]), sandbox=isolation.sandboxing,
        wandb=wandb_login(os.environ).online,
    )  # fmt: skip
    if give is not None:
        tell_handed_over(home, *begin_served(home, log, created, give, warn), json=json)
        return
    study = new_study_id(request.topic)
    with hold_lease(home, log, study, warn) as lease:
        begin_study(home, log, study, created)
        conduct(home, log, study, planner, lease=lease, isolation=isolation, prefect=prefect, json=json)
