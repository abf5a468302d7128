"""A study under all that people, clocks, attempts and controllers do to it, in any order, and killed at any event.

At every moment the log folds, what is charged is no more than what controllers worked, and nothing is begun twice or
that nobody approved; wherever it is left a report can be built, and it comes to its conclusion.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from research.controller import interventions
from research.controller.controller import BEAT_S, StudyController, build_stop_event
from research.controller.interventions import (
    ACCEPTABLE,
    answer_question,
    request_continue,
    request_pause,
    require_question,
)
from research.errors import BadInput
from research.planners.context import Check, PlannerContext, PlannerTurn
from research.proposals.actions import AskUser, Note
from research.runs.files import AttemptSpec
from research.scheduler.next_step import is_done
from studies import EventType, StudyLog, StudyState, fold
from studies.log.study import BUDGET_RULE
from studies.records.procedure import Pilot, Replication
from studies.report.content import report_content
from studies.report.evidence import gather_rounds
from studies.verdicts.judge import verdict_follows
from tests.research.bench import STUDY, Bench, Cut, check_whole, examples, scratch, unapproved
from tests.research.designs import design, every_stage, extending, noise_plan, piloted, screened
from tests.research.fakes import ScriptedPlanner

BUDGET_S = 4 * 3600.0
SCREENED_PILOT = screened(
    pilot=Pilot(seeds=3, most=7), seeds=tuple(range(101, 108)), looks=(), noise=None, test="welch",
    replication=Replication(environment="arith", seeds=tuple(range(201, 208))),
)  # fmt: skip
ENDINGS = st.lists(
    st.sampled_from(["ok", "ok", "ok", "ok", "failed", "died", "lost", "timeout", "foreign"]), min_size=1, max_size=9
)
"""How attempts end: mostly well."""


def ending(endings: list[str]) -> Callable[[AttemptSpec], str]:
    def script(order: AttemptSpec) -> str:
        return endings[(order.spec.seed * 7 + int(order.spec.job["group_size"]) // 4 + order.attempt) % len(endings)]

    return script


def course(bench: Bench) -> dict[str, Any]:
    return {run: [said for said in told if "approval" not in said[0]] for run, told in bench.told().items()}


class Thoughtful(ScriptedPlanner):
    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        asides = (Note(text="An idea."), AskUser(text="Which?")) if digest.stage == "propose" else ()
        return replace(super().act(digest, check), side_actions=asides)


@pytest.mark.slow
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("staged", ["", "stages", "pilot"])
def test_a_fresh_controller_appends_the_next_event_wherever_the_last_was_killed(staged: str, written: bool) -> None:
    """By induction a controller killed at any event changes nothing: each event here is a controller's first."""
    with scratch() as folder:
        stages: dict[str, Any] = {"design": every_stage(), "noise": noise_plan()} if staged else {}
        if staged == "pilot":
            stages = {"design": SCREENED_PILOT}
        whole, killed = (Bench(folder / name, approve="stages", **stages) for name in ("whole", "killed"))
        for bench in (whole, killed):
            bench.planner, bench.approves = Thoughtful(), True
        whole.sandbox.clock = whole.clock
        expected = whole.drive(whole.loop())
        _, controllers = killed.drive_by_single_events(written=written)
        assert course(killed) == course(whole)
        assert controllers >= expected.event_count - 2 - 2 * len(expected.approvals), "each appended one event"
        state = check_whole(killed)
        assert (state.status, state.verdicts) == ("concluded", expected.verdicts)
        unapproved(killed.events())
        asked = [] if staged else ["propose", "design", "conclude"]
        assert killed.planner.asked == asked, "a planner is paid once for a turn"
        assert [note.text for note in state.notebook] == ([] if staged else ["An idea.", "Which?"])


