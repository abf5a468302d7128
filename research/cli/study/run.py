"""What `ajet research` and `ajet study resume` share: show it in Prefect, show progress, say how it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import typer

from research.cli.output import bare, console, print_json, warn
from research.cli.study.prompt import prompting
from research.cli.study.shown.progress import LineLog, LiveScreen, Progress
from research.cli.study.shown.summary import ending, summary
from research.errors import BadParameters
from research.installation.base_job import far_off
from research.installation.disk import unless_full
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.isolation.mode import UNISOLATED, Isolation
from research.orchestration import PrefectView
from research.planner import Planner
from research.requests.copies import mirror_of
from research.results.attempt_files import AttemptFolder, read_progress
from research.scheduling.required_runs import stopped_by_budget
from research.serving.handing import Giving
from research.study.controller import budget_left
from research.study.driver import Observer
from research.study.progress_lines import verdict_key
from research.study.session import Session
from research.tracking.mirror import NO_MIRROR
from studies import EventLog, RunState, StudyLog, StudyState, fold
from studies.log.leases import ControllerLease
from studies.proof import doubt
from swarm.job import Job

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
    view = PrefectView(home, begun, say, warn) if prefect else None
    mirror = mirror_of(home, begun, say, warn)
    session = Session(home, log, study, planner, isolation, lease.check, mirror or NO_MIRROR)
    try:
        with view or nullcontext(), mirror or nullcontext():
            with _spinner("planning", json):
                planned = session.plan()
            for odd in dict.fromkeys(filter(None, map(far_off, _jobs_of(planned)))):
                warn(odd)
            observer, shown = watching(home, planned, json=json)
            observer = prompting(observer, StudyLog(log, study), console())
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
        console().print(ending(state, home.study(study)))
        if view is not None and view.own:
            console().print(f"prefect  goes on at {view.url}, for this study and the next; end it with: ajet up --stop")
    if state.status == "stopped" and (code := _code_of_stop(state)):
        raise typer.Exit(code)


def _code_of_stop(state: StudyState) -> int:
    """Return the exit code of a study that is stopped: what a budget carried to a verdict is an end as any other."""
    if not stopped_by_budget(state):
        return INTERRUPTED
    judged = any(verdict.verdict != "invalid" for each in state.rounds for verdict in each.verdicts)
    return 0 if judged else BUDGET_ENDED


def _jobs_of(state: StudyState) -> Iterator[Job]:
    """Yield the jobs that are planned: of each arm, or of the runs before the design."""
    if (design := state.design) is not None:
        yield from (Job.recorded({**design.base_job, **arm.job_overrides}) for arm in design.arms)
    elif state.noise_plan is not None:
        yield Job.recorded(state.noise_plan.job)


def require_detachable(record: Path | None = None, replay: Path | None = None, *, prefect: bool) -> None:
    """Raise BadParameters where a study cannot be handed over as it is asked for.

    A worker takes it through Prefect, and takes no planner's conversation to or from a file.
    """
    if not prefect:
        raise BadParameters(
            "expected --detach without --no-prefect, as it is through Prefect that the worker is given a study; leave "
            "one of the two out"
        )
    if record is not None or replay is not None:
        raise BadParameters(
            "expected --detach without --record and --replay, as the worker plans in its own process; leave them out, "
            "or set AJET_PLANNER_RECORD or AJET_PLANNER_REPLAY where it is started"
        )


def detached(give: Giving, study: str, json: bool) -> None:
    """Give a study to the worker, and say where it is seen."""
    address = give(study)
    if json:
        print_json({"study": study, "flow_run": address})
    else:
        console().print(f"study {study} is the worker's now: {address}\nfollow it with: ajet study watch {study}")


def isolating(json: bool, find: Callable[[Note], Isolation]) -> Isolation:
    """Return what `find` finds, showing what it notes: a client image may have to be made first."""
    with _spinner("looking for a container engine", json):
        found = find(warn if json else console().print)
    if found.sandboxing.kind == "docker" and not json:
        console().print(f"sandbox     {found.sandboxing.described()}")
    return found


def _spinner(text: str, json: bool) -> AbstractContextManager[Any]:
    return nullcontext() if json or not console().is_terminal else console().status(text)


def watching(home: Home, state: StudyState, *, json: bool = False) -> tuple[Observer, AbstractContextManager[Any]]:
    """Return what shows the progress of a study: a live screen on a terminal, lines elsewhere.

    Use the second as a context. Verdicts that stand and do not follow are not shown as such.
    """
    folder = home.study(state.id)
    reasons = {
        verdict_key(v): doubt(each, folder, v) for each in state.rounds for v in (*each.verdicts, *each.replications)
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
        stream.write(bare(line) + "\n")
        stream.flush()

    return LineLog(unless_full(write), budget_left, doubts), nullcontext()
