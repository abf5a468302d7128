"""The design compiler: sound, affordable, locked; otherwise refused with a price."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from research.design.compiler import REPLICATING_TABLE, accept_hypotheses, proposed_code, seed_source
from research.design.power import MOST_SEEDS
from research.design.pricing import Pricing, make_pricing
from research.design.requirements import StatisticalRequirements
from research.durations import parse_budget
from research.errors import DesignRefused
from research.noise.bank import NOISE_SEEDS, NoiseBank
from research.proposals.actions import (
    Conclude,
    Constant,
    Propose,
    ProposeDesign,
    ProposedHypothesis,
    ProposedKnob,
    ProposedReplication,
    ProposedRule,
    ProposedScreen,
)
from research.proposals.arms import lint_arms
from research.results.failure_codes import EXCLUDED_CODES, WORST_CODES
from studies.records.design import Budget, Design, Hypothesis, Metric
from studies.records.design_parts import CollapseRule
from studies.records.run_specs import confirm_spec
from swarm.job import Job, tunables
from tests.research.banks import bank
from tests.research.compiling import compile_design, noise_plan, refusal

BANK = bank(0.02)
METRIC = Metric(meaning="hidden success", episodes=512)
PRICING = Pricing(lambda job: 18.4 + job.steps, parallel=2, overhead_s=20.0, basis="made up")


def wish(**changes: Any) -> ProposeDesign:
    return ProposeDesign(**{"environment": "guess", "seeds_per_arm": 5, **changes})


def proposed(variable: str = "group_size", control: Any = 4, treatment: Any = 16) -> ProposedHypothesis:
    return ProposedHypothesis(
        statement="s", mechanism="m", variable=variable, control=control, treatment=treatment,
        direction="increase", predicted_low=-0.1, predicted_high=0.2, probability=0.4,
    )  # fmt: skip


def accepted(*hypotheses: ProposedHypothesis) -> tuple[Hypothesis, ...]:
    return accept_hypotheses(Propose(hypotheses=hypotheses or (proposed(),)))


def compiled(budget_s: float = 600, max_runs: int | None = None, **changes: Any) -> Design:
    settings = {"price": PRICING, "draw_seed": seed_source("study", b"secret"), "bank": BANK, **changes}
    hypotheses = settings.pop("hypotheses", accepted())
    proposal = settings.pop("proposal", wish())
    budget = Budget(wall_clock_s=budget_s, max_runs=max_runs)
    return compile_design("q", hypotheses, proposal, budget=budget, **settings)


def told(action: Any, budget_s: float = 600, max_runs: int | None = None, **settings: Any) -> str | None:
    hypotheses = settings.pop("hypotheses", accepted())
    budget = Budget(wall_clock_s=budget_s, max_runs=max_runs)
    found = objection(action, hypotheses, budget, **settings)
    return None if found is None else found.message


def objection(action: Any, hypotheses: tuple[Hypothesis, ...], budget: Budget, **settings: Any) -> DesignRefused | None:
    return refusal(action, hypotheses, **{"price": PRICING, "budget": budget, "bank": BANK, **settings})


def test_hypotheses_get_their_names_and_levels_from_code() -> None:
    first, second = accepted(proposed(), proposed("temperature", 1, 1.3))
    assert (first.id, second.id) == ("h1", "h2")
    assert first.prediction.level == 0.8
    assert isinstance(second.control, float)


def test_a_design_holds_the_whole_comparison() -> None:
    design = compiled(proposal=wish(steps=20, constants=(Constant(field="temperature", value=0.7),)))
    assert [arm.name for arm in design.arms] == ["group_size=4", "group_size=16"]
    assert design.control_arm == "group_size=4"
    assert design.base_job.keys() == Job.model_fields.keys() - {"seed", "tracking"}
    assert (design.base_job["steps"], design.base_job["temperature"]) == (20, 0.7)
    assert (design.metric.key, design.metric.episodes) == ("hidden/success", 512)
    assert (design.test, design.shared_seeds) == ("welch", False)
    assert design.collapse == CollapseRule()
    assert not design.scope_reached


def test_as_many_seeds_as_the_promise_needs_and_more_if_wanted_and_affordable() -> None:
    counts = {budget: len(compiled(budget).seeds) for budget in (200, 260, 320, 100_000)}
    assert counts == {200: 3, 260: 4, 320: 5, 100_000: 5}
    fewer = compiled(100_000, proposal=wish(seeds_per_arm=3), requirements=StatisticalRequirements(effect=0.03))
    assert len(fewer.seeds) == len(compiled(100_000, requirements=StatisticalRequirements(effect=0.03)).seeds) == 10, (
        "as many as it needs"
    )


def test_max_runs_is_kept() -> None:
    assert len(compiled(max_runs=7).seeds) == 3
    assert told(wish(), max_runs=3) is not None


def test_what_was_spent_before_counts() -> None:
    assert len(compiled(600, seconds_left=200).seeds) == 3
    message = told(wish(), 600, seconds_left=60)
    assert message is not None
    assert "9 min of it spent" in message


def test_an_unaffordable_design_is_refused_with_priced_alternatives() -> None:
    assert told(wish(), 150) == (
        "an effect of 0.1 with power 0.8 needs 3 seeds x 2 arms, as the noise between seeds in guess is 0.020: 6 "
        "runs need about 3 min 15 s on this machine (58 s a run, 2 at once); the budget is 2 min 30 s: use --budget "
        "4m; or train 20 steps instead of 40"
    )


def test_too_few_runs_are_refused_with_the_number_needed() -> None:
    message = told(wish(), 600, 3)
    assert message is not None
    assert message.endswith("the budget is 10 min and 3 runs: use --max-runs 6")


def test_runs_that_were_made_count_against_the_most() -> None:
    assert told(wish(), 600, 10, runs_made=4) is None
    message = told(wish(), 600, 10, runs_made=5)
    assert message is not None
    assert "10 runs (5 of them made): use --max-runs 11" in message


def test_what_no_seeds_can_see_is_refused_with_what_they_see() -> None:
    message = told(wish(), 10_000, requirements=StatisticalRequirements(effect=0.01))
    assert message == (
        f"no {MOST_SEEDS} seeds see an effect of 0.01 with power 0.8, as the noise between seeds in guess is 0.020; "
        f"{MOST_SEEDS} see 0.02: look for a larger effect, --effect 0.02"
    )


def test_a_larger_evaluation_is_offered_where_the_bank_knows_its_part_of_the_noise() -> None:
    known = bank(0.03, evaluation_sd=0.028)
    message = told(wish(), 10_000, requirements=StatisticalRequirements(effect=0.025), bank=known)
    assert message is not None
    assert "evaluate on more episodes, --episodes 1024 (" in message
    assert told(wish(), 10_000, requirements=StatisticalRequirements(effect=0.025, episodes=1024), bank=known) is None


def test_seeds_are_paired_where_their_correlation_is_known_to_help() -> None:
    from tests.research.noise.test_bank import paired

    assert compiled(proposal=wish(environment="guess"), bank=paired(40, 0.97)).test == "paired"
    assert compiled(proposal=wish(environment="guess"), bank=paired(40, 0.97)).shared_seeds
    assert compiled(proposal=wish(environment="guess"), bank=paired(40, 0.2)).test == "welch"


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    """Everything that an answer depends on, anywhere from hopeless to easy."""
    count = draw(st.sampled_from((1, 1, 2, 3)))
    fields = [("group_size", 4, 16), ("temperature", 1.0, 1.3), ("group_size", 4, 8)]
    sd, seconds, budget_s = draw(st.floats(0.004, 0.08)), draw(st.floats(5, 400)), draw(st.floats(30, 20_000))
    return {
        "hypotheses": accepted(*(proposed(*field) for field in fields[:count])),
        "proposal": wish(
            seeds_per_arm=draw(st.integers(3, 5)),
            replication=draw(st.none() | st.just(ProposedReplication(environment="arith"))),
        ),
        "price": Pricing(lambda job: seconds * job.steps / 40, draw(st.integers(1, 4)), 20.0, "test"),
        "bank": bank(
            sd,
            runs=draw(st.sampled_from((6, 10, 40))),
            evaluation_sd=draw(st.none() | st.floats(0.2, 0.99).map(lambda share: share * sd)),
            environments=("guess",),
        ),
        "requirements": StatisticalRequirements(draw(st.floats(0.01, 0.3)), draw(st.sampled_from((0.6, 0.8, 0.9))),
        draw(st.integers(1, 4))), "budget_s": budget_s,
        "max_runs": draw(st.none() | st.integers(4, 60)),
        "spent_s": draw(st.floats(0, 0.9)) * budget_s,
        "runs_made": draw(st.sampled_from((0, 5))),
    }  # fmt: skip


def try_out(given: dict[str, Any]) -> Design:
    left = {name: value for name, value in given.items() if name not in ("budget_s", "max_runs", "spent_s")}
    return compiled(
        given["budget_s"], given["max_runs"], seconds_left=given["budget_s"] - given["spent_s"], **left
    )  # fmt: skip


def follow(offer: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the situation of somebody who did what an offer says."""
    changed, requirements = dict(given), given["requirements"]
    if found := re.search(r"--budget (\S+)", offer):
        changed["budget_s"] = parse_budget(found[1])
    if found := re.search(r"--max-runs (\d+)", offer):
        changed["max_runs"] = int(found[1])
    if found := re.search(r"--effect (\S+)", offer):
        changed["requirements"] = replace(requirements, effect=float(found[1]))
    if found := re.search(r"--episodes (\d+)", offer):
        changed["requirements"] = replace(requirements, episodes=int(found[1]))
    if found := re.search(r"train (\d+) steps instead", offer):
        changed["proposal"] = given["proposal"].model_copy(update={"steps": int(found[1])})
    assert changed != given, f"an offer that changes nothing: {offer}"
    return changed


