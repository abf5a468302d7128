from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import Event, EventType
from studies.checks.confounders import Violation
from studies.records.design import Arm, Design, RunSpec
from studies.records.procedure import InterimAnalysis, Pilot, PowerTarget
from studies.records.runs import Conditions
from studies.statistics.power import spend_alpha
from studies.verdicts.judge import NO_RESULT, find_violations, gather, judge_hypothesis, seeds_by_runs, verdict_follows
from tests.golden import assert_golden
from tests.studies.synthetic import Synthetic, design, hypothesis

CONTROL, TREATMENT = "group_size=4", "group_size=16"
CLAIMS = (hypothesis("h1", 16), hypothesis("h2", 8))
LOOKS = (InterimAnalysis(seeds=3, alpha=0.014), InterimAnalysis(seeds=5, alpha=0.045))


def locked(**changes: Any) -> Design:
    given: dict[str, Any] = {"test": "pooled", "looks": LOOKS, "exclusions": ("lost",), "counted_as_worst": ("NAN",)}
    return design(**(given | changes))


def give_up(study: Synthetic, spec: RunSpec, code: str, status: str = "failed") -> None:
    study.launch(spec)
    study.end(spec, status=status, code=code)
    study.give_up(spec, code)


def test_a_look_sees_the_runs_of_its_own_seeds_whatever_else_came_in(study: Synthetic) -> None:
    specs = study.begin(locked())
    early = judge_hypothesis(study.run_all(specs[:6]), "h1", look=1)
    state = study.run_all(specs[6:])
    assert judge_hypothesis(state, "h1", look=1) == early
    assert (early.n_control, judge_hypothesis(state, "h1", look=2).n_control) == (3, 5)
    assert set(gather(state, look=1)[CONTROL].seeds.values()) == set(state.design.seeds[:3])


@pytest.mark.parametrize(("most", "seeds"), [(None, 9), (12, 6), (5, 3), (100, 9)])
def test_a_pilot_leads_to_no_more_seeds_than_runs_may_be_planned_for(
    study: Synthetic, most: int | None, seeds: int
) -> None:
    promise = PowerTarget(power=0.8, effect=0.1)
    chosen = locked(seeds=9, looks=(), pilot=Pilot(seeds=3, most=9), promise=promise)
    study.create(settings={"budget_s": 900.0, "max_runs": most, "parallel": 2, "approve": "none"})
    study.lock(chosen)
    for spec in [study.spec(arm.name, seed) for seed in chosen.seeds[:3] for arm in chosen.arms]:
        study.put(spec)
    assert seeds_by_runs(study.state()) == seeds


def test_every_launched_run_is_handed_on_with_its_value_or_its_code(study: Synthetic) -> None:
    specs = study.begin(locked(seeds=6, looks=()))
    study.run_all(specs[:6])
    give_up(study, specs[6], "lost")
    give_up(study, specs[7], "NAN")
    study.launch(specs[8])
    data = gather(study.state(), look=1)
    control, treatment = data[CONTROL], data[TREATMENT]
    assert (len(control.values), sorted(control.excluded.values())) == (3, ["lost", NO_RESULT])
    assert (len(treatment.values), list(treatment.worst.values())) == (3, ["NAN"])
    found = judge_hypothesis(study.state(), "h1", look=1)
    assert found.verdict == "invalid"
    assert_golden(found.reason)


def test_a_run_that_was_never_launched_or_given_up_before_it_began_is_none_that_is_left_out(study: Synthetic) -> None:
    specs = study.begin(design(seeds=6, exclusions=("budget_exhausted",), most_excluded=0.2))
    study.run_all(specs[:8])
    assert judge_hypothesis(study.state(), "h1", look=1).verdict == "supported"
    for spec in specs[8:]:
        study.give_up(spec, "budget_exhausted")
    verdict = judge_hypothesis(study.state(), "h1", look=1)
    assert (verdict.verdict, verdict.n_control, verdict.n_treatment) == ("supported", 4, 4)
    assert verdict.excluded == {}


