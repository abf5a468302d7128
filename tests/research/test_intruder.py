"""Somebody else writes between a controller's look at its study and what it appends: the record cannot break.

An intruding log appends an event of each kind right before the controller's append, at any one of them or at all of
them. Whatever it is, the log folds, no attempt is begun twice, the study ends, and its report can be built.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.controller.interventions import ACCEPTABLE
from research.scheduler.next_step import is_done
from studies import Event, EventLog, EventType, StudyLog, StudyState, fold
from studies.log.event_log import Change
from studies.report.content import report_content
from studies.report.evidence import gather_rounds
from tests.research.bench import STUDY, Bench, examples, scratch
from tests.research.designs import design, every_stage, noise_plan

Kind = Callable[[StudyState, Event], Change | None]
"""What somebody writes into a study as it stands, right before this event of its controller; None for nothing."""


def _open(state: StudyState) -> bool:
    return state.stopped_reason is None and state.concluded_reason is None


def _twin(state: StudyState, event: Event) -> Change:
    return event.type, {name: value for name, value in event.payload.items() if name != "worked_s"}


def _accept(state: StudyState, event: Event) -> Change | None:
    accepted = {entry.amendment.target for entry in state.amendments}
    code = next((code for code in ACCEPTABLE if code not in accepted), None)
    return None if code is None else _amendment(state, kind="accept", target=code)


def _amendment(state: StudyState, **values: object) -> Change | None:
    if state.design is None:
        return None
    return EventType.DESIGN_AMENDED, {"amendment": {"reason": "somebody said so", **values}}


def _veto(state: StudyState, event: Event) -> Change | None:
    known = [claim.id for claim in state.hypotheses if claim.id not in state.vetoed]
    return (EventType.HYPOTHESIS_VETOED, {"hypothesis": known[0], "reason": "x"}) if known and _open(state) else None


def _while_open(type: EventType, **payload: object) -> Kind:
    return lambda state, event: (type, payload) if _open(state) else None


KINDS: dict[str, Kind] = {
    "the controller's own event, by a second controller": _twin,
    "a note": lambda state, event: _amendment(state, kind="note"),
    "an accepted code": _accept,
    "a budget": lambda state, event: _amendment(state, kind="budget", value=state.budget_s + 1),
    "a veto": _veto,
    "a stop": _while_open(EventType.STUDY_STOPPED, reason="somebody stopped it"),
    "a pause": _while_open(EventType.STUDY_PAUSED, reason="somebody paused it"),
    "a resumption": lambda state, event: (EventType.STUDY_RESUMED, {"command": []}),
    "a heartbeat": _while_open(EventType.STUDY_WORKED, worked_s=0.0),
}


class IntrudingLog(EventLog):
    def __init__(self, url: str, clock: Callable[[], object], kind: Kind, at: Callable[[int], bool]) -> None:
        super().__init__(url, clock=clock)  # type: ignore[arg-type]
        self._kind = kind
        self._at = at
        self._other = EventLog(url, clock=clock)  # type: ignore[arg-type]
        self.appends = 0
        self.intrusions = 0

    def append(self, event: Event) -> None:
        self.appends += 1
        if self._at(self.appends - 1):
            state = StudyLog(self._other, event.study)
            if (change := self._kind(state.state(), event)) is not None:
                state.append(*change, actor="user")
                self.intrusions += 1
        super().append(event)


def visited(bench: Bench, kind: Kind, at: Callable[[int], bool]) -> tuple[StudyState, int]:
    """Drive a study in which somebody writes, waking it whenever it stands still; return its end and the intrusions."""
    log = IntrudingLog(bench.home.database, bench.clock, kind, at)
    loop = bench.loop(log=log)
    for _ in range(1_000):
        state = loop.tick()
        if is_done(state) and state.status == "concluded":
            return state, log.intrusions
        if state.status in ("stopped", "paused"):
            bench.append(EventType.STUDY_RESUMED, command=[])
        bench.clock.advance(1)
    raise AssertionError(f"it never came to an end: {state.status}")


def check(bench: Bench, state: StudyState) -> None:
    """Whatever was written in between: it folds at every event, nothing was begun twice, the report can be built."""
    events = bench.events()
    assert fold(events) == state
    assert set(bench.sandbox.starts.values()) <= {1}
    assert bench.sandbox.most_at_once <= state.settings["parallel"]
    assert all(run.status in ("collected", "invalid") for run in state.runs.values())
    assert not [run for run in state.runs.values() if run.active]
    folder = bench.home.study(STUDY)
    assert report_content(state, gather_rounds(state, folder)).title


ONE_COURSE = [name for name in KINDS if name not in ("a stop", "a pause", "a veto")]
"""What leaves a study its course, so that all of its appends may be met in one go."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if KINDS[name] is _twin else pytest.param(name, marks=pytest.mark.full) for name in ONE_COURSE]
)
def test_before_every_append_of_a_study_with_every_stage(fast_path: Path, name: str) -> None:
    bench = Bench(fast_path, design=every_stage(), noise=noise_plan(), budget_s=3000.0)
    state, intrusions = visited(bench, KINDS[name], lambda at: at % 2 == 0)
    check(bench, state)
    assert intrusions > 15


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(KINDS.keys() - set(ONE_COURSE)))
def test_before_any_one_append_of_a_study(fast_path: Path, name: str) -> None:
    small = design(16, seeds=(101, 102), looks=design(16).looks[:1])
    undisturbed, _ = visited(Bench(fast_path / "alone", design=small), KINDS["a note"], lambda at: False)
    met = 0
    for k in range(undisturbed.event_count - 1):
        bench = Bench(fast_path / str(k), design=small)
        state, intrusions = visited(bench, KINDS[name], lambda at, k=k: at == k)  # type: ignore[misc]
        met += intrusions
        check(bench, state)
    assert met > undisturbed.event_count / 2


@pytest.mark.slow
@settings(max_examples=examples(3))
@given(st.lists(st.tuples(st.integers(0, 140), st.sampled_from(sorted(KINDS))), min_size=1, max_size=5))
def test_at_any_moments_of_a_study_with_every_stage(moments: list[tuple[int, str]]) -> None:
    told, due = dict(moments), iter(dict(sorted(moments)).values())

    def kind(state: StudyState, event: Event) -> Change | None:
        return KINDS[next(due)](state, event)

    with scratch() as folder:
        bench = Bench(folder, design=every_stage(), noise=noise_plan(), budget_s=3000.0)
        state, _ = visited(bench, kind, told.__contains__)
        check(bench, state)