def follow_all(message: str, given: dict[str, Any]) -> None:
    """Take each alternative of a refusal by itself: all of them must lead to a design."""
    _, _, offered = message.rpartition(": ")
    offers = offered.split("; or ") if "--" in offered or "train" in offered else []
    assert offers or message.endswith("nothing that a flag sets would do")
    for offer in offers:
        try_out(follow(offer, given))


@settings(max_examples=30, deadline=None)
@given(situations())
def test_a_design_keeps_its_promise_and_every_alternative_in_a_refusal_is_a_design(given: dict[str, Any]) -> None:
    try:
        design = try_out(given)
    except DesignRefused as error:
        follow_all(error.message, given)
        return
    assert design.price.total_s <= given["budget_s"] - given["spent_s"]
    assert design.promise is not None
    assert design.promise.effect == pytest.approx(given["requirements"].effect)
    assert design.looks[-1].seeds == len(design.seeds) <= MOST_SEEDS
    assert len(design.looks) <= given["requirements"].looks
    if given["max_runs"] is not None:
        assert design.price.runs + given["runs_made"] <= given["max_runs"]


@pytest.mark.parametrize("effect", [0.0, -0.1, 1.0, 1.5, float("nan"), float("inf")])
def test_an_effect_that_no_two_shares_can_differ_by_is_refused(effect: float) -> None:
    with pytest.raises(DesignRefused, match="expected a smallest effect above 0 and below 1") as refused:
        StatisticalRequirements(effect=effect)
    assert "\n" not in refused.value.message


