"""`ajet study amend`, `note` and `veto`: change a study in the open, at any time; the report shows it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from research.cli.output import console, print_json
from research.durations import format_seconds, parse_budget
from research.errors import BadAmendment
from research.installation.every_study import find_study
from research.installation.home import Home
from research.study import amendments
from studies import Event, EventLog, StudyLog, StudyState

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the report.")]


def amend(
    name: Annotated[str | None, typer.Argument(help="Study id or its beginning; the newest when left out.")] = None,
    accept: Annotated[str | None, typer.Option(help="Code of a violation, or of a run's end, to let pass.")] = None,
    budget: Annotated[str | None, typer.Option(help="New wall-clock budget, such as 2h or 1h30m.")] = None,
    note: Annotated[str | None, typer.Option(help="What a reader should know; changes nothing.")] = None,
    reason: Reason = None,
    json: Json = False,
) -> None:
    """Amend a study in the open: accept a violation, change its budget (before the lock too), or add a note.

    A verdict that an amendment made after the first result touches is exploratory.

    Examples:

        ajet study amend larger-group --accept co_tenancy --reason "a backup ran beside both arms"

        ajet study amend larger-group --budget 2h --reason "the machine is slower than priced"

        ajet study amend larger-group --note "the machine was moved on Tuesday"
    """
    record = _find(name)
    given = {"--accept": accept, "--budget": budget, "--note": note}
    named = [flag for flag, value in given.items() if value is not None]
    if len(named) != 1:
        raise BadAmendment(f"expected one of --accept, --budget and --note; found {', '.join(named) or 'none'}")
    if note is not None and reason is not None:
        raise BadAmendment("expected a note without --reason; found both; the note is its own reason")
    if accept is not None:
        event = amendments.accept(record, accept, reason)
    elif budget is not None:
        event = amendments.extend(record, parse_budget(budget), reason)
    else:
        event = amendments.note(record, note or "")
    _say(record, event, json)


def note(
    name: Annotated[str, typer.Argument(help="Study id or its beginning.")],
    text: Annotated[str, typer.Argument(help="What a reader, and the planner, should know.")],
    json: Json = False,
) -> None:
    """Write a note into a study, such as the answer to what its planner asks; the report shows it.

    Example:

        ajet study note larger-group "Yes, arith matters to us as much as guess."
    """
    record = _find(name)
    _say(record, amendments.note(record, text), json)


def veto(
    name: Annotated[str, typer.Argument(help="Study id or its beginning.")],
    hypothesis: Annotated[str, typer.Argument(help="Id of the hypothesis, such as h1.")],
    reason: Reason = None,
    json: Json = False,
) -> None:
    """Give a hypothesis up: its runs are ended, no more are begun, and it is judged on what is there.

    Example:

        ajet study veto larger-group h2 --reason "its reward is known to be hacked"
    """
    record = _find(name)
    _say(record, amendments.veto(record, hypothesis, reason), json)


def _find(name: str | None) -> StudyLog:
    log = EventLog(Home.locate().prepare().database)
    return StudyLog(log, find_study(log, name))


def _say(record: StudyLog, event: Event, json: bool) -> None:
    state = record.state()
    if json:
        print_json({"study": event.study, "seq": event.seq, "type": event.type.value, **_details(state, event)})
        return
    console().print(_sentence(state, event))
    if state.status == "stopped":
        console().print(f"go on with: ajet study resume {state.id}")


def _details(state: StudyState, event: Event) -> dict[str, Any]:
    amended = next((entry for entry in state.amendments if entry.seq == event.seq), None)
    if amended is None:
        return dict(event.payload)
    return {"amendment": amended.amendment.model_dump(mode="json"), "after_data": amended.after_data}


def _sentence(state: StudyState, event: Event) -> str:
    amended = next((entry for entry in state.amendments if entry.seq == event.seq), None)
    if amended is None:
        return f"hypothesis {event.payload['hypothesis']} of study {state.id} is vetoed; it gets no more runs"
    late = ", after the first result: verdicts that it touches are exploratory" if amended.after_data else ""
    amendment = amended.amendment
    if amendment.kind == "budget":
        return f"study {state.id} now has a budget of {format_seconds(state.budget_s)}"
    if amendment.kind == "accept":
        return f"study {state.id} now accepts {amendment.target}{late}"
    return f"noted in study {state.id}"
