"""What a report says of where clients and evaluators ran: in containers of which image, or as processes.

It says nothing of attempts whose sandbox the log does not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from studies.log.study_state import AttemptState, RunState, StudyState
from studies.report.parts.evidence import Evidence
from studies.report.parts.parts import Cell, Remark, cell, hash_cell
from studies.report.parts.wording import one_line, plural

PROCESS = "process"


def sandboxes(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield where the attempts' clients and evaluators ran, and what their containers were refused."""
    places = _places(state)
    yield from (_remark(place, count) for place, count in sorted(places.items()))
    if len(places) > 1:
        yield Remark(
            "threat",
            f"Attempts ran in {len(places)} different sandboxes: what ran in them may have changed during the study.",
        )
    refused = sum((Counter(attempt.refused) for attempt in _attempts(state)), Counter[str]())
    if refused:
        said = "; ".join(f"{one_line(why)} ({count})" for why, count in sorted(refused.items()))
        yield Remark(
            "note", f"{plural(sum(refused.values()), 'request')} of containers were refused, and had no effect: {said}."
        )


def brought(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield what clients held of each environment that is not built in."""
    for known in state.design.environments if state.design is not None else ():
        if known.hidden_apart:
            yield Remark(
                "note",
                f"{known.name} was brought from {one_line(known.reference)}: its code is its author's own. Training "
                f"clients held that code and its training tasks{_out_of_reach(_places(state))}.",
            )
        else:
            yield Remark(
                "threat",
                f"{known.name} was brought from {one_line(known.reference)}, and its code makes its hidden tasks by "
                "itself, or holds them: training clients held that code, so that nothing but its own honesty keeps "
                "them apart.",
            )


def _out_of_reach(places: Collection[str]) -> str:
    """Return what kept hidden tasks from clients, as far as the log tells where these ran."""
    if not places:
        return "; hidden tasks were handed to evaluators alone"
    if PROCESS not in places:
        return ", in containers which could not read the hidden tasks"
    some = "" if len(places) == 1 else "where they were "
    return (
        f"; hidden tasks were handed to evaluators alone, but nothing stopped clients, {some}processes of this "
        "machine, from looking for them on its disk"
    )


def differ(state: StudyState) -> bool:
    """Return whether attempts ran in different sandboxes, so that each run has to say in which."""
    return len(_places(state)) > 1


def image_cell(run: RunState) -> Cell:
    """Return the image in which a run's last client ran."""
    place = _place(run.attempts[-1]) if run.attempts else ""
    return cell(place) if place in ("", PROCESS) else hash_cell(place.removeprefix("sha256:"))


def _attempts(state: StudyState) -> list[AttemptState]:
    return [attempt for run in state.runs.values() for attempt in run.attempts]


def _places(state: StudyState) -> Counter[str]:
    return Counter(place for attempt in _attempts(state) if (place := _place(attempt)))


def _place(attempt: AttemptState) -> str:
    return str(attempt.sandbox.get("image") or attempt.sandbox.get("kind") or "")


def _remark(place: str, count: int) -> Remark:
    who = f"Client and evaluators of {plural(count, 'attempt')}"
    if place == PROCESS:
        return Remark("note", f"{who} ran as processes of this machine, which isolates nothing: they were trusted.")
    return Remark(
        "note",
        f"{who} ran in containers of image {place}, with no network but a gateway to the run's own server; the "
        "list of hidden tasks was handed to evaluators alone.",
    )