def test_the_smallest_effect_of_all_claims_is_the_one_promised() -> None:
    entries = (proposed(), proposed("temperature", 1.0, 1.3).model_copy(update={"smallest_effect": 0.06}))
    design = compiled(2000, hypotheses=accepted(*entries))
    assert design.promise is not None
    assert design.promise.effect == design.equivalence_margin == 0.06


@pytest.mark.parametrize(("asked", "least"), [(0.05, 0.05), (None, 0.1)])
def test_a_planner_may_want_to_see_more_than_the_study_but_never_less(asked: float | None, least: float) -> None:
    requirements = StatisticalRequirements.asked(asked, 0.8, 3, 512)
    assert StatisticalRequirements.of(requirements.settings()) == requirements
    assert [requirements.wanted(effect, METRIC) for effect in (None, 0.03, least)] == [least, 0.03, least]
    for effect in (least + 1e-9, 0.6, 0.999):
        with pytest.raises(DesignRefused, match=f"expected a smallest_effect of at most {least:g}"):
            requirements.wanted(effect, METRIC)


SCREEN = ProposedScreen(
    knobs=(ProposedKnob(field="learning_rate", values=(3e-4, 1e-3, 3e-3)),), confirm=1, predicted_low=-0.05,
    predicted_high=0.25, probability=0.4,
)  # fmt: skip


@given(effect=st.floats(min_value=0.1, max_value=1.0, exclude_min=True))
def test_no_proposal_and_no_screen_moves_the_bar_up(effect: float) -> None:
    claim = proposed().model_copy(update={"smallest_effect": effect})
    screen = SCREEN.model_copy(update={"smallest_effect": effect})
    for action, hypotheses in (
        (Propose(hypotheses=(claim,)), ()),
        (wish(), accepted(claim)),
        (Propose(hypotheses=(proposed("temperature", 1.0, 1.3), claim)), ()),
        (wish(screen=screen), ()),
    ):
        assert "at most 0.1, which is the study's" in (told(action, 10_000, hypotheses=hypotheses) or "")