@pytest.mark.parametrize(("status", "expected"), [("stopped", "supported"), ("failed", "invalid")])
def test_runs_that_the_study_cut_short_are_told_and_are_no_selection(
    study: Synthetic, status: str, expected: str
) -> None:
    specs = study.begin(design(seeds=6, exclusions=("budget_exhausted",), most_excluded=0.2))
    study.run_all(specs[:6])
    for spec in specs[6:8]:
        give_up(study, spec, "budget_exhausted", status)
    verdict = judge_hypothesis(study.state(), "h1", look=1)
    assert (verdict.verdict, verdict.n_control, verdict.n_treatment) == (expected, 3, 3)
    assert sum(verdict.excluded.values()) == 2


@pytest.mark.parametrize("accepted", [False, True])
def test_a_verdict_of_an_earlier_version_follows_though_its_rule_is_gone(
    study: Synthetic, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """One in 200 studies of nothing came to it, and its log is no forged one today."""
    study.run_all(study.begin(locked()))
    if accepted:
        study.amend(target="subgroup")
    turned = Violation("subgroup", "B differs by +0.001 over all tasks but by -0.004 in easy", blocks=True)
    with monkeypatch.context() as earlier:
        earlier.setattr("studies.verdicts.judge.find_violations", lambda *_: (turned,))
        (found,) = study.say("h1", look=2)
    assert (found.verdict, found.violations, found.exploratory) == (
        "supported" if accepted else "invalid", (turned.line,), accepted,
    )  # fmt: skip
    assert verdict_follows(study.state(), found)
    assert not any("verdict" in str(drift) for drift in study.drifts())


def test_an_edited_lock_makes_the_verdict_invalid(study: Synthetic) -> None:
    state = study.run_all(study.begin(locked()))
    found = judge_hypothesis(state, "h1", look=2, lock_error="It was edited.")
    assert (found.verdict, found.reason) == ("invalid", "It was edited.")
    assert (found.low, found.p, found.brier, found.n_control) == (None, None, None, 5)


class Conditioned(Synthetic):
    """Every collected run carries its conditions, as a real harness records them."""

    steps: dict[str, int] = {CONTROL: 40, TREATMENT: 60}  # noqa: RUF012

    def append(self, type: EventType, **payload: Any) -> Event:
        if type is EventType.RUN_COLLECTED:
            arm = self.state().runs[payload["run_id"]].spec.arm
            payload["conditions"] = Conditions(steps=self.steps[arm]).model_dump(mode="json")
        return super().append(type, **payload)


@pytest.fixture
def conditioned(tmp_path: Path) -> Conditioned:
    return Conditioned(tmp_path)


def test_arms_that_trained_unlike_are_no_test_until_an_amendment_accepts_it(conditioned: Conditioned) -> None:
    state = conditioned.run_all(conditioned.begin(locked()))
    (violation,) = find_violations(state, "h1", gather(state, look=2))
    found = judge_hypothesis(state, "h1", look=2)
    assert (found.verdict, found.violations) == ("invalid", (f"{violation.code}: {violation.sentence}",))
    assert violation.sentence in found.reason
    conditioned.amend(target=violation.code)
    after = judge_hypothesis(conditioned.state(), "h1", look=2)
    assert (after.verdict, after.violations, after.exploratory) == ("supported", found.violations, True)


def test_an_amendment_before_the_first_result_or_about_something_else_leaves_a_claim_what_it_was(
    conditioned: Conditioned,
) -> None:
    specs = conditioned.begin(locked())
    conditioned.amend(target="unequal_steps")
    conditioned.run_all(specs)
    conditioned.amend(target="co_tenancy")
    conditioned.amend(target="unequal_steps")  # what is accepted twice was accepted when it was accepted first
    (found,) = conditioned.say("h1", look=2)
    assert (found.verdict, found.exploratory) == ("supported", False)
    conditioned.amend(target="unequal_steps")
    assert judge_hypothesis(conditioned.state(), "h1", look=2) == found


@pytest.mark.parametrize("concluded", [False, True])
def test_an_exclusion_that_the_lock_does_not_name_passes_only_by_an_amendment_before_the_conclusion(
    study: Synthetic, concluded: bool
) -> None:
    specs = study.begin(locked(looks=()))
    study.run_all(specs[1:])
    give_up(study, specs[0], "client_died")
    before = judge_hypothesis(study.state(), "h1", look=1)
    assert before.verdict == "invalid"
    if concluded:
        study.conclude()
    study.amend(target="client_died")
    found = judge_hypothesis(study.state(), "h1", look=1)
    assert (found.verdict, found.exploratory) == (("invalid", False) if concluded else ("supported", True))
    assert found == before if concluded else found.excluded == {f"{CONTROL}: client_died": 1}


def test_a_hypothesis_settled_at_an_earlier_look_keeps_its_p_and_later_looks_recompute(study: Synthetic) -> None:
    study.means |= {TREATMENT: 0.9, "group_size=8": 0.53}
    specs = study.begin(locked(hypotheses=CLAIMS, looks=spend_alpha((3, 5)), multiplicity="dunnett_bh"))
    study.run_all(specs[:9])
    study.say("h1", "h2")
    state = study.state()
    assert [(v.verdict, v.final) for v in state.verdicts] == [("supported", True), ("inconclusive", False)]
    assert judge_hypothesis(state, "h2", look=1) == state.verdict_on("h2")
    study.append(EventType.DECISION_TAKEN, rule="look-again", action="continue", reason="open", hypothesis="h2", look=1)
    study.run_all([spec for spec in specs[9:] if spec.arm != TREATMENT])
    (second,) = study.say("h2", look=2)
    state = study.state()
    assert judge_hypothesis(state, "h2", look=2) == second
    assert judge_hypothesis(state, "h1", look=1) == state.verdict_on("h1")
    assert (second.n_control, second.n_treatment) == (5, 5)


def test_what_the_design_does_not_have_or_claims_nothing_is_not_judged(study: Synthetic) -> None:
    study.create()
    with pytest.raises(ValueError, match="no design"):
        judge_hypothesis(study.state(), "h1", look=1)
    study.lock(locked())
    for wrong, named in (
        ({"look": 3}, "between 1 and 2; found 3"),
        ({"phase": "replicate"}, "has no replication"),
        ({"hypothesis": "h7"}, "'h7'"),
        ({"phase": "noise"}, "feed no claim"),
        ({"phase": "screen"}, "feed no claim"),
    ):
        with pytest.raises(ValueError, match=named):
            judge_hypothesis(study.state(), **({"hypothesis": "h1", "look": 1} | wrong))


@pytest.mark.parametrize("vetoed", ["before the second look", "between two verdicts of one look"])
def test_a_veto_of_another_hypothesis_leaves_a_verdict_that_stands_what_it_was(study: Synthetic, vetoed: str) -> None:
    study.means |= {TREATMENT: 0.53, "group_size=8": 0.53}
    specs = study.begin(locked(hypotheses=CLAIMS, looks=spend_alpha((3, 5)), multiplicity="dunnett_bh"))
    study.run_all(specs[:9])
    if vetoed == "before the second look":
        study.say("h2")
        study.veto("h2")
    else:
        study.say("h1", "h2", then="continue")
    study.run_all(specs[9:])
    (second,) = study.say("h1", look=2)
    if vetoed != "before the second look":
        study.veto("h2")
    assert study.state().is_settled("h2")
    assert judge_hypothesis(study.state(), "h1", look=2) == second


def test_a_claim_that_the_linter_forbids_makes_no_room_for_another(conditioned: Conditioned) -> None:
    other = hypothesis("h2", 0.01, variable="learning_rate", control=0.001)
    arms = (*design().arms, Arm(name="lr=0.01", overrides={"learning_rate": 0.01, "group_size": 4}))
    arms = (arms[0].model_copy(update={"overrides": {"group_size": 4, "learning_rate": 0.001}}), *arms[1:])
    chosen = locked(arms=arms, hypotheses=(hypothesis(), other), looks=(), multiplicity="dunnett_bh")
    conditioned.steps = {CONTROL: 40, TREATMENT: 40, "lr=0.01": 60}
    conditioned.means["lr=0.01"] = 0.9
    state = conditioned.run_all(conditioned.begin(chosen))
    assert judge_hypothesis(state, "h2", look=1).verdict == "invalid"
    assert judge_hypothesis(state, "h1", look=1).level == pytest.approx(1 - 0.05 / 2)
