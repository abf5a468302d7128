"""Code that crashes early in training may be repaired, blind: all arms of its question begin anew on fresh seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, ttest_ind

from research.cli import studies
from research.cli.app import console
from research.controller import interventions
from research.controller.progress import progress_of
from research.planners.context import Check, PlannerContext, PlannerTurn
from research.planners.prompts import due_schema, messages, parse_action
from research.proposals.actions import Action, Repair, Settle
from research.runs.files import AttemptSpec
from research.runs.workers import MOST_LAST_WORDS
from research.scheduler.budget import StepLimits
from research.scheduler.next_step import repair_step
from studies import Event, EventType, StudyLog, StudyState, fold
from studies.errors import LogCorrupt
from studies.log.entries import Veto
from studies.log.study import REPAIR_RULE
from studies.proof import verify
from studies.records.design import Design
from studies.records.procedure import RunLength
from studies.records.runs import CODE_REPAIRED, GENERATED_CODE_FAILED
from studies.report import build_report
from tests.research.bench import STUDY, Bench, Cut, scratch
from tests.research.factories import make_claim
from tests.research.fakes import BASE, ScriptedPlanner

BROKEN, MENDED, AGAIN = "=reward / success", "=reward - 0.01 * turns", "=reward - 0.02 * turns"


class Repairing(ScriptedPlanner):
    """Proposes code that crashes, and gives one answer after the other to what did."""

    def __init__(self, *answers: Action | Exception) -> None:
        claim = make_claim(
            variable="reward", control="built-in", treatment="shorter", code=BROKEN, statement="Shorter is better."
        )
        super().__init__(3, "guess", claim)
        self.answers = list(answers)

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        if digest.stage != "repair":
            return super().act(digest, check)
        self.asked.append("repair")
        self.shown.append(digest)
        if isinstance(answer := self.answers.pop(0), Exception):
            raise answer
        return PlannerTurn(answer)


def crashing(*sources: str, late: bool = False) -> Callable[[AttemptSpec], str]:
    return lambda order: ("crashed late" if late else "crashed") if order.spec.code in sources else "ok"


def bench_of(path: Path, *answers: Action | Exception, script: Any = None, **settings: Any) -> Bench:
    bench = Bench(path, script or crashing(BROKEN), **{"budget_s": 60_000.0, **settings})
    bench.planner = Repairing(*answers)
    return bench


def asked_for(bench: Bench) -> int:
    return int(bench.planner.asked.count("repair"))


def proof(bench: Bench) -> Any:
    return verify(STUDY, bench.log.read_unverified(STUDY), bench.home.study(STUDY))


def test_repaired_code_begins_all_arms_anew_and_no_run_of_before_is_in_a_verdict(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = bench_of(fast_path, Repair(code=MENDED, reason="No division."))
    bench.build_report = build_report
    state = bench.drive(bench.loop())
    [issue], design = state.abandoned, state.design
    assert design is not None
    assert (state.status, [verdict.verdict for verdict in state.verdicts]) == ("concluded", ["equivalent"])
    assert (issue.design.code, design.code, design.repairs) == ({"shorter": BROKEN}, {"shorter": MENDED}, 2)
    assert set(issue.design.seeds).isdisjoint(design.seeds)
    assert {run.code for run in issue.runs.values()} <= {"", GENERATED_CODE_FAILED, CODE_REPAIRED}
    assert {run.status for run in issue.runs.values()} <= {"collected", "invalid"}
    assert {run.spec.design_hash for run in issue.runs.values()} == {issue.hash}
    assert set(state.every_run) == {*issue.runs, *state.runs}
    assert {run.spec.design_hash for run in state.runs_in("confirm")} == {state.design_hash}
    assert state.verdicts[0].n_treatment == len(state.values("reward=shorter")) == len(design.seeds)
    proven = proof(bench)
    assert (proven.drifts, proven.held["lock"]) == ((), 2)
    page = (bench.home.study(STUDY) / "report.md").read_text()
    told = "before any run that counts", "What is claimed is of the text it was repaired to"
    parts = (f"-{BROKEN}", f"+{MENDED}", "abandoned", "count in no verdict", *told)
    kept = [run.collected["snapshot"]["sha256"] for run in issue.runs.values() if run.status == "collected"]
    assert [part for part in (*parts, *kept) if part not in page] == []
    assert progress_of(state).done == sum(bool(run.attempts) for run in state.every_run.values()) < len(state.every_run)
    monkeypatch.setattr(studies, "open_study", lambda name: (bench.home, bench.log, state))
    monkeypatch.setattr(console(), "width", 300)
    studies.show(None)
    shown = capsys.readouterr().out
    assert (shown.count(" abandoned "), "repaired  shorter crashed at step 1 of 3" in shown) == (len(issue.runs), True)


def test_the_turn_is_blind(fast_path: Path) -> None:
    bench = bench_of(fast_path, Repair(code=MENDED))
    bench.sandbox.words = "a" * MOST_LAST_WORDS + "b"
    bench.drive(bench.loop())
    [shown] = [digest for digest in bench.planner.shown if digest.stage == "repair"]
    assert shown.tools is None
    facts = shown.facts()
    assert facts.keys() == {"topic", "hypotheses", "crash"}
    told = {"source": BROKEN, "step": "1 of 3", "ended_by": "client_died", "quoted": "a" * (MOST_LAST_WORDS - 1) + "b"}
    assert {name: facts["crash"][name] for name in told} == told


@pytest.mark.parametrize("answer", [Settle(reason="It cannot work."), ValueError("gone"), Repair(code="=reward +")])
def test_without_a_repair_the_question_ends_as_it_did(fast_path: Path, answer: Any) -> None:
    bench = bench_of(fast_path, answer)
    state = bench.drive(bench.loop())
    assert ([verdict.verdict for verdict in state.verdicts], state.abandoned) == (["invalid"], ())
    [decision] = [decision for decision in state.decisions if decision.rule == REPAIR_RULE]
    assert ("It cannot work." in decision.reason) == isinstance(answer, Settle)


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"planner": "rules"}, 0), ({"repairs": 0}, 0), ({"max_runs": 10}, 0), ({"budget_s": 45.0}, 0),
        ({"script": crashing(BROKEN, late=True)}, 0), ({"script": crashing(BROKEN, MENDED), "repairs": 1}, 1),
        ({"script": crashing(BROKEN, MENDED, AGAIN)}, 2),
    ],
    ids=["rules", "none locked", "runs", "budget", "late", "one", "two"],
)  # fmt: skip
def test_nothing_is_asked_beyond_what_lock_and_budget_allow(fast_path: Path, more: Any, asked: int) -> None:
    bench = bench_of(fast_path, Repair(code=MENDED), Repair(code=AGAIN), **more)
    bench.tick_s = 20.0 if "budget_s" in more else 1.0
    state = bench.drive(bench.loop())
    assert (asked_for(bench), len(state.abandoned)) == (asked, asked)
    assert {verdict.verdict for verdict in state.verdicts} <= {"invalid"}


def test_code_that_crashes_once_runs_are_longer_is_repaired_for_both_lengths(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.research.bench.BASE", BASE.model_copy(update={"steps": 8}))
    bench = bench_of(
        fast_path, Repair(code=MENDED), extend_to=16, approve="stages",
        script=lambda order: "crashed" if (order.spec.code, order.spec.job["steps"]) == (BROKEN, 16) else "ok",
    )  # fmt: skip
    bench.approves, bench.build_report = True, build_report
    state = bench.drive(bench.loop())
    [issue], asked = state.abandoned, [(each.question.stage, each.question.lock) for each in state.questions]
    assert asked == [(stage, lock) for lock in (issue.hash, state.design_hash) for stage in ("pilot", "longer pilot")]
    for runs in (issue.runs, state.runs):
        assert Counter(run.spec.job["steps"] for run in runs.values()) == {8: 8, 16: 8}
    assert (state.length.steps, [verdict.verdict for verdict in state.verdicts]) == (16, ["equivalent"])
    assert proof(bench).drifts == ()


def test_a_budget_that_ends_while_code_is_repaired_leaves_no_claim(fast_path: Path) -> None:
    bench = bench_of(fast_path, Repair(code=MENDED))
    bench.sandbox.clock = bench.clock
    while all(run.code != CODE_REPAIRED for run in bench.loop().state().runs.values()):
        with suppress(Cut):
            bench.drive(bench.loop(0))
    interventions.change_budget(StudyLog(bench.log, STUDY), bench.loop().state().worked_s + 0.001, "enough seen")
    assert bench.drive(bench.loop()).verdicts == ()
    bench.append(EventType.STUDY_RESUMED)
    state = bench.drive(bench.loop())
    assert (len(state.abandoned), [verdict.verdict for verdict in state.verdicts]) == (1, ["invalid"])


@pytest.mark.parametrize("written", [True, False])
def test_killed_between_any_two_events_it_goes_on_with_the_same_repair(written: bool) -> None:
    with scratch() as folder:
        whole, killed = (bench_of(folder / name, Repair(code=MENDED)) for name in ("whole", "killed"))
        whole.drive(whole.loop())
        state, _ = killed.drive_by_single_events(written=written)
        assert (asked_for(whole), asked_for(killed)) == (1, 1)
        assert state.design_hash == whole.loop().state().design_hash
        assert [verdict.verdict for verdict in state.verdicts] == ["equivalent"]


def test_a_repair_spends_the_level_of_its_question_once(fast_path: Path) -> None:
    bench = bench_of(fast_path, Repair(code=MENDED), rounds=3)
    bench.build_report = build_report
    first, *later = bench.drive(bench.loop()).rounds
    [issue] = first.abandoned
    assert first.locked_design is not None
    assert (issue.file, first.lock_file) == ("design.lock", "design-repair-1.lock")
    assert first.locked_design == issue.design.model_copy(
        update={name: getattr(first.locked_design, name) for name in ("code", "seeds", "repaired")}
    )
    assert [each.locked_design.inquiry.previous for each in later[:1]] == [first.design_hash]
    assert proof(bench).drifts == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda design, before: {"question": "Another one?"}, "more than the source"),
        (lambda design, before: {"alpha": 0.5}, "more than the source"),
        (lambda design, before: {"code": before["code"]}, "more than the source"),
        (lambda design, before: {"seeds": before["seeds"]}, "fresh ones"),
        (lambda design, before: {"repaired": "0" * 64}, "expected an early crash under the one"),
        (lambda design, before: {"repaired": ""}, "a design was locked before"),
    ],
)  # fmt: skip
def test_the_log_takes_no_lock_that_repairs_more_than_the_code(fast_path: Path, change: Any, why: str) -> None:
    bench = bench_of(fast_path, Repair(code=MENDED))
    bench.until(lambda state: state.abandoned)
    events = bench.events()
    before, lock = (event for event in events if event.type is EventType.DESIGN_LOCKED)
    earlier = events[: lock.seq - 1]

    def take(events: Sequence[Event], **change: Any) -> StudyState:
        design = Design.model_validate({**lock.payload["design"], **change})
        payload = {"design": design.model_dump(mode="json"), "hash": design.hash(), "file": "design-repair-1.lock"}
        event = bench.log.compose(STUDY, EventType.DESIGN_LOCKED, payload, after=events[-1])
        return fold([event], fold(events))

    assert take(earlier).abandoned
    longer = replace(fold(earlier), length=RunLength.model_construct(steps=99))  # of which no run is yet
    again = fold(events[lock.seq - 1 : lock.seq], longer)
    assert (again.runs_in("confirm"), again.length, again.crashed) == ((), None, "")
    with pytest.raises(LogCorrupt, match=why):
        take(earlier, **change(lock.payload["design"], before.payload["design"]))
    unasked = [event for event in earlier if event.payload.get("turn") != "1/repair/1"]
    with pytest.raises(LogCorrupt, match="the turn 1/repair/1"):
        take(unasked)
    with pytest.raises(LogCorrupt, match="expected an early crash"):
        take(events[: before.seq - 1], inquiry=None)


def test_nothing_is_repaired_once_a_verdict_stands(fast_path: Path) -> None:
    bench = bench_of(fast_path, Settle(reason="No."))
    events, folded = (bench.drive(bench.loop()), bench.events())[1], list[bool]()
    for event in events:
        state = fold(events[: event.seq])
        folded.append(state.repairable is not None)
        assert not (folded[-1] and state.verdicts)
    assert any(folded)


def test_code_of_a_vetoed_claim_is_not_repaired_at_the_cost_of_another_one(fast_path: Path) -> None:
    bench = bench_of(fast_path, Settle(reason="No."))
    one = bench.planner._claims[0]
    bench.planner._claims = (one, one.model_copy(update={"treatment": "other", "code": AGAIN}))
    bench.drive(bench.loop())
    states = (fold(bench.events()[: event.seq]) for event in bench.events())
    state = next(state for state in states if state.repairable is not None)
    limits = StepLimits(60_000.0, 2)
    assert [step.run_id for step in repair_step(state, limits)] == [state.crashed]
    assert not list(repair_step(replace(state, vetoed={"h1": Veto(1, "", "no", "user")}), limits))


def test_a_crash_after_the_attempt_went_on_late_is_late(fast_path: Path) -> None:
    bench = bench_of(fast_path, Settle(reason="No."))
    crash = next(run for run in bench.drive(bench.loop()).runs.values() if run.crashed_early)
    on = replace(crash.attempts[-1], step=0, resumed_at=2)  # whose server was not seen again
    assert not replace(crash, attempts=(on,)).crashed_early


def test_a_language_model_is_asked_for_a_text_or_to_leave_it(fast_path: Path) -> None:
    bench = bench_of(fast_path, Repair(code=MENDED))
    bench.drive(bench.loop())
    [shown] = [digest for digest in bench.planner.shown if digest.stage == "repair"]
    asked = due_schema(shown)["properties"]
    assert (asked["action"]["enum"], asked.keys()) == (["repair", "settle"], {"action", "code", "reason"})
    assert parse_action(shown, {"action": "repair", "code": MENDED, "reason": ""}) == Repair(code=MENDED)
    assert parse_action(shown, {"action": "settle", "code": "", "reason": "No."}) == Settle(reason="No.")
    assert BROKEN in messages(shown)[1]["content"]


def test_code_that_ends_runs_which_go_badly_gains_no_false_claims_by_two_repairs() -> None:
    """Each of its runs knows its outcome up to a correlation of 0.7, and ends itself below a quantile."""
    draw, studies, known = np.random.default_rng(1), 20_000, 0.7
    for seeds, share in ((5, 0.03), (5, 0.1), (12, 0.03), (12, 0.1)):
        claimed, over = 0, np.zeros(studies, bool)
        for _issue in range(3):
            seen, rest, control = draw.standard_normal((3, studies, seeds))
            survive = (seen > norm.ppf(share)).all(1) & ~over
            p = ttest_ind(known * seen + (1 - known**2) ** 0.5 * rest, control, axis=1, equal_var=False).pvalue
            claimed += int(np.sum(survive & (p < 0.05)))
            over |= survive
        assert claimed / studies < 0.055