@pytest.mark.parametrize(
    ("direction", "low", "high"),
    [("increase", -0.3, -0.1), ("increase", -0.3, 0.0), ("decrease", 0.1, 0.3), ("decrease", 0.0, 0.3)],
)
def test_a_prediction_that_contradicts_its_direction_is_refused(direction: str, low: float, high: float) -> None:
    claim = proposed().model_copy(update={"direction": direction, "predicted_low": low, "predicted_high": high})
    message = told(Propose(hypotheses=(claim,)))
    assert message is not None
    assert f"reaches into the direction '{direction}'; found {low:g} to {high:g}" in message
    assert "\n" not in message


def test_a_screen_begins_where_a_planner_says_and_not_where_a_user_says_otherwise() -> None:
    knob = ProposedKnob(field="learning_rate", values=(3e-4, 1e-3, 3e-3), control=3e-3)
    proposal = wish(screen=SCREEN.model_copy(update={"knobs": (knob,)}))
    design = compiled(10_000, proposal=proposal, hypotheses=())
    assert design.arm(design.control_arm).overrides == {"learning_rate": 3e-3}
    mine = Job(learning_rate=1e-3)
    assert "learning_rate" in (told(proposal, 10_000, hypotheses=(), base=mine.model_copy(
        update={"learning_rate": 2e-3})) or "")  # fmt: skip
    assert told(proposal, 10_000, hypotheses=()) is None


def test_a_screens_prediction_that_says_nothing_is_better_is_refused() -> None:
    screen = SCREEN.model_copy(update={"predicted_low": -0.2, "predicted_high": 0.0})
    assert "which contradicts it" in (told(wish(screen=screen), 10_000, hypotheses=()) or "")


def test_a_claim_is_worded_by_code_from_its_fields_and_the_planners_words_are_kept_beside() -> None:
    lie = proposed("temperature", 1.0, 1.3).model_copy(update={"statement": "Curriculum learning raises success."})
    (claim,) = accepted(lie)
    assert claim.statement == ("temperature = 1.3 raises the hidden success, compared with temperature = 1.0.")
    assert claim.said == "Curriculum learning raises success."
    (silent,) = accepted(proposed().model_copy(update={"statement": ""}))
    assert (silent.said, "said" in silent.model_dump(mode="json")) == ("", False)


def test_a_refusal_tells_a_planner_what_a_planner_can_change() -> None:
    """Each of them names a way out, and none names a flag, which no planner can set."""
    rewarded = proposed().model_copy(update={"code": "def reward(task, messages, outcome):\n    return 1.0\n"})
    two = accepted(proposed(), proposed("temperature", 1.0, 1.3))
    small = accepted(proposed().model_copy(update={"smallest_effect": 0.01}))
    cases: list[tuple[Any, tuple[Hypothesis, ...], Budget, str]] = [
        (wish(), accepted(), Budget(wall_clock_s=150), "train 20 steps instead of 40"),
        (wish(), accepted(), Budget(wall_clock_s=600, max_runs=3), "decline, and say why"),
        (wish(), two, Budget(wall_clock_s=150), "propose fewer hypotheses"),
        (wish(), small, Budget(wall_clock_s=600), "name a larger smallest_effect"),
        (wish(screen=SCREEN), (), Budget(wall_clock_s=60), "search fewer values"),
        (Propose(hypotheses=(rewarded,)), (), Budget(wall_clock_s=600), "or decline"),
        (Propose(hypotheses=(proposed(),)), (), Budget(wall_clock_s=30), "decline, and say why"),
    ]
    for action, hypotheses, budget, way in cases:
        found = objection(action, hypotheses, budget)
        assert found is not None
        assert way in found.for_planner
        assert not re.search(r"--[a-z]", found.for_planner)


def test_what_is_unknown_is_refused_to_a_planner_without_a_flag_too() -> None:
    found = objection(wish(), accepted(), Budget(wall_clock_s=90), bank=NoiseBank())
    assert found is not None
    assert "A/A runs first" in found.for_planner
    assert not re.search(r"--[a-z]", found.for_planner)
    assert "--budget" in found.message


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"power": 0.3}, "a power from 0.5 to 0.99"), ({"power": 1.0}, "a power from"), ({"looks": 0}, "1 to 5 looks"),
        ({"looks": 99}, "1 to 5 looks"), ({"episodes": 10}, "64 to 8192"), ({"episodes": 100_000}, "64 to 8192"),
    ],
)  # fmt: skip
def test_terms_that_no_study_could_keep_are_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(DesignRefused, match=why):
        StatisticalRequirements(**change)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("seed", "seeds are drawn by the harness"), ("metric", "a gain or a ratio has a noise of its own"),
        ("gain", "a gain or a ratio"), ("warm_start_steps", "begin with the same weights"),
        ("early_stopping", "all arms train to the end"), ("evaluation_episodes", "as many hidden episodes"),
    ],
)  # fmt: skip
def test_what_would_make_a_comparison_unfair_is_refused_with_the_reason(field: str, why: str) -> None:
    for message in (
        told(Propose(hypotheses=(proposed(field, 1, 2),))),
        told(wish(constants=(Constant(field=field, value=3),))),
    ):
        assert message is not None
        assert why in message
        assert "\n" not in message