@pytest.mark.slow
@settings(max_examples=examples(3))
@given(
    kind=st.sampled_from(["plain", "looks", "stages", "pilot", "longer"]),
    endings=ENDINGS,
    parallel=st.integers(1, 3),
    most=st.one_of(st.none(), st.integers(1, 20)),
    budget=st.sampled_from([30.0, 60.0, 10_000.0]),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=3),
)
def test_whatever_fails_and_wherever_it_is_killed_a_study_ends_whole_within_its_limits(
    kind: str, endings: list[str], parallel: int, most: int | None, budget: float, cuts: list[tuple[int, bool]]
) -> None:
    designs = {
        "plain": design(16, looks=(), decision_table=()), "looks": design(16, 32), "stages": every_stage(),
        "pilot": piloted(16, 32), "longer": extending(16, 32),
    }  # fmt: skip
    noise = noise_plan() if kind == "stages" else None
    limits: dict[str, Any] = {"parallel": parallel, "max_runs": most, "budget_s": budget}
    with scratch() as folder:
        calm, rough = (
            Bench(folder / name, ending(endings), design=designs[kind], noise=noise, **limits)
            for name in ("calm", "rough")
        )
        for at, written in cuts:
            with suppress(Cut):
                rough.drive(rough.loop(at, written=written))
        rough.drive(rough.loop())
        state = check_whole(rough)
        assert state.status in ("concluded", "stopped")
        assert most is None or len(state.runs) <= most
        assert [d.rule for d in state.decisions if d.action == "stop"] == [BUDGET_RULE] * (state.status == "stopped")
        if cuts and budget > 60.0:  # how much of a budget is left depends on what a killed controller had worked
            expected = calm.drive(calm.loop())
            # which attempts ran side by side, which is told as a threat, depends on when a controller was killed
            assert [v.inputs_sha256 for v in state.verdicts] == [v.inputs_sha256 for v in expected.verdicts]
            assert {key: (run.status, len(run.attempts), run.measurements) for key, run in state.runs.items()} == {
                key: (run.status, len(run.attempts), run.measurements) for key, run in expected.runs.items()
            }


