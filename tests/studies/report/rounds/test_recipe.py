"""A recipe is what the last confirmation of each comparison showed, setting by setting, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from studies import StudyState
from studies.records.design import CONFIGURATION, Arm
from studies.report.rounds.answer import recipe_said
from studies.report.rounds.recipe import SettingRecipe, recipes
from tests.golden import assert_golden
from tests.studies.asked_on import Inquiry

pytestmark = pytest.mark.slow  # for the inquiry that it begins with
RATE = "learning_rate"


def judged(state: StudyState, control: float, treatment: float, **verdict: Any) -> StudyState:
    """Return a round as if it had compared these learning rates in arith, with a verdict that is changed so."""
    pair = {"variable": RATE, "control": control, "treatment": treatment}
    return compared(state, pair, [{RATE: value} for value in (control, treatment)], verdict)


def compared(
    state: StudyState, pair: dict[str, Any], arms: list[dict[str, Any]], verdict: dict[str, Any]
) -> StudyState:
    (claim,) = state.design.hypotheses
    control, treatment = (Arm(name=f"arm-{n}", overrides=fields) for n, fields in enumerate(arms))
    changes = {"environment": "arith", "arms": (control, treatment), "control_arm": control.name}
    design = state.design.model_copy(update=changes | {"hypotheses": (claim.model_copy(update=pair),)})
    return replace(state, design=design, verdicts=(state.verdicts[0].model_copy(update=verdict),))


def in_arith(*rounds: StudyState) -> SettingRecipe:
    (found,) = (recipe for recipe in recipes(rounds) if recipe.environment == "arith")
    return found


def better(*rounds: StudyState) -> list[tuple[int, Any, Any]]:
    return [(value.round, value.better, value.other) for value in in_arith(*rounds).values.values()]


def test_each_setting_has_a_recipe_of_its_own(inquiry: Inquiry) -> None:
    found = {recipe.environment: list(recipe.values) for recipe in recipes(inquiry.state.rounds)}
    assert found == {"arith": [RATE], "guess": [RATE]}
    assert_golden("\n".join(recipe_said(inquiry.state)))


def test_what_a_later_round_did_not_show_again_is_taken_back_and_said(inquiry: Inquiry) -> None:
    first, second, third = inquiry.state.rounds
    again = judged(second, 0.003, 0.01, verdict="inconclusive")
    assert better(first, again) == []
    state = replace(third, rounds_before=(first, again), design=None, verdicts=())
    assert_golden("\n".join(recipe_said(state)))


def test_the_last_of_two_confirmations_that_contradict_each_other_counts(inquiry: Inquiry) -> None:
    first, second, _ = inquiry.state.rounds
    estimate = -0.2
    turned = judged(second, 0.003, 0.01, verdict="refuted", estimate=estimate, low=-0.3, high=-0.1)
    assert better(first, turned) == [(2, 0.003, 0.01)]


def test_a_further_value_replaces_the_best_one_only_where_it_was_shown_to_be_better(inquiry: Inquiry) -> None:
    first, second, _ = inquiry.state.rounds
    assert better(first, judged(second, 0.01, 0.03)) == [(2, 0.03, 0.01)]
    assert better(first, judged(second, 0.01, 0.03, verdict="inconclusive")) == [(1, 0.01, 0.003)]
    assert better(first, judged(second, 0.0003, 0.001)) == [(1, 0.01, 0.003)]


def test_what_is_exploratory_or_open_confirms_nothing(inquiry: Inquiry) -> None:
    first, second, _ = inquiry.state.rounds
    assert better(judged(first, 0.003, 0.01, exploratory=True)) == []
    assert better(judged(first, 0.003, 0.01, exploratory=True), judged(second, 0.003, 0.01)) == [(2, 0.01, 0.003)]
    unsettled = replace(judged(first, 0.003, 0.01, final=False), decided={})
    assert better(unsettled) == []


def test_values_are_said_to_hold_together_only_where_each_was_tried_with_those_before_it(inquiry: Inquiry) -> None:
    first, _, third = inquiry.state.rounds
    shown = {"verdict": "supported", "estimate": 0.2, "low": 0.1, "high": 0.3}
    later = replace(third, verdicts=(third.verdicts[0].model_copy(update=shown),))
    assert in_arith(first, later).together
    base = {**later.design.base_job, RATE: 0.003}
    without = replace(later, design=later.design.model_copy(update={"base_job": base}))
    assert not in_arith(first, without).together
    assert list(in_arith(first, without).values) == [RATE, "episodes_per_step"]
    assert_golden("\n".join(recipe_said(replace(without, rounds_before=(first,)))))


def configured(state: StudyState, control: dict[str, Any], treatment: dict[str, Any], **verdict: Any) -> StudyState:
    """Return a round as if a search had found a configuration that was then compared with its control."""
    pair = {"variable": CONFIGURATION, "control": {name: control[name] for name in treatment}, "treatment": treatment}
    return compared(state, pair, [control, {**control, **treatment}], verdict)


def test_a_search_that_goes_on_from_the_best_of_another_adds_to_its_recipe(inquiry: Inquiry) -> None:
    first, second, third = inquiry.state.rounds
    shows = {"verdict": "supported", "estimate": 0.2, "low": 0.1, "high": 0.3}
    begun = configured(first, {RATE: 0.001, "group_size": 8}, {RATE: 0.003, "group_size": 16}, **shows)
    nearer = configured(second, {RATE: 0.003, "group_size": 16}, {RATE: 0.01}, **shows)
    assert better(begun, nearer) == [(2, {RATE: 0.01, "group_size": 16}, {RATE: 0.003})]
    elsewhere = configured(third, {RATE: 0.0003, "group_size": 16}, {RATE: 0.01}, **shows)
    assert better(begun, elsewhere) == [(1, {RATE: 0.003, "group_size": 16}, {RATE: 0.001, "group_size": 8})]