def test_a_control_that_is_its_treatment_and_a_lone_arm_are_refused() -> None:
    assert "must differ" in (told(Propose(hypotheses=(proposed("group_size", 4, 4.0),))) or "")
    assert "propose some first" in (told(wish(), hypotheses=()) or "")


def test_without_a_word_on_the_noise_runs_of_one_job_come_first() -> None:
    means = {"price": PRICING, "budget": Budget(wall_clock_s=600), "draw_seed": seed_source("s:noise", b"secret")}
    plan = noise_plan(accepted(), wish(steps=20), bank=NoiseBank(), **means)  # type: ignore[arg-type]
    assert plan is not None
    assert (len(plan.seeds), plan.environment, plan.episodes) == (NOISE_SEEDS, "guess", 512)
    assert (plan.job["group_size"], plan.job["steps"]) == (4, 20), "the control's job"
    assert "seed" not in plan.job
    assert told(wish(), bank=NoiseBank()) is None
    with pytest.raises(DesignRefused, match="A/A runs come first"):
        compiled(bank=NoiseBank())
    assert noise_plan(accepted(), wish(), bank=BANK, **means) is None  # type: ignore[arg-type]


def test_noise_runs_that_leave_nothing_for_the_study_are_refused_with_their_price() -> None:
    message = told(wish(), 240, bank=NoiseBank())
    assert message == (
        "The noise bank has no two runs of guess, this model and grpo that differ in their seed alone. 6 A/A runs "
        "first, and then 3 seeds x 2 arms: 12 runs need about 6 min 10 s on this machine (58 s a run, 2 at once); "
        "the budget is 4 min: use --budget 7m"
    )
    assert told(wish(), 420, bank=NoiseBank()) is None


def test_everything_that_decides_a_verdict_is_in_the_lock() -> None:
    design = compiled(hypotheses=accepted(proposed(), proposed("temperature", 1.0, 1.3)), budget_s=2000)
    assert design.noise is not None
    assert design.noise.sd == pytest.approx(0.02)
    assert [look.seeds for look in design.looks] == [3, 5]
    assert sum(look.alpha for look in design.looks) < 0.06
    assert design.multiplicity == "dunnett_bh"
    assert compiled().multiplicity == "none"
    assert (design.exclusions, design.counted_as_worst) == (EXCLUDED_CODES, WORST_CODES)
    assert design.watchdog is not None
    assert design.decision_table
    assert design.most_excluded == 0.2


@pytest.mark.parametrize(
    "change",
    [
        {"bank": bank(0.021)}, {"bank": bank(0.02, runs=30)}, {"requirements": StatisticalRequirements(effect=0.11)},
        {"requirements": StatisticalRequirements(power=0.85)}, {"requirements": StatisticalRequirements(looks=1)},
        {"requirements": StatisticalRequirements(episodes=600)},
        {"price": Pricing(lambda job: 19.0, 2, 20.0, "other")}, {"budget_s": 601.0}, {"base": Job(max_tokens=12)},
        {"proposal": wish(seeds_per_arm=3)}, {"proposal": wish(replication=ProposedReplication(environment="arith"))},
        {"proposal": wish(decision_table=(
            ProposedRule(name="go", when="verdict == 'inconclusive' and looks_left > 0", then="continue"),
            ProposedRule(name="end", when="not (verdict == 'inconclusive' and looks_left > 0)", then="settle"),
        ))},
        {"hypotheses": accepted(proposed().model_copy(update={"smallest_effect": 0.09}))},
        {"hypotheses": accepted(proposed().model_copy(update={"kill_if": "hi < 0.05"}))},
        {"hypotheses": accepted(proposed().model_copy(update={"confounds": ("luck",)}))},
        {"hypotheses": accepted(proposed().model_copy(update={"falsifier": "no difference"}))},
        {"hypotheses": accepted(proposed("group_size", 4, 8))},
        {"draw_seed": seed_source("study", b"other")},
    ],
)  # fmt: skip
def test_whatever_changes_a_verdict_changes_the_lock(change: dict[str, Any]) -> None:
    budget_s = change.pop("budget_s", 2000.0)
    same = compiled(2000.0)
    assert compiled(budget_s, **change).hash() != same.hash()
    assert compiled(2000.0).hash() == same.hash()


