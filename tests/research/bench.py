"""A home with one study, or several, with fakes behind a loop's seams, and the means to kill its controller."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hypothesis import settings

from research.controller.closing import Closing
from research.controller.controller import ReportBuilder, StudyController
from research.controller.interventions import answer_question, require_question
from research.controller.planning import Planning
from research.design.noise_bank import NoiseBank
from research.installation.home import Home
from research.isolation.mode import UNISOLATED
from research.proposals.actions import DEFAULT_TABLE as SETTLING_TABLE
from research.runs.wandb_log import ReadTracking
from research.scheduler.next_step import is_done
from research.scheduler.steps import FAILURES, Decide
from studies import Event, EventLog, EventType, HeadMoved, StudyLog, StudyState, fold
from studies.log.entries import ApprovalAnswer
from studies.log.event_log import lock_name, write_lock
from studies.records.alpha import AlphaLedgers
from studies.records.design import Design, Metric, NoisePlan
from studies.records.procedure import Noise
from studies.report import Report
from studies.report.next_question import list_next_questions
from studies.statistics.power import plan_analyses
from swarm.job import Job
from tests.research.designs import rate
from tests.research.fakes import (
    BASE,
    PRICING,
    FakeSandbox,
    ManualClock,
    Script,
    ScriptedPlanner,
    create_study,
    read_fake_tracking,
)
from tests.studies.synthetic import append

STUDY = "s1"
MOST_TICKS = 200


class Cut(BaseException):
    """Stands for kill -9: nothing may catch it."""


class CutLog(EventLog):
    """An event log whose writer is killed at a given append: before it is written, or right after."""

    def __init__(self, like: EventLog, at: int | None = None, *, written: bool = True) -> None:
        self.__dict__.update(like.__dict__)  # the same engine: a new one compiles every statement anew
        self._left = at
        self._written = written

    def append(self, event: Event) -> None:
        if self._left is None or self._left > 0:
            self._left = None if self._left is None else self._left - 1
            super().append(event)
            return
        if self._written:
            super().append(event)
        raise Cut


def fake_report(state: StudyState, folder: Path) -> Report:
    for name in ("report.md", "report.html"):
        (folder / name).write_text(state.head_hash)
    return Report(folder, dict.fromkeys(("report.md", "report.html"), "0" * 64))


class Knows(NoiseBank):
    """Stands for a bank with twenty degrees of freedom about anything, so that no A/A runs are needed."""

    sd = 0.01

    def find(self, environment: str, job: Job, metric: Metric, others: Sequence[Job] = ()) -> Noise:
        return Noise(sd=self.sd, df=20, episodes=metric.episodes, basis="made up")


@dataclass(frozen=True)
class LocksAtOnce(Planning):
    log: EventLog
    folder: Path
    design: Design
    noise: NoisePlan | None = None
    rounds: int = 1

    def _record(self, state: StudyState) -> StudyLog:
        record = StudyLog(self.log, state.id)
        if record.state().head_hash != state.head_hash:
            raise HeadMoved(state.id, state.event_count + 1)
        return record

    def plan(self, state: StudyState, seconds_left: Callable[[], float]) -> None:
        record = self._record(state)
        if self.noise is not None and state.noise_plan is None:
            plan = self.noise.model_dump(mode="json")
            payload = {"plan": plan, "hash": self.noise.hash(), "seconds_per_run": 10.0}
            record.append(EventType.NOISE_PLANNED, payload)
            return
        known = {hypothesis.id for hypothesis in state.hypotheses}
        design = self.design if self.rounds == 1 else in_round(self.design, state, self.rounds)
        for hypothesis in design.hypotheses:
            if hypothesis.id not in known:
                record.append(EventType.HYPOTHESIS_PROPOSED, hypothesis.model_dump(mode="json"))
        name = lock_name(state.round)
        lock = write_lock(self.folder, design, name)
        record.append(EventType.DESIGN_LOCKED, {"design": design.model_dump(mode="json"), "hash": lock, "file": name})

    def begin_round(self, state: StudyState, seconds_left: Callable[[], float]) -> None:
        payload = {"number": state.round + 1, "previous": state.design_hash, "why": "once more"}
        self._record(state).append(EventType.ROUND_BEGUN, payload)


class ClosesWithoutWords(Closing):
    def decide_look(self, state: StudyState, decisions: tuple[Decide, ...], seconds_left: float) -> tuple[Decide, ...]:
        return decisions

    def write_final_message(self, state: StudyState, seconds_left: float) -> None:
        return None

    def suggest_next(self, state: StudyState) -> dict[str, str]:
        lead = list_next_questions(state)[0]
        return {"why": lead.why, "command": lead.command}


def in_round(design: Design, state: StudyState, rounds: int) -> Design:
    last = state.rounds_before[-1] if state.rounds_before else None
    ledgers = AlphaLedgers.begin(rounds) if last is None else last.ledgers.after(last.outcome)
    place = ledgers.next_place("" if last is None else str(last.design_hash))
    looks = plan_analyses(len(design.seeds), 3, place.difference, place.equivalence / len(design.hypotheses))
    claims = tuple(
        claim.model_copy(update={"id": claim.id if state.round == 1 else f"r{state.round}{claim.id}"})
        for claim in design.hypotheses
    )
    return design.model_copy(
        update={
            "inquiry": place, "alpha": place.difference, "looks": looks, "hypotheses": claims,
            "seeds": tuple(seed + 1000 * (state.round - 1) for seed in design.seeds),
            "multiplicity": "none" if len(claims) == 1 else "dunnett_bonferroni",
            "decision_table": SETTLING_TABLE,
        }
    )  # fmt: skip


class Bench:
    """A home with one study, or one `beside` another's, and controllers; `design` is locked in a planner's place."""

    def __init__(
        self,
        path: Path,
        script: Script = lambda order: "ok",
        design: Design | None = None,
        noise: NoisePlan | None = None,
        *,
        study: str = STUDY,
        beside: Bench | None = None,
        inquiry: int = 1,
        **settings: Any,
    ) -> None:
        self.home = Home.locate({"AJET_HOME": str(path)}).prepare()
        self.study = study
        self.clock = ManualClock() if beside is None else beside.clock
        self.sandbox = FakeSandbox(script) if design is None else FakeSandbox(script, rate=rate)
        self.sandbox = self.sandbox if beside is None else beside.sandbox
        self.sandbox.now = self.clock
        self.isolation = UNISOLATED
        self.read_tracking: ReadTracking = read_fake_tracking
        self.planner: Any = ScriptedPlanner()
        self.build_report: ReportBuilder = fake_report
        self.check: Callable[[], None] = lambda: None
        self.notes: list[str] = []
        self.closing: Closing | None = None if design is None else ClosesWithoutWords(cast(Any, None))
        self.design = design
        self.noise = noise
        self.rounds = inquiry
        self.tick_s = 1.0
        self.approves = False
        """Whether somebody approves whatever is asked while it is driven."""
        self.log = EventLog(self.home.database, clock=self.clock)
        create_study(self.log, study, **settings)

    def loop(
        self,
        at: int | None = None,
        *,
        written: bool = True,
        log: EventLog | None = None,
        seconds: Callable[[], float] | None = None,
    ) -> StudyController:
        log = log or CutLog(self.log, at, written=written)
        folder = self.home.study(self.study)
        return StudyController(
            home=self.home,
            log=log,
            study=self.study,
            planner=self.planner,
            sandbox=self.sandbox,
            isolation=self.isolation,
            clock=self.clock,
            seconds=seconds or (lambda: self.clock.now.timestamp()),
            pricing=PRICING,
            base=BASE,
            read_tracking=self.read_tracking,
            build_report=self.build_report,
            draw_secret=lambda size: "ab" * size,
            noise_bank=lambda log: Knows(),
            check=self.check,
            note=self.notes.append,
            planning=None if self.design is None else LocksAtOnce(log, folder, self.design, self.noise, self.rounds),
            closing=self.closing,
        )

    def slow(self, seconds: float, tick_s: float) -> None:
        self.sandbox.seconds, self.sandbox.polls, self.tick_s = seconds, round(seconds / tick_s) - 1, tick_s

    def end_attempts(self) -> None:
        for handle in self.sandbox.handles.values():
            while handle.poll() is None:
                pass

    def until(self, reached: Callable[[StudyState], object], loop: StudyController | None = None) -> StudyState:
        loop = loop or self.loop()
        for _ in range(MOST_TICKS):
            if reached(state := loop.tick()):
                return state
            self.clock.advance(self.tick_s)
        raise AssertionError(f"it never came to that: {state.status}")

    def drive(self, loop: StudyController) -> StudyState:
        for _ in range(MOST_TICKS):
            state = loop.tick()
            if is_done(state):
                return state
            if self.approves and state.open_question is not None:
                self.answer()
            self.clock.advance(self.tick_s)
        raise AssertionError(f"not done after {MOST_TICKS} ticks: {state.status}")

    def drive_by_single_events(self, *, written: bool) -> tuple[StudyState, int]:
        self.sandbox.clock = self.clock
        for killed in range(MOST_TICKS):
            try:
                return self.drive(self.loop(0 if written else 1, written=written)), killed
            except Cut:
                continue
        raise AssertionError(f"not done after {MOST_TICKS} controllers")

    def told(self) -> dict[str, list[tuple[EventType, str, dict[str, Any]]]]:
        """Return what the log says of the study and of each run, in order, without what follows from who began when.

        A new controller looks at what runs before it collects what ended, so runs may overtake one another.
        """
        said = defaultdict(list)
        for event in self.events():
            payload = {name: value for name, value in event.payload.items() if name != "worked_s"}
            said[str(payload.get("run_id", ""))].append((event.type, event.actor, payload))
        return said

    def answer(self, *, granted: bool = True) -> ApprovalAnswer:
        record = StudyLog(self.log, STUDY)
        return answer_question(record, require_question(record.state()).digest, "command", granted=granted)

    def append(self, type: EventType, **payload: Any) -> None:
        append(self.log, self.study, type, payload, actor="user")

    def events(self) -> list[Event]:
        return self.log.read(self.study)


def check_whole(bench: Bench) -> StudyState:
    events = bench.events()
    state = fold(events)
    open_to_more = {"planned", "ended"} if state.status == "stopped" else set()  # to a larger budget
    assert {run.status for run in state.runs.values()} <= {"collected", "invalid"} | open_to_more
    assert bench.sandbox.most_at_once <= state.settings["parallel"]
    for run in state.runs.values():
        assert [attempt.number for attempt in run.attempts] == list(range(1, len(run.attempts) + 1))
        assert all(attempt.status in FAILURES for attempt in run.attempts[:-1])
    launched = {attempt.name for run in state.runs.values() for attempt in run.attempts}
    assert bench.sandbox.starts == Counter(dict.fromkeys(launched, 1))
    once = Counter(event.type for event in events)
    assert {once[EventType(name)] for name in ("design.locked", "report.built")} <= {0, 1}
    if state.design is not None and state.design.looks and state.design.shared_seeds:
        order = {seed: index for index, seed in enumerate(state.design.seeds)}
        for at, event in enumerate(events):
            if event.type is EventType.RUN_PLANNED and event.payload["spec"].get("phase", "confirm") == "confirm":
                seen = max((d.look for d in fold(events[:at]).decisions if d.action == "continue"), default=0)
                assert order[event.payload["spec"]["seed"]] < state.design.looks[seen].seeds, "a run beyond the look"
    return state


def unapproved(events: Sequence[Event]) -> None:
    """Fail where a run was planned or a candidate asked for before somebody had approved its stage."""
    mode = events[0].payload["settings"]["approve"]
    asked: dict[str, str] = {}
    approved: set[str] = set()
    for event in events:
        match event.type:
            case EventType.APPROVAL_ASKED:
                asked[event.payload["digest"]] = event.payload["question"]["stage"]
            case EventType.APPROVAL_GIVEN:
                approved.add(asked[event.payload["digest"]])
            case EventType.RUN_PLANNED | EventType.CANDIDATE_ASKED if mode != "none":
                assert _stages(event, mode) & approved, f"nobody approved what event {event.seq} begins"


def _stages(event: Event, mode: str) -> set[str]:
    phase = "screen" if event.type is EventType.CANDIDATE_ASKED else event.payload["spec"].get("phase", "confirm")
    if phase == "noise" or mode == "plan":
        return {"noise" if phase == "noise" else "design"}
    looks = {"pilot", *(f"look {number}" for number in range(1, 10))}
    return looks if phase == "confirm" else {"replication" if phase == "replicate" else phase}


def examples(part: int) -> int:
    return max(1, settings.default.max_examples // part)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is such: hundreds of studies are too many syncs for a disk."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="ajet-test-", dir=memory if os.access(memory, os.W_OK) else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)
