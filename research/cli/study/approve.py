"""`ajet study approve` and `ajet study deny`: answer what a study asks before it begins something that costs."""

from __future__ import annotations

from typing import Annotated

import typer

from research.cli.output import console, print_json, warn
from research.cli.study.shown.listing import listed
from research.cli.study.shown.summary import answered_of, asking
from research.errors import BadApproval
from research.installation.every_study import find_study
from research.installation.home import Home
from research.scheduling.required_runs import attempts_running
from research.study.one_controller import is_driven
from research.study.stop import answer, end_attempts, open_question
from studies import EventLog, StudyLog, StudyState

Name = Annotated[str | None, typer.Argument(help="Study id or its beginning; the one that asks when left out.")]
Note = Annotated[str, typer.Option(help="What to say with it, for the report.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def approve(name: Name = None, note: Note = "", json: Json = False) -> None:
    """Approve what a study waits for (`ajet research --approve`), after showing what it is and what it costs.

    Of answers that come at once one counts. Where nothing is asked, nothing happens, and the exit code is 2.

    Examples:

        ajet study approve

        ajet study approve larger-group --note "within this week's hours"
    """
    home, log = _open()
    _answered(home, log, name, note, json, granted=True)


def deny(name: Name = None, note: Note = "", json: Json = False) -> None:
    """Deny what a study waits for: it stops, and its verdicts so far stand. `ajet study resume` asks again.

    Examples:

        ajet study deny

        ajet study deny larger-group --note "too dear for what it would tell"
    """
    home, log = _open()
    state = _answered(home, log, name, note, json, granted=False)
    if any(attempts_running(state)):
        end_attempts(home, log, StudyLog(log, state.id), warn)


def _open() -> tuple[Home, EventLog]:
    home = Home.locate().prepare()
    return home, EventLog(home.database)


def _answered(home: Home, log: EventLog, name: str | None, note: str, json: bool, *, granted: bool) -> StudyState:
    """Show what is asked, answer it, and say how the study goes on."""
    record = StudyLog(log, find_study(log, name or _that_asks(home, log)))
    asked = open_question(state := record.state())
    if not json:
        console().print(asking(state, how=False))
    given = answer(record, asked.digest, "command", note, granted=granted)
    state = record.state()
    if json:
        print_json({"study": state.id, "seq": given.seq, **answered_of(given)})
    else:
        console().print(f"{given.said()}; {_how_it_goes_on(home, log, state)}")
    return state


def _that_asks(home: Home, log: EventLog) -> str | None:
    """Return the study that asks; None where none does. Raise BadApproval where several do: each costs something."""
    several = [line.summary["study"] for line in listed(home, log) if line.summary["asks"] is not None]
    if len(several) > 1:
        raise BadApproval(f"expected the name of one of the studies that wait for approval; found {', '.join(several)}")
    return several[0] if several else None


def _how_it_goes_on(home: Home, log: EventLog, state: StudyState) -> str:
    resume, driven = f"ajet study resume {state.id}", is_driven(home, log, state.id)
    if state.denial is not None:
        told = state.design is None or driven  # a controller that lives builds it
        report = "" if told else f"; its report: ajet study report {state.id} --build"
        return f"study {state.id} stops; to be asked again: {resume}{report}"
    if state.stopped_reason is not None or not driven:
        return f"nobody works on study {state.id} now; go on with: {resume}"
    if state.paused_reason is not None:
        return f"study {state.id} is paused; go on with: {resume}"
    return f"study {state.id} goes on under its controller"