def table(*rules: tuple[str, str, str]) -> ProposeDesign:
    return wish(decision_table=tuple(ProposedRule(name=n, when=w, then=t) for n, w, t in rules))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([("a", "lo > 0", "settle"), ("a", "hi < 0", "settle")], "found a twice"),
        ([("no-rule", "lo > 0", "settle")], "no-rule are kept for code"),
        ([("a", "verdict == 'supported'", "replicate"), ("b", "verdict != 'supported'", "settle")], "no replication"),
    ],
)  # fmt: skip
def test_a_decision_table_with_a_defect_refuses_the_design(rules: list[tuple[str, str, str]], why: str) -> None:
    message = told(table(*rules))
    assert message is not None
    assert message.startswith("decision table: ")
    assert why in message


def test_a_table_may_leave_cases_to_no_rule() -> None:
    rules = (("futile", "verdict == 'inconclusive' and hi < 0.02", "settle"), ("never", "lo > hi", "continue"))
    assert told(table(*rules)) is None
    assert [rule.name for rule in compiled(2000.0, proposal=table(*rules)).decision_table] == ["futile", "never"]


def test_a_replication_is_priced_and_has_seeds_of_its_own() -> None:
    proposal = wish(replication=ProposedReplication(environment="arith"))
    design = compiled(2000, proposal=proposal)
    assert design.replication is not None
    assert not set(design.replication.seeds) & set(design.seeds)
    assert len(design.replication.seeds) == len(design.seeds)
    assert design.price.runs == 2 * compiled(2000).price.runs
    assert design.decision_table == REPLICATING_TABLE
    for environment, why in (("guess", "found the same"), ("chess", "'chess'")):
        assert why in (told(wish(replication=ProposedReplication(environment=environment))) or "")


def searching(*knobs: tuple[str, tuple[Any, ...]], confirm: int = 1) -> ProposeDesign:
    known = knobs or (("learning_rate", (3e-4, 1e-3, 3e-3)), ("group_size", (4, 8, 16)))
    screen = ProposedScreen(
        knobs=tuple(ProposedKnob(field=field, values=values) for field, values in known),
        confirm=confirm, predicted_low=0.0, predicted_high=0.2, probability=0.5,
    )  # fmt: skip
    return wish(screen=screen)


def test_a_screen_is_priced_with_the_confirmation_and_takes_what_is_left() -> None:
    small, large = (compiled(budget, hypotheses=(), proposal=searching()) for budget in (310, 5000))
    for design in (small, large):
        assert design.screen is not None
        assert [rung.steps for rung in design.screen.rungs] == [design.base_job["steps"] / 2]
        assert design.hypotheses == ()
        assert [arm.name for arm in design.arms] == ["control"]
        assert design.arms[0].overrides == {"learning_rate": 1e-3, "group_size": 8}
        assert design.screen.seed not in design.seeds
        assert design.price.runs == design.screen.candidates + 2 * len(design.seeds)
        assert design.price.total_s <= design.budget.wall_clock_s
    assert small.screen is not None
    assert large.screen is not None
    assert small.screen.candidates < large.screen.candidates == 8, "every combination but the control's"


@pytest.mark.parametrize(
    ("proposal", "why"),
    [
        (searching(("steps", (20, 40))), "knobs other than steps"),
        (searching(("seed", (1, 2))), "seeds are drawn by the harness"),
        (searching(("group_size", (4, 4.0))), "two different values"),
        (searching(("group_size", (4, 8))), "more combinations than are confirmed"),
        (searching().model_copy(update={"constants": (Constant(field="group_size", value=4),)}), "cannot be held"),
    ],
)
def test_a_screen_that_searches_nothing_is_refused(proposal: ProposeDesign, why: str) -> None:
    message = told(proposal, 5000, hypotheses=())
    assert message is not None
    assert why in message


def test_a_screen_beside_hypotheses_is_refused() -> None:
    assert "found both" in (told(searching(), 5000) or "")


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (wish(environment="chess"), "'chess'"),
        (wish(constants=(Constant(field="group_size", value=8),)), "cannot be held constant"),
        (wish(constants=(Constant(field="steps", value=8),)), "'steps' twice"),
        (wish(constants=(Constant(field="seed", value=8),)), "seeds are drawn by the harness"),
        (wish(constants=(Constant(field="kl_coef", value=99),)), "less than or equal to 10"),
        (wish(constants=(Constant(field="episodes_per_step", value=100),)), "multiple of group_size"),
        (wish(steps=10**9), "steps: expected less than or equal to 1000000"),
    ],
)
def test_unsound_designs_are_refused(proposal: ProposeDesign, message: str) -> None:
    refused = told(proposal)
    assert refused is not None
    assert message in refused
    assert "\n" not in refused
    with pytest.raises(DesignRefused):
        compiled(proposal=proposal)


