"""`ajet study watch`, `resume`, `pause` and `stop`."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from research.cli.output import console, print_json, warn
from research.cli.study.request import Detach
from research.cli.study.run import conduct, detached, isolating, require_detachable, watching
from research.cli.study.shown.finding import Json, Name, found
from research.cli.study.shown.summary import ending, summary
from research.errors import NotRunning, StudyBusy
from research.installation.home import Home
from research.requests import isolation_again, planner_again
from research.scheduling.next_step import is_done
from research.serving.handing import worker_of
from research.study.one_controller import controlling, is_driven_beside
from research.study.stop import request_continue, request_pause, request_stop
from studies import EventLog, EventType, StudyLog, StudyState, fold
from studies.log.fold import SERVED, WORKED

LOOK_S = 1.0
"""Seconds between two looks at a study that is watched."""


def watch(name: Name = None) -> None:
    """Follow a study until it ends; it is not stopped when you leave.

    Example:

        ajet study watch
    """
    home, log, state = found(name)
    observer, shown = watching(home, state)
    record = StudyLog(log, state.id)  # reads only what is new
    with shown:
        while not is_done(state):
            observer.observe(state)
            time.sleep(LOOK_S)
            state = record.state()
        observer.observe(state)
    console().print(ending(state, home.study(state.id)))


def resume(
    name: Name = None,
    prefect: Annotated[bool, typer.Option(help="Show the study in a local Prefect server.")] = True,
    detach: Detach = False,
    json: Json = False,
) -> None:
    """Go on with a study that was paused or stopped, or whose controller was killed; runs that go on are adopted.

    Exit codes: 0 concluded, or judged on what its budget carried; 2 bad input, or a machine that cannot do it; 3
    stopped by its budget with nothing to judge (`ajet study amend --budget` gives it more); 130 stopped by a person.

    Examples:

        ajet study resume

        ajet study resume larger-group --no-prefect

        ajet study resume larger-group --detach
    """
    home, log, state = found(name)
    if state.status == "concluded" and is_done(state):
        _show_end(home, state, json)
        return
    home.prepare()
    command = ["ajet", *sys.argv[1:]]
    if detach:
        require_detachable(prefect=prefect)
        if state.stopped_reason is None and is_driven_beside(home, log, state.id):
            request_continue(log, state.id, command)
            _show_going_on(home, log, state.id, json)
        else:
            detached(worker_of(home), state.id, json)
        return
    planner = planner_again(home, log, state)
    isolation = isolating(json, lambda note: isolation_again(home, state, note))
    try:
        with controlling(home, log, state.id, warn) as lease:
            said = {"command": command, WORKED: 0.0, SERVED: False}
            StudyLog(log, state.id).change(lambda state: (EventType.STUDY_RESUMED, said), actor="user")
            conduct(home, log, state.id, planner, lease=lease, isolation=isolation, prefect=prefect, json=json)
    except StudyBusy:
        if not request_continue(log, state.id, command):
            raise
        _show_going_on(home, log, state.id, json)


def _show_going_on(home: Home, log: EventLog, study: str, json: bool) -> None:
    """Say that a study goes on under the controller that it has."""
    _show_end(home, fold(log.read(study)), json)
    if not json:
        console().print(
            f"study {study} goes on under the controller that has it; follow it with: ajet study watch {study}"
        )


def pause(name: Name = None, json: Json = False) -> None:
    """Let a study begin nothing new, while the runs that are under way finish; `resume` lets it go on.

    Time in which nothing runs is not charged to its budget.

    Example:

        ajet study pause
    """
    home, log, state = found(name)
    if not request_pause(log, state.id):
        raise NotRunning(f"expected a study that goes on; {state.id} is {state.status}; there is nothing to pause")
    _show_end(home, fold(log.read(state.id)), json)


def stop(name: Name = None, json: Json = False) -> None:
    """Stop a study: its runs are ended, what was collected is kept, `resume` goes on.

    Example:

        ajet study stop
    """
    home, log, state = found(name)
    request_stop(home, log, state.id, note=warn)
    _show_end(home, fold(log.read(state.id)), json)


def _show_end(home: Home, state: StudyState, json: bool) -> None:
    if json:
        print_json(summary(state, home.study(state.id)))
    else:
        console().print(ending(state, home.study(state.id)))