class StudyMachine(RuleBasedStateMachine):
    """Two clocks: `bench.clock` is the world's; `seconds`, a stopwatch's, stands while the machine sleeps."""

    @initialize(
        staged=st.booleans(), never=st.booleans(), approve=st.sampled_from(["none", "plan", "stages"]),
        rounds=st.sampled_from([1, 3]), endings=ENDINGS, most=st.none() | st.integers(8, 30),
    )  # fmt: skip
    def begin(self, staged: bool, never: bool, approve: str, rounds: int, endings: list[str], most: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ajet-test-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.bench = Bench(
            self.folder,
            lambda order: "never" if never and order.attempt == 1 else ending(endings)(order),
            design=every_stage() if staged else design(16, 32),
            noise=noise_plan() if staged else None,
            inquiry=1 if staged else rounds,  # a replication is a round of its own
            budget_s=BUDGET_S,
            max_runs=most,
            approve=approve,
        )
        self.seconds = 0.0
        self.log = self.bench.log
        self.record = StudyLog(self.log, STUDY)
        self.attended_s = 0.0
        self.loops: list[StudyController] = []
        self._take_up()

    def _take_up(self) -> None:
        self.loops.append(self.bench.loop(seconds=lambda: self.seconds))

    def state(self) -> StudyState:
        return self.record.state()

    def at_work(self) -> bool:
        return bool(self.loops) and not is_done(self.state())

    @rule(which=st.integers(0, 1), seconds=st.sampled_from([0.0, 1.0, 30.0]))
    def tick(self, which: int, seconds: float) -> None:
        self._pass(seconds)
        if self.loops:
            self.loops[which % len(self.loops)].tick()

    @rule()
    def an_hour_passes(self) -> None:
        self._pass(3600.0)

    def _pass(self, seconds: float) -> None:
        for _ in range(int(seconds // 30) or 1):
            step = min(30.0, seconds)
            self.attended_s += step * len(self.loops) if self.at_work() else 0.0
            self.bench.clock.advance(step)
            self.seconds += step
            for loop in self.loops if seconds > 30 else ():
                loop.tick()

    @rule(hours=st.integers(1, 20))
    def the_machine_sleeps(self, hours: int) -> None:
        self.bench.clock.advance(3600.0 * hours)

    @rule()
    def stop(self) -> None:
        self.record.change(lambda state: build_stop_event(state, "enough for today"), actor="user")

    @rule()
    def interrupt(self) -> None:
        for loop in self.loops:
            loop.stop("interrupted by the user")
        self.loops.clear()

    @rule()
    def pause(self) -> None:
        request_pause(self.log, STUDY)

    @rule()
    def go_on_from_a_pause(self) -> None:
        request_continue(self.log, STUDY)

    @rule()
    def kill(self) -> None:
        self.loops.clear()

    @precondition(lambda self: self.loops)
    @rule(at=st.integers(0, 9), written=st.booleans(), looks=st.integers(1, 5))
    def kill_at_an_event(self, at: int, written: bool, looks: int) -> None:
        self.loops = [self.bench.loop(at, written=written, seconds=lambda: self.seconds)]
        with suppress(Cut):
            for _ in range(looks):
                self.tick(0, 1.0)
        self.loops.clear()

    @precondition(lambda self: not self.loops)
    @rule()
    def resume(self) -> None:
        self.record.change(lambda state: (EventType.STUDY_RESUMED, {"command": [], "worked_s": 0.0}), actor="user")
        self._take_up()

    @precondition(lambda self: len(self.loops) < 2)
    @rule()
    def another_controller(self) -> None:
        self._take_up()

    @rule(code=st.sampled_from(ACCEPTABLE[:4]))
    def accept(self, code: str) -> None:
        self._amend(lambda: interventions.accept_violation(self.record, code, "somebody said so"))

    @rule(hours=st.integers(1, 9))
    def change_the_budget(self, hours: int) -> None:
        self._amend(lambda: interventions.change_budget(self.record, 3600.0 * hours, "somebody said so"))

    @rule()
    def note(self) -> None:
        self._amend(lambda: interventions.add_note(self.record, "the fan was loud"))

    @rule(name=st.sampled_from(["h1", "h2", "s1", "r2h1", "r3h2"]))
    def veto(self, name: str) -> None:
        self._amend(lambda: interventions.veto_hypothesis(self.record, name, "somebody said so"))

    @precondition(lambda self: self.state().open_question is not None)
    @rule(granted=st.booleans())
    def answer(self, granted: bool) -> None:
        asked = require_question(self.state())
        given = answer_question(self.record, asked.digest, "command", granted=granted)
        assert given.asked == asked
        assert self.state().open_question is None

    @rule()
    def answer_an_older_question(self) -> None:
        state = self.state()
        for asked in state.questions:
            if asked != state.open_question:
                with pytest.raises(BadInput):
                    answer_question(self.record, asked.digest, "command", granted=True)
        assert self.state().event_count == state.event_count, "what is refused leaves nothing"

    def _amend(self, amend: object) -> None:
        before = self.state().event_count
        try:
            amend()  # type: ignore[operator]
        except BadInput:
            assert self.state().event_count == before, "what is refused leaves nothing"

    @invariant()
    def it_folds_and_nothing_was_begun_twice(self) -> None:
        state = fold(self.log.read(STUDY))
        assert state == self.state()
        assert set(self.bench.sandbox.starts.values()) <= {1}
        assert self.bench.sandbox.most_at_once <= state.settings["parallel"]

    @invariant()
    def no_ledger_is_overdrawn(self) -> None:
        rounds = self.state().rounds
        for before, after in itertools.pairwise(rounds):
            assert not before.runs.keys() & after.runs.keys()
            assert not before.seeds_used & after.seeds_used
            assert after.ledgers == before.ledgers.after(before.outcome)
        for ledger in (rounds[-1].ledgers.differences, rounds[-1].ledgers.equivalences):
            assert sum(entry.level for entry in ledger.entries() if not entry.handed_on) <= 0.05 * (1 + 1e-9)

    @invariant()
    def nothing_is_begun_that_nobody_approved(self) -> None:
        unapproved(self.log.read(STUDY))

    @invariant()
    def no_more_is_charged_than_was_worked(self) -> None:
        assert self.state().worked_s <= self.attended_s + 0.01 * self.state().event_count

    @invariant()
    def no_more_is_lost_with_a_controller_than_a_beat(self) -> None:
        if len(self.loops) == 1 and self.at_work():
            state = self.state()
            assert state.budget_s - state.worked_s - self.loops[0].budget_left(state) <= BEAT_S + 30.0 or not any(
                run.active for run in state.runs.values()
            )

    def teardown(self) -> None:
        if not hasattr(self, "record"):
            return
        self._build_a_report()  # wherever the steps left it, which is anywhere
        if self.state().concluded_reason is None:
            self._end()
            self._build_a_report()
        self.log.close()
        shutil.rmtree(self.folder)

    def _build_a_report(self) -> None:
        state, folder = self.state(), self.bench.home.study(STUDY)
        assert report_content(state, gather_rounds(state, folder)).title
        assert all(verdict_follows(state, verdict) for verdict in (*state.verdicts, *state.replications))

    def _end(self) -> None:
        """Whatever was done to it: once it is left alone with time enough, it comes to its conclusion."""
        self._take_up()
        self.interrupt()  # which ends the attempts that never end
        self.bench.sandbox.script = lambda order: "ok"
        self._amend(lambda: interventions.change_budget(self.record, 1e6, "time enough"))
        self.bench.approves = True
        for _ in range(3):
            self.resume()
            state = self.bench.drive(self.loops.pop())
            if state.status == "concluded":
                assert all(run.status in ("collected", "invalid") for run in state.every_run.values())
                return
        raise AssertionError(f"it never concludes: {self.state().stopped_reason}")


StudyMachine.TestCase.settings = settings(
    max_examples=examples(2),
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a study takes too long to be run anew a thousand times
)
TestStudyMachine = StudyMachine.TestCase