def test_a_design_before_hypotheses_is_refused() -> None:
    assert "propose some first" in (told(wish(), hypotheses=()) or "")


def test_steps_that_are_compared_may_be_named_at_their_control_value_only() -> None:
    longer = accepted(proposed("steps", 20, 40))
    assert told(wish(steps=20), hypotheses=longer) is None
    assert "cannot be held constant" in (told(wish(steps=40), hypotheses=longer) or "")


def test_hypotheses_that_no_design_could_afford_are_refused_when_proposed() -> None:
    three = Propose(hypotheses=(proposed(), proposed("group_size", 4, 8), proposed("temperature", 1.0, 1.3)))
    assert told(three) is None
    message = told(three, max_runs=7)
    assert message is not None
    assert message.endswith("propose fewer hypotheses")
    assert told(Propose(hypotheses=(proposed(),)), max_runs=7) is None


def test_hypotheses_that_need_other_constants_are_judged_with_the_design() -> None:
    thirds = proposed("group_size", 3, 6)
    assert told(Propose(hypotheses=(thirds,))) is None
    assert told(wish(constants=(Constant(field="episodes_per_step", value=126),)), hypotheses=accepted(thirds)) is None


def test_a_conclusion_is_never_refused() -> None:
    assert told(Conclude(reason="done")) is None


def test_a_check_draws_no_seeds_and_agrees_with_the_compiler() -> None:
    assert told(wish()) is None
    assert compiled().seeds == tuple(_first(seed_source("study", b"secret"), 5))


def _first(draw: Callable[[], int], count: int) -> list[int]:
    return [draw() for _ in range(count)]


def test_seeds_depend_on_secret_and_study_and_on_nothing_else() -> None:
    seeds = _first(seed_source("a", b"secret"), 20)
    assert seeds == _first(seed_source("a", b"secret"), 20)
    assert len(set(seeds)) == 20
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert not set(seeds) & set(_first(seed_source("b", b"secret"), 20))
    assert not set(seeds) & set(_first(seed_source("a", b"other"), 20))


def test_repeated_draws_are_drawn_again() -> None:
    draws = iter([7, 7, 7, 8, 9, 9, 10, 11])
    assert compiled(draw_seed=lambda: next(draws)).seeds == (7, 8, 9, 10, 11)


def test_a_source_that_repeats_for_ever_is_an_error() -> None:
    with pytest.raises(ValueError, match="fewer than 5 different"):
        compiled(draw_seed=lambda: 7)


@st.composite
def designs(draw: st.DrawFn) -> Design:
    """Designs of one to three hypotheses on ladders, with any budget that affords them."""
    chosen = draw(st.lists(st.sampled_from(sorted(tunables())), min_size=1, max_size=3, unique=True))
    ladders = [draw(st.permutations(tunables()[field].ladder)) for field in chosen]
    hypotheses = accepted(*(proposed(f, ladder[0], ladder[1]) for f, ladder in zip(chosen, ladders, strict=True)))
    steps = None if "steps" in chosen else draw(st.none() | st.integers(1, 100))
    proposal = wish(
        environment=draw(st.sampled_from(["guess", "arith"])), seeds_per_arm=draw(st.integers(3, 5)), steps=steps
    )
    price = make_pricing(draw(st.integers(1, 8)))
    try:
        return compiled(
            draw(st.floats(60, 20_000)), draw(st.none() | st.integers(2, 30)), hypotheses=hypotheses,
            proposal=proposal, price=price, draw_seed=seed_source("s", draw(st.binary(min_size=8, max_size=8))),
        )  # fmt: skip
    except DesignRefused:
        assume(False)
        raise


@settings(max_examples=40, deadline=None)
@given(designs())
def test_every_design_is_affordable_by_its_own_price(design: Design) -> None:
    assert design.price.total_s <= design.budget.wall_clock_s
    assert design.price.runs == len(design.arms) * len(design.seeds)
    assert design.budget.max_runs is None or design.price.runs <= design.budget.max_runs


