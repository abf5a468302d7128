from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from studies import EventType, StudyState
from studies.records.design import Arm, Design, RunSpec
from studies.records.design_parts import Amendment, Look, Replication
from studies.records.run_data import Conditions
from studies.records.verdict import Verdict
from studies.statistics.looks import spend
from studies.verdicts.judge import NO_RESULT, gather, judge_hypothesis, violations
from tests.studies.synthetic import Synthetic, design, hypothesis

CONTROL, TREATMENT = "group_size=4", "group_size=16"
LOOKS = (Look(seeds=3, alpha=0.014), Look(seeds=5, alpha=0.045))


def locked(**changes: Any) -> Design:
    given: dict[str, Any] = {"test": "pooled", "looks": LOOKS, "exclusions": ("lost",), "counted_as_worst": ("NAN",)}
    return design(**(given | changes))


@pytest.fixture
def study(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


def begun(study: Synthetic, chosen: Design) -> list[RunSpec]:
    study.create()
    study.lock(chosen)
    return study.plan()


def finished(study: Synthetic, chosen: Design) -> StudyState:
    for spec in begun(study, chosen):
        study.run(spec)
    return study.state()


def give_up(study: Synthetic, spec: RunSpec, code: str) -> None:
    study.launch(spec)
    study.end(spec, status="failed", code=code)
    study.append(EventType.RUN_INVALIDATED, run_id=spec.run_id, code=code, reason="made up for a test")


def amend(study: Synthetic, code: str) -> None:
    amendment = Amendment(kind="accept", target=code, reason="Known and harmless.")
    study.append(EventType.DESIGN_AMENDED, amendment=amendment.model_dump(mode="json"))


def say(study: Synthetic, verdict: Verdict) -> None:
    study.append(EventType.VERDICT_COMPUTED, **json.loads(verdict.model_dump_json()))


def test_a_look_sees_the_runs_of_its_own_seeds_whatever_else_came_in(study: Synthetic) -> None:
    specs = begun(study, locked())
    for spec in specs[:6]:
        study.run(spec)
    early = judge_hypothesis(study.state(), "h1", look=1)
    for spec in specs[6:]:
        study.run(spec)
    state = study.state()
    assert judge_hypothesis(state, "h1", look=1) == early
    assert (early.n_control, judge_hypothesis(state, "h1", look=2).n_control) == (3, 5)
    assert set(gather(state, look=1)[CONTROL].seeds.values()) == set(state.design.seeds[:3] if state.design else ())


def test_every_launched_run_is_handed_on_with_its_value_or_its_code(study: Synthetic) -> None:
    specs = begun(study, locked(seeds=6, looks=()))
    for spec in specs[:6]:
        study.run(spec)
    give_up(study, specs[6], "lost")
    give_up(study, specs[7], "NAN")
    study.launch(specs[8])
    data = gather(study.state(), look=1)
    control, treatment = data[CONTROL], data[TREATMENT]
    assert (len(control.values), sorted(control.excluded.values())) == (3, ["lost", NO_RESULT])
    assert (len(treatment.values), list(treatment.worst.values())) == (3, ["NAN"])
    found = judge_hypothesis(study.state(), "h1", look=1)
    assert found.verdict == "invalid"
    assert f"1 of 5 runs of {CONTROL} ended as {NO_RESULT}" in found.reason


def test_a_run_that_was_given_up_before_it_began_is_none_that_is_left_out(study: Synthetic) -> None:
    specs = begun(study, design(seeds=6, exclusions=("budget_exhausted",), most_excluded=0.2))
    for spec in specs[:8]:
        study.run(spec)
    for spec in specs[8:]:
        study.append(EventType.RUN_INVALIDATED, run_id=spec.run_id, code="budget_exhausted", reason="no time left")
    verdict = judge_hypothesis(study.state(), "h1", look=1)
    assert (verdict.verdict, verdict.n_control, verdict.n_treatment) == ("supported", 4, 4)
    assert verdict.excluded == {}


@pytest.mark.parametrize(("status", "expected"), [("stopped", "supported"), ("failed", "invalid")])
def test_runs_that_the_study_cut_short_are_told_and_are_no_selection(
    study: Synthetic, status: str, expected: str
) -> None:
    specs = begun(study, design(seeds=6, exclusions=("budget_exhausted",), most_excluded=0.2))
    for spec in specs[:6]:
        study.run(spec)
    for spec in specs[6:8]:
        study.launch(spec)
        study.end(spec, status=status, code="budget_exhausted", reason="no time left")
        study.append(EventType.RUN_INVALIDATED, run_id=spec.run_id, code="budget_exhausted", reason="no time left")
    verdict = judge_hypothesis(study.state(), "h1", look=1)
    assert (verdict.verdict, verdict.n_control, verdict.n_treatment) == (expected, 3, 3)
    assert sum(verdict.excluded.values()) == 2


def test_a_run_that_was_never_launched_is_no_lost_run(study: Synthetic) -> None:
    specs = begun(study, locked(seeds=6, looks=()))
    for spec in specs[:6]:
        study.run(spec)
    assert judge_hypothesis(study.state(), "h1", look=1).verdict != "invalid"


def test_an_edited_lock_makes_the_verdict_invalid(study: Synthetic) -> None:
    state = finished(study, locked())
    found = judge_hypothesis(state, "h1", look=2, lock_error="The file design.lock was edited.")
    assert (found.verdict, found.reason) == ("invalid", "The file design.lock was edited.")
    assert (found.low, found.p, found.n_control) == (None, None, 5)


def conditioned(
    study: Synthetic,
    monkeypatch: pytest.MonkeyPatch,
    steps: dict[str, int],
    kinds: dict[str, dict[str, list[int]]] | None = None,
) -> None:
    """Let every collected run carry conditions, as a real harness records them."""
    append = study.append

    def with_conditions(type: EventType, **payload: Any) -> Any:
        if type is EventType.RUN_COLLECTED:
            arm = study.state().runs[payload["run_id"]].spec.arm
            payload["conditions"] = Conditions(steps=steps[arm]).model_dump(mode="json")
            payload["kinds"] = (kinds or {}).get(arm, {})
        return append(type, **payload)

    monkeypatch.setattr(study, "append", with_conditions)


def test_an_effect_that_turns_around_in_every_kind_of_task_is_none(
    study: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixes = {CONTROL: {"easy": [18, 20], "hard": [30, 80]}, TREATMENT: {"easy": [68, 80], "hard": [6, 20]}}
    conditioned(study, monkeypatch, {CONTROL: 40, TREATMENT: 40}, mixes)
    state = finished(study, locked())
    assert [violation.code for violation in violations(state, "h1", gather(state, look=2))] == ["subgroup"]
    assert judge_hypothesis(state, "h1", look=2).verdict == "invalid"


def test_arms_that_trained_unlike_are_no_test_until_an_amendment_accepts_it(
    study: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditioned(study, monkeypatch, {CONTROL: 40, TREATMENT: 60})
    state = finished(study, locked())
    (violation,) = violations(state, "h1", gather(state, look=2))
    found = judge_hypothesis(state, "h1", look=2)
    assert found.verdict == "invalid"
    assert found.violations == (f"{violation.code}: {violation.sentence}",)
    assert violation.sentence in found.reason
    amend(study, violation.code)
    after = judge_hypothesis(study.state(), "h1", look=2)
    assert after.verdict == "supported"
    assert after.violations == found.violations
    assert after.exploratory


def test_an_amendment_before_the_first_result_or_about_something_else_leaves_a_claim_what_it_was(
    study: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditioned(study, monkeypatch, {CONTROL: 40, TREATMENT: 60})
    specs = begun(study, locked())
    amend(study, "unequal_steps")
    for spec in specs:
        study.run(spec)
    amend(study, "co_tenancy")
    found = judge_hypothesis(study.state(), "h1", look=2)
    assert (found.verdict, found.exploratory) == ("supported", False)


def test_an_exclusion_that_the_lock_does_not_name_passes_by_amendment_only(study: Synthetic) -> None:
    specs = begun(study, locked(looks=()))
    for spec in specs[1:]:
        study.run(spec)
    give_up(study, specs[0], "client_died")
    assert judge_hypothesis(study.state(), "h1", look=1).verdict == "invalid"
    amend(study, "client_died")
    found = judge_hypothesis(study.state(), "h1", look=1)
    assert (found.verdict, found.exploratory) == ("supported", True)
    assert found.excluded == {f"{CONTROL}: client_died": 1}


def test_an_amendment_that_no_verdict_waited_for_takes_none_back(study: Synthetic) -> None:
    claims = (hypothesis("h1", 16), hypothesis("h2", 8))
    chosen = locked(hypotheses=claims, looks=(), multiplicity="dunnett_bh")
    specs = begun(study, chosen)
    for spec in specs[:-1]:
        study.run(spec)
    give_up(study, specs[-1], "client_died")
    first, second = (judge_hypothesis(study.state(), name, look=1) for name in ("h1", "h2"))
    assert (first.verdict, second.verdict) == ("supported", "invalid")
    amend(study, "client_died")
    state = study.state()
    assert judge_hypothesis(state, "h1", look=1) == first
    assert judge_hypothesis(state, "h2", look=1).verdict != "invalid"


def test_an_amendment_after_the_conclusion_changes_no_verdict(study: Synthetic) -> None:
    specs = begun(study, locked(looks=()))
    for spec in specs[1:]:
        study.run(spec)
    give_up(study, specs[0], "client_died")
    before = judge_hypothesis(study.state(), "h1", look=1)
    study.conclude()
    amend(study, "client_died")
    assert judge_hypothesis(study.state(), "h1", look=1) == before


def test_a_hypothesis_settled_at_an_earlier_look_keeps_its_p_and_later_looks_recompute(study: Synthetic) -> None:
    claims = (hypothesis("h1", 16), hypothesis("h2", 8))
    chosen = locked(hypotheses=claims, looks=spend((3, 5)), multiplicity="dunnett_bh")
    study.means |= {TREATMENT: 0.9, "group_size=8": 0.53}
    specs = begun(study, chosen)
    for spec in specs[:9]:
        study.run(spec)
    for name in ("h1", "h2"):
        say(study, judge_hypothesis(study.state(), name, look=1))
    state = study.state()
    assert [(v.verdict, v.final) for v in state.verdicts] == [("supported", True), ("inconclusive", False)]
    assert judge_hypothesis(state, "h2", look=1) == state.verdict_on("h2"), "whichever of a look is judged first"
    study.append(EventType.DECISION_TAKEN, rule="look-again", action="continue", reason="open", hypothesis="h2", look=1)
    for spec in specs[9:]:
        if spec.arm != TREATMENT:
            study.run(spec)
    second = judge_hypothesis(study.state(), "h2", look=2)
    say(study, second)
    state = study.state()
    assert judge_hypothesis(state, "h2", look=2) == second
    assert judge_hypothesis(state, "h1", look=1) == state.verdict_on("h1")
    assert (second.n_control, second.n_treatment) == (5, 5)


@pytest.mark.parametrize("phase", ["noise", "screen"])
def test_runs_that_feed_no_claim_are_not_judged(study: Synthetic, phase: Any) -> None:
    with pytest.raises(ValueError, match="feed no claim"):
        judge_hypothesis(finished(study, locked()), "h1", look=1, phase=phase)


def test_what_the_design_does_not_have_is_not_judged(study: Synthetic) -> None:
    study.create()
    with pytest.raises(ValueError, match="has no design to judge by"):
        judge_hypothesis(study.state(), "h1", look=1)
    study.lock(locked())
    for wrong, said in (
        ({"look": 3}, "the look must lie between 1 and 2; found 3"),
        ({"look": 1, "phase": "replicate"}, "has no replication"),
    ):
        with pytest.raises(ValueError, match=said):
            judge_hypothesis(study.state(), "h1", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no hypothesis 'h7'"):
        judge_hypothesis(study.state(), "h7", look=1)


def test_a_replication_that_was_not_run_is_invalid_and_counts_nothing(study: Synthetic) -> None:
    chosen = locked(replication=Replication(environment="other", seeds=(7, 8)))
    found = judge_hypothesis(finished(study, chosen), "h1", look=1, phase="replicate")
    assert (found.verdict, found.n_control, found.phase) == ("invalid", 0, "replicate")


def two_claims(study: Synthetic) -> tuple[Verdict, Verdict]:
    """Judge two claims on different variables at the first of two looks, neither of them to its end."""
    claims = (hypothesis("h1", 16), hypothesis("h2", 8))
    study.means |= {TREATMENT: 0.53, "group_size=8": 0.53}
    specs = begun(study, locked(hypotheses=claims, looks=spend((3, 5)), multiplicity="dunnett_bh"))
    for spec in specs[:9]:
        study.run(spec)
    for name in ("h1", "h2"):
        say(study, judge_hypothesis(study.state(), name, look=1))
        study.append(EventType.DECISION_TAKEN, rule="r", action="continue", reason="x", hypothesis=name, look=1)
    for spec in specs[9:]:
        study.run(spec)
    say(study, second := judge_hypothesis(study.state(), "h1", look=2))
    return second, judge_hypothesis(study.state(), "h2", look=2)


def test_a_veto_of_another_hypothesis_leaves_a_verdict_that_stands_what_it_was(study: Synthetic) -> None:
    second, _ = two_claims(study)
    study.append(EventType.HYPOTHESIS_VETOED, hypothesis="h2", reason="given up between two verdicts of one look")
    state = study.state()
    assert state.is_settled("h2")
    assert judge_hypothesis(state, "h1", look=2) == second


def test_what_is_accepted_twice_was_accepted_when_it_was_accepted_first(
    study: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditioned(study, monkeypatch, {CONTROL: 40, TREATMENT: 60})
    specs = begun(study, locked())
    amend(study, "unequal_steps")
    for spec in specs:
        study.run(spec)
    amend(study, "unequal_steps")
    found = judge_hypothesis(study.state(), "h1", look=2)
    assert (found.verdict, found.exploratory) == ("supported", False)
    say(study, found)
    amend(study, "unequal_steps")
    assert judge_hypothesis(study.state(), "h1", look=2) == found


def test_a_claim_that_the_linter_forbids_makes_no_room_for_another(
    study: Synthetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = hypothesis("h2", 0.01, variable="learning_rate", control=0.001)
    arms = (*design().arms, Arm(name="lr=0.01", overrides={"learning_rate": 0.01, "group_size": 4}))
    arms = (arms[0].model_copy(update={"overrides": {"group_size": 4, "learning_rate": 0.001}}), *arms[1:])
    chosen = locked(arms=arms, hypotheses=(hypothesis(), other), looks=(), multiplicity="dunnett_bh")
    conditioned(study, monkeypatch, {CONTROL: 40, TREATMENT: 40, "lr=0.01": 60})
    study.means["lr=0.01"] = 0.9
    state = finished(study, chosen)
    assert judge_hypothesis(state, "h2", look=1).verdict == "invalid"
    assert judge_hypothesis(state, "h1", look=1).level == pytest.approx(1 - 0.05 / 2)


def test_a_hypothesis_that_was_vetoed_before_keeps_its_p_for_a_later_look_too(study: Synthetic) -> None:
    claims = (hypothesis("h1", 16), hypothesis("h2", 8))
    specs = begun(study, locked(hypotheses=claims, looks=spend((3, 5)), multiplicity="dunnett_bh"))
    study.means |= {TREATMENT: 0.53, "group_size=8": 0.53}
    for spec in specs[:9]:
        study.run(spec)
    say(study, judge_hypothesis(study.state(), "h2", look=1))
    study.append(EventType.HYPOTHESIS_VETOED, hypothesis="h2", reason="given up after its first look")
    for spec in specs[9:]:
        study.run(spec)
    second = judge_hypothesis(study.state(), "h1", look=2)
    say(study, second)
    assert judge_hypothesis(study.state(), "h1", look=2) == second
