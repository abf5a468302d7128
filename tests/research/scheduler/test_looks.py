"""Turns at looks and at the end: a planner may give up what is open, and nothing waits for it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.planners.context import Check, PlannerContext, PlannerTurn
from research.proposals.actions import Action, GoOn, Note, Settle
from research.scheduler.steps import Decide
from studies import EventType, StudyState
from studies.log.study import LOOK_RULE
from studies.records.design import Arm
from studies.records.procedure import InterimAnalysis
from tests.research.bench import STUDY, Bench, ClosesWithoutWords, Knows, examples, scratch
from tests.research.designs import CONTROL, base_job, claim, design
from tests.research.fakes import ANSWERED, ScriptedPlanner

DULL = "It is supported, p = 0.99999, and dull."


class Looking(ScriptedPlanner):
    """Says `answer` after the first look, and goes on after later ones."""

    def __init__(self, answer: Action | Exception) -> None:
        super().__init__()
        self.answer, self.mute = answer, False

    def act(self, digest: PlannerContext, check: Check) -> PlannerTurn:
        if digest.stage == "conclude" and self.mute:
            raise ConnectionError("the planner is gone")
        if digest.stage != "look":
            return super().act(digest, check)
        self.asked.append("look")
        self.shown.append(digest)
        action = self.answer if self.asked.count("look") == 1 else GoOn()
        if isinstance(action, Exception):
            raise action
        assert check(action) is None
        return PlannerTurn(action, side_actions=(Note(text=f"Look {self.asked.count('look')}."),))


def noisy(path: Path, monkeypatch: pytest.MonkeyPatch, answer: Action | Exception, **more: Any) -> Bench:
    """Return a study of a single claim with looks of 7, 10 and 13 seeds, none of which decides."""
    monkeypatch.setattr(Knows, "sd", 0.08)
    bench = Bench(path, **{"budget_s": 60_000.0, **more})
    bench.planner = Looking(answer)
    gain = 0.05  # about half the margin
    bench.sandbox.rate = lambda spec: (
        0.5 + gain * (spec.job["group_size"] == 16) + 0.08 * random.Random(spec.seed).gauss(0, 1)
    )
    return bench


def decided(state: StudyState) -> list[tuple[str, str]]:
    return [(decision.rule, decision.action) for decision in state.decisions if decision.hypothesis]


def test_a_planner_gives_up_after_a_look_and_its_words_are_quoted_with_what_is_wrong_in_them(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = noisy(fast_path, monkeypatch, Settle(reason=DULL))
    state = bench.drive(bench.loop())
    assert (state.status, len(state.runs_in("confirm"))) == ("concluded", 14)
    assert decided(state) == [(LOOK_RULE, "settle")]
    [verdict], reason = state.verdicts, state.decisions[0].reason
    assert (verdict.verdict, verdict.look) == ("inconclusive", 1)
    assert [part for part in (DULL, "no fact: 0.99999", "not reached: supported") if part not in reason] == []
    shown = bench.planner.shown[-2].facts()
    assert shown["look"]["to_the_next_look"] == {"runs": 6, "seconds": 15}
    assert [entry["seeds"] for entry in shown["look"]["looks"]] == [7, 10, 13]
    assert (shown["verdicts"][0]["p"], [arm["n"] for arm in shown["arms"]]) == (verdict.p, [7, 7])
    assert bench.planner.asked == ["propose", "design", "look", "conclude"]


@pytest.mark.parametrize("answer", [ValueError("a planner's own fault"), cast(Any, None), GoOn(reason="On.")])
def test_the_table_decides_where_no_answer_comes_and_so_it_does_where_the_planner_goes_on(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    bench = noisy(fast_path, monkeypatch, answer)
    state = bench.drive(bench.loop())
    rules = [LOOK_RULE if isinstance(answer, GoOn) else "look-again", LOOK_RULE]
    assert decided(state) == [*zip(rules, ["continue"] * 2, strict=True), ("out-of-looks", "settle")]
    assert (state.status, len(state.runs_in("confirm"))) == ("concluded", 26)


def test_the_rules_are_asked_nothing_and_leave_nothing_in_the_log(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = noisy(fast_path, monkeypatch, Settle(reason=DULL), planner="rules", budget_s=400.0)
    bench.tick_s = 30.0
    state = bench.drive(bench.loop())
    assert state.status == "stopped"
    assert {"look", "conclude"}.isdisjoint(bench.planner.asked)
    assert EventType.PLANNER_SPOKE not in {event.type for event in bench.events()}


@pytest.mark.parametrize("written", [True, False])
def test_a_controller_killed_anywhere_between_turn_file_and_decision_asks_once(
    monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    with scratch() as folder:
        whole, killed = (noisy(folder / name, monkeypatch, Settle(reason=DULL)) for name in ("whole", "killed"))
        whole.drive(whole.loop())
        state, _ = killed.drive_by_single_events(written=written)
        assert killed.planner.asked == whole.planner.asked
        assert [d.reason for d in state.decisions] == [d.reason for d in whole.loop().state().decisions]
        assert [note.text for note in state.notebook] == ["Look 1."]
        turn = json.loads((killed.home.study(STUDY) / "planning" / "look.json").read_text())
        assert (turn["action"]["action"], turn["said"]["text"]) == ("settle", DULL)
    assert any("in no fact: 0.99999" in decision.reason for decision in state.decisions)


class GivesUp(ClosesWithoutWords):
    """Gives up at a look; the first decision of its answer may be all that is written."""

    def __init__(self, look: int, cut: bool) -> None:
        self.look, self.cut, self.offered = look, cut, list[tuple[set[str], set[str]]]()

    def decide_look(self, state: StudyState, decisions: tuple[Decide, ...], seconds_left: float) -> tuple[Decide, ...]:
        assert state.design is not None
        still = {claim.id for claim in state.design.hypotheses if not state.is_settled(claim.id)}
        self.offered.append(({str(decision.hypothesis) for decision in decisions}, still))
        if decisions[0].look != self.look:
            return decisions
        given = tuple(replace(decision, rule=LOOK_RULE, action="settle") for decision in decisions)
        return given[:1] if self.cut else given


def families(multiplicity: str) -> dict[str, Any]:
    """Return a design of two claims on two fields that share a control, eager enough to claim something."""
    arms = (CONTROL, Arm(name="big", overrides={"group_size": 16}), Arm(name="cool", overrides={"temperature": 0.5}))
    claims = (claim(), claim(name="h2", variable="temperature", control=1.0, treatment=0.5))
    looks = tuple(InterimAnalysis(seeds=count, alpha=0.2) for count in (2, 3, 4))
    return {
        "arms": arms, "hypotheses": claims, "looks": looks, "multiplicity": multiplicity,
        "base_job": {**base_job(), "temperature": 1.0},
    }  # fmt: skip


@settings(max_examples=examples(2))
@given(
    source=st.integers(0, 10**6), look=st.integers(1, 2), cut=st.booleans(),
    multiplicity=st.sampled_from(["dunnett_bh", "dunnett_bonferroni"]),
)  # fmt: skip
def test_a_planner_that_gives_up_at_random_makes_no_claim_that_would_not_have_been_made(
    source: int, look: int, cut: bool, multiplicity: str
) -> None:
    made = []
    for gives_up in (look, 0):
        with scratch() as folder:
            bench = Bench(folder, design=design(16, **families(multiplicity)))
            bench.closing = closing = GivesUp(gives_up, cut)
            bench.sandbox.rate = lambda spec: random.Random(f"{source} {spec.seed} {spec.arm}").random()
            state = bench.drive(bench.loop())
            assert state.status == "concluded"
            assert [asked for asked, still in closing.offered if asked != still] == [], "all that is open, or none"
            made.append({(v.hypothesis, v.verdict, v.look) for v in state.verdicts if v.verdict != "inconclusive"})
            if gives_up and any(rule == LOOK_RULE for rule, _ in decided(state)):
                assert {v.look for v in state.verdicts} <= set(range(1, gives_up + 1))
    assert made[0] <= made[1]


def test_at_a_budgets_end_the_planner_is_asked_for_its_words_and_anew_after_more_budget(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = noisy(fast_path, monkeypatch, GoOn(), budget_s=600.0)
    bench.tick_s = 60.0
    state = bench.drive(bench.loop())
    assert (state.status, state.concluded_reason) == ("stopped", None)
    assert state.said is not None
    assert state.said.text == ANSWERED
    assert [event.type for event in bench.events()[-2:]] == [EventType.PLANNER_SPOKE, EventType.REPORT_BUILT]
    more = {"kind": "budget", "target": "", "value": 60_000.0, "reason": "more"}
    bench.append(EventType.DESIGN_AMENDED, amendment=more)
    bench.append(EventType.STUDY_RESUMED, command=[], worked_s=0.0)
    assert bench.loop().state().said is None, "words on less are not the last ones"
    bench.tick_s = 1.0
    state = bench.drive(bench.loop())
    assert state.status == "concluded"
    assert bench.planner.asked.count("conclude") == 2
    assert [act.turn for act in state.planner_acts if act.action == "conclude"] == ["1/conclude/1", "1/conclude/2"]


def test_words_that_do_not_come_hold_up_no_end(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = noisy(fast_path, monkeypatch, GoOn(), budget_s=600.0)
    bench.tick_s, bench.planner.mute = 60.0, True
    state = bench.drive(bench.loop())
    assert (state.status, state.said, state.report is not None) == ("stopped", None, True)
    [spoken] = [event for event in bench.events() if event.type is EventType.PLANNER_SPOKE]
    assert "said" not in spoken.payload