@settings(max_examples=40, deadline=None)
@given(designs())
def test_arms_differ_from_the_control_in_exactly_the_declared_variable(design: Design) -> None:
    def job(variable: str, value: Any) -> Job:
        return Job.model_validate({**design.base_job, **design.arm_with(variable, value).overrides})

    for entry in design.hypotheses:
        control, treatment = job(entry.variable, entry.control), job(entry.variable, entry.treatment)
        assert design.arm_with(entry.variable, entry.control).name == design.control_arm
        assert lint_arms(control, treatment, entry.variable) == []
        assert getattr(treatment, entry.variable) == entry.treatment


@settings(max_examples=40, deadline=None)
@given(designs())
def test_seeds_are_distinct_and_enough(design: Design) -> None:
    assert 2 <= len(design.seeds) == len(set(design.seeds)) <= MOST_SEEDS


@settings(max_examples=40, deadline=None)
@given(designs())
def test_the_lock_survives_serialising(design: Design) -> None:
    assert Design.model_validate_json(design.model_dump_json()).hash() == design.hash()
    assert Design.model_validate(design.model_dump(mode="json")).hash() == design.hash()


@settings(max_examples=25, deadline=None)
@given(designs(), designs())
def test_locks_differ_exactly_when_designs_do(left: Design, right: Design) -> None:
    assert (left.hash() == right.hash()) == (left.model_dump() == right.model_dump())


@pytest.mark.parametrize(
    "change",
    [
        {"question": "another"}, {"environment": "arith"}, {"alpha": 0.01}, {"seeds": (1, 2, 3)},
        {"exclusions": ("NAN",)}, {"max_attempts": 1}, {"budget": Budget(wall_clock_s=601)},
    ],
)  # fmt: skip
def test_any_change_changes_the_lock(change: dict[str, Any]) -> None:
    design = compiled()
    assert design.model_copy(update=change).hash() != design.hash()


def test_a_change_of_one_field_of_the_job_changes_the_lock() -> None:
    design = compiled()
    changed = design.model_copy(update={"base_job": {**design.base_job, "temperature": 0.7}})
    assert changed.hash() != design.hash()


SOURCE = "def reward(task, messages, outcome):\n    return outcome['reward']\n"


def rewarding(name: str = "dense", **changes: Any) -> ProposedHypothesis:
    return proposed("reward", "built-in", name).model_copy(update={"code": SOURCE, **changes})


def test_a_design_holds_the_code_that_its_arms_name() -> None:
    proposal = Propose(hypotheses=(rewarding(), proposed("group_size", 4, 16)))
    design = compiled(1000, hypotheses=accept_hypotheses(proposal), code=proposed_code(proposal))
    assert design.code == {"dense": SOURCE}
    assert [arm.name for arm in design.arms] == ["control", "reward=dense", "group_size=16"]
    assert "reward" not in design.base_job


def test_runs_with_code_cost_what_others_cost() -> None:
    proposal = Propose(hypotheses=(rewarding(),))
    coded = compiled(hypotheses=accept_hypotheses(proposal), code=proposed_code(proposal))
    plain = compiled()
    assert coded.price == plain.price
    assert coded.seeds == plain.seeds


def test_each_run_of_a_design_carries_the_code_of_its_arm() -> None:
    proposal = Propose(hypotheses=(rewarding(),))
    design = compiled(hypotheses=accept_hypotheses(proposal), code=proposed_code(proposal))
    specs = [confirm_spec("s", design, design.hash(), arm, seed) for seed in design.seeds for arm in design.arms]
    assert {spec.arm: spec.code for spec in specs} == {"reward=built-in": None, "reward=dense": SOURCE}
    assert all(Job.model_validate(spec.job) for spec in specs)
    assert len({spec.run_id for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("hypothesis", "told"),
    [
        (rewarding(code=None), "code: expected def reward"),
        (rewarding(code="def other(): pass"), "found no such function"),
        (proposed().model_copy(update={"code": SOURCE}), "expected null beside the variable group_size"),
        (rewarding("Bad Name"), "a short name"),
    ],
)
def test_code_that_is_missing_misplaced_or_not_well_formed_is_refused(
    hypothesis: ProposedHypothesis, told: str
) -> None:
    message = refused(Propose(hypotheses=(hypothesis,)), code_allowed=True)
    assert told in message


def test_code_is_refused_where_runs_are_in_no_containers() -> None:
    proposal = Propose(hypotheses=(rewarding(),))
    assert told(proposal, code_allowed=True) is None
    message = refused(proposal)
    assert "runs in containers only" in message
    assert "--sandbox docker" in message


def refused(action: Any, **settings: Any) -> str:
    message = told(action, **settings)
    assert message is not None
    return message
