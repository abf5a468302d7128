"""Simulated inquiries: planners choose on the past, levels are the ledgers', and what is counted is what is true."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from inquiries import CELLS, QUICK
from rig.inquiries.goals import INQUIRIES, missed
from rig.inquiries.inquiries import InquiryCell, InquiryTally, JudgedRound, inquiry, overdrawn, simulate
from rig.inquiries.questions import (
    MOST_CLAIMS,
    PLANNERS,
    TRUTHS,
    Answer,
    Question,
    Truth,
    farm,
    largest,
    lie,
    plain,
    repeat,
)
from rig.inquiries.rounds import Judged, RoundShape, judged_round, next_stake, seen_with
from rig.verdicts.planted import World, data_of, training

from studies.inquiry.ledger import MOST_ROUNDS, Ledgers, OverdrawnLedger, RoundOutcome, weights

MARGIN = 0.1
NOTHING = RoundOutcome(differences=False, equivalences=False)


def answered(number: int, estimate: float, *, claimed: bool = False) -> Answer:
    return Answer(Question(number), estimate, claimed)


def test_a_planner_asks_something_new_or_again_by_what_came_before() -> None:
    past = [[answered(1, 0.3, claimed=True), answered(2, -0.2)], [answered(3, 0.1)]]
    assert plain(past, 2) == (Question(4), Question(5))
    assert largest(past, 2) == (Question(2), Question(4))
    assert repeat(past, 1) == (Question(3),)
    assert repeat([[answered(3, 0.1, claimed=True)]], 1) == (Question(4),)
    assert lie(past, 1) == (Question(2), Question(3), Question(4))
    assert [farm(past[:rounds], 1)[0].kind for rounds in (0, 1, 2)] == ["sure", "hopeless", "sure"]


def test_what_was_claimed_since_is_not_asked_again_for_its_size() -> None:
    past = [[answered(1, 0.3)], [answered(1, 0.4, claimed=True)], [answered(2, 0.01)]]
    assert largest(past, 1) == (Question(2),)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_so_many_questions_have_an_effect_as_a_truth_says(share: float) -> None:
    effects = [Truth(share).effect(Question(number), "any") for number in range(4000)]
    assert sum(effect != 0 for effect in effects) / 4000 == pytest.approx(share, abs=0.03)
    assert {abs(effect) for effect in effects} == {0.0, 1.0}
    assert sum(effects) / 4000 == pytest.approx(0, abs=0.05)


def test_a_question_asked_again_has_the_same_effect() -> None:
    truth = TRUTHS["50 % true"]
    twice = [[truth.effect(Question(number), "one") for number in range(50)] for _ in range(2)]
    assert twice[0] == twice[1]
    assert twice[0] != [truth.effect(Question(number), "another") for number in range(50)]


@pytest.mark.parametrize("variables", [(1,), (1, 1), (1, 2, 3)])
def test_a_round_s_tests_spend_what_the_ledgers_give_it_and_no_more(variables: tuple[int, ...]) -> None:
    ledgers = Ledgers.begin(MOST_ROUNDS).after(RoundOutcome(differences=True, equivalences=False))
    stake = next_stake(ledgers, RoundShape(variables, MARGIN))
    place, looks = stake.design.inquiry, stake.design.looks
    assert place is not None
    assert place.difference == pytest.approx(0.05 * sum(weights(MOST_ROUNDS)[:2]))
    assert place.equivalence == pytest.approx(0.05 * weights(MOST_ROUNDS)[1])
    assert all(early.alpha < late.alpha for early, late in pairwise(looks))
    assert looks[-1].equivalence is not None
    assert looks[-1].equivalence * len(variables) <= place.equivalence
    with pytest.raises(OverdrawnLedger):
        ledgers.after(NOTHING).stake(stake.design)


@pytest.mark.parametrize("effects", [(0.0,), (0.4,), (0.0, 0.4, -0.4)])
def test_a_round_is_judged_by_the_runs_it_had(effects: tuple[float, ...]) -> None:
    rng, stake = random.Random(3), next_stake(Ledgers.begin(2), RoundShape((1,) * len(effects), MARGIN))
    design = stake.design
    runs = {"control": [training(World(), False, 0.0, False, rng) for _ in design.seeds]}
    for claim, effect in zip(design.hypotheses, effects, strict=True):
        runs[f"arm-{claim.id}"] = [training(World(effect=effect), True, 0.0, False, rng) for _ in design.seeds]
    judged = judged_round(stake, {name: data_of(design, name, found) for name, found in runs.items()}, rng)
    for one, effect in zip(judged, effects, strict=True):
        assert one.estimate == pytest.approx(effect, abs=0.15)
        assert (one.name in ("supported", "refuted")) == (abs(effect) > MARGIN)


HALF = InquiryCell("half 0, half at the margin", "plain")


def test_an_inquiry_has_its_twelve_rounds_and_the_same_number_gives_the_same_one() -> None:
    rounds = inquiry(HALF, 5)
    assert len(rounds) == MOST_ROUNDS
    assert all(1 <= len(each.effects) <= MOST_CLAIMS for each in rounds)
    assert [each.levels for each in rounds] == [each.levels for each in inquiry(HALF, 5)]
    assert [each.levels for each in rounds] != [each.levels for each in inquiry(HALF, 6)]


def test_the_levels_of_an_inquiry_follow_its_own_verdicts() -> None:
    for number in range(5):
        rounds = inquiry(HALF, number)
        share = [0.05 * weight for weight in weights(MOST_ROUNDS)]
        for place, (before, after) in enumerate(pairwise(rounds), start=1):
            names = [one.name for one in before.judged]
            passed = before.levels[0] if all(name in ("supported", "refuted") for name in names) else 0.0
            alike = before.levels[1] if all(name == "equivalent" for name in names) else 0.0
            assert after.levels == pytest.approx((share[place] + passed, share[place] + alike))


def test_nothing_is_overdrawn_with_ledgers_and_all_is_without() -> None:
    assert not any(overdrawn(inquiry(HALF, number), kind) for number in range(4) for kind in (0, 1))
    without = InquiryCell("nothing", "plain", ledgers=False)
    assert overdrawn(inquiry(without, 1), 0)


def test_a_claim_counts_by_what_is_true() -> None:
    verdicts = {v.verdict: v for number in range(15) for r in inquiry(HALF, number)[:2] for one in r.judged
                if (v := one.verdict) is not None}  # fmt: skip
    for name in ("supported", "refuted", "equivalent"):
        assert name in verdicts

    def of(name: str, effect: float) -> JudgedRound:
        return JudgedRound((0.03, 0.03), (effect,), (Judged(verdicts[name], 0.0),), MARGIN)

    assert (of("supported", 0.0).false_differences, of("supported", MARGIN).false_differences) == (1, 0)
    assert (of("supported", -MARGIN).false_differences, of("refuted", -MARGIN).false_differences) == (1, 0)
    assert (of("equivalent", 0.0).false_equivalences, of("equivalent", MARGIN).false_equivalences) == (0, 1)
    assert of("supported", MARGIN).right == (1, 0)
    assert of("equivalent", 0.0).right == (0, 1)
    assert of("equivalent", MARGIN).nulls == (False, True)
    assert of("equivalent", 0.0).nulls == (True, False)


def test_rounds_spend_up_to_their_first_false_claim() -> None:
    open_round = JudgedRound((0.03, 0.0), (0.0,), (Judged(None, 0.0),), MARGIN)
    true_effect = JudgedRound((0.03, 0.0), (MARGIN,), (Judged(None, 0.0),), MARGIN)
    assert overdrawn([open_round, open_round], 0)
    assert not overdrawn([open_round, true_effect], 0)


def test_tallies_add_up() -> None:
    together, apart = simulate(HALF, range(6)), InquiryTally()
    for numbers in (range(4), range(4, 6)):
        apart.add(simulate(HALF, numbers))
    assert together.figures() == apart.figures()
    assert together.inquiries == 6
    assert sum(together.asked) > 0


def test_the_margin_is_seen_with_more_power_where_it_is_wider() -> None:
    assert seen_with(0.8) < seen_with(0.96)


def test_a_goal_is_missed_by_the_upper_end_of_enough_and_by_the_lower_end_of_few() -> None:
    def row(inquiries: int, rate: list[float], overdrawn: float = 0.0) -> dict[str, object]:
        return {"name": "any", "ledgers": True, "inquiries": inquiries, "false_difference": rate,
                "false_equivalence": [0.0, 0.0, 0.0], "overdrawn": [overdrawn, 0.0, 1.0]}  # fmt: skip

    assert not missed([row(INQUIRIES, [0.045, 0.036, 0.055])])
    assert len(missed([row(INQUIRIES, [0.055, 0.046, 0.066])])) == 1
    assert not missed([row(QUICK, [0.1, 0.01, 0.3])])
    assert len(missed([row(QUICK, [0.5, 0.3, 0.7])])) == 1
    assert len(missed([row(INQUIRIES, [0.045, 0.036, 0.055], overdrawn=0.1)])) == 1
    assert not missed([{**row(INQUIRIES, [0.4, 0.38, 0.42]), "ledgers": False}])


def test_every_planner_and_truth_is_flown() -> None:
    assert {cell.planner for cell in CELLS.values()} == set(PLANNERS)
    assert {cell.truth for cell in CELLS.values()} == set(TRUTHS)
