"""A pilot sizes a design blind to its arms, for the noise that it met, within what the budget carries."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.records.design import Design
from studies.records.procedure import Pilot, PowerTarget
from studies.records.statements import apply_pilot
from studies.statistics.power import blinded_variance, plan_analyses, size_design
from tests.studies.synthetic import design, hypothesis

VALUES = st.lists(st.floats(0, 1), min_size=8, max_size=8)
STEADY = ([0.50, 0.53, 0.47, 0.51], [0.55, 0.49, 0.52, 0.48])


def piloted(arms: int = 2, **changes: object) -> Design:
    claims = tuple(hypothesis(f"h{n}", 8 * n) for n in range(1, arms))
    shape = {} if arms == 2 else {"test": "common", "multiplicity": "dunnett_bh"}
    promise = PowerTarget(power=0.8, effect=0.1)
    values = {"pilot": Pilot(seeds=4, most=20), "promise": promise, **shape, **changes}
    return apply_pilot(design(claims, seeds=20, **values))


@given(VALUES, st.permutations(range(8)), st.floats(0.01, 0.5))
def test_the_spread_does_not_know_which_run_is_whose(values: list[float], order: Sequence[int], effect: float) -> None:
    mixed = [values[at] for at in order]
    for weights in ((), (1.0, -1.0, -1.0, 1.0)):
        told = [
            blinded_variance([runs[:2], runs[2:4], runs[4:6], runs[6:]], effect, weights) for runs in (values, mixed)
        ]
        assert told[0] == (pytest.approx(told[1][0]), 4)


def test_what_the_promised_effect_adds_is_taken_off() -> None:
    control, shifted = STEADY[0], [value + 0.1 for value in STEADY[0]]
    for others in ([], [control], [control] * 3):
        alike = blinded_variance([control, control, *others], 0.0)[0]
        assert blinded_variance([control, shifted, *others], 0.1)[0] == pytest.approx(alike)
    crossed, weights = [control, shifted, shifted, control], (1.0, -1.0, -1.0, 1.0)
    assert blinded_variance(crossed, 0.2, weights)[0] == pytest.approx(blinded_variance([control] * 4, 0.0)[0])
    assert blinded_variance([control, control], 5.0)[0] > 0


@pytest.mark.parametrize("arms", [[], [[0.5, 0.6, 0.7]], [[0.5], [0.6]]])
def test_too_few_runs_say_nothing_of_the_spread(arms: list[list[float]]) -> None:
    assert blinded_variance(arms, 0.1) == (0.0, 0)
    sized = size_design(piloted(), arms, 20)
    assert (sized.seeds, sized.sd, sized.needed, sized.power) == (4, None, None, None)


@given(st.floats(0.005, 0.3), st.integers(0, 30), st.integers(0, 3))
def test_a_design_gets_what_it_needs_as_far_as_that_is_affordable(scale: float, affordable: int, fallen: int) -> None:
    known = [[0.5 + scale * (value - 0.5) / 0.03 for value in arm] for arm in STEADY]
    chosen = piloted()
    sized = size_design(chosen, known, affordable, fallen)
    assert sized.affordable == min(20, max(4, affordable))
    assert sized.seeds == min(sized.needed or 20, sized.affordable)
    assert sized.looks == plan_analyses(sized.seeds, 3, 0.05, None, 4)
    assert sized.looks[0].seeds >= 4
    assert sized.power is not None
    assert (sized.power >= 0.8) == (sized.needed is not None and sized.seeds >= sized.needed)


def test_louder_runs_more_arms_and_collapses_each_take_more_seeds_and_so_does_a_claim_of_no_difference() -> None:
    def needed(times: float, chosen: Design, collapsed: int = 0) -> int:
        known = [[0.5 + times * (value - 0.5) for value in arm] for arm in (*STEADY, STEADY[0])][: len(chosen.arms)]
        return size_design(chosen, known, 20, collapsed).needed or 99

    alike = apply_pilot(piloted().model_copy(update={"hypotheses": (hypothesis(treatment=8, sought="equivalence"),)}))
    assert 4 == needed(1, piloted()) < needed(2.5, piloted()) < needed(3, piloted())
    assert needed(3, piloted()) < min(needed(3, piloted(), 2), needed(3, alike))
    assert needed(3, piloted()) <= needed(3, piloted(3))
    unvaried = size_design(piloted(), [[0.5] * 4] * 2, 20)
    assert (unvaried.seeds, unvaried.sd) == (4, None)  # more of what does not vary tells nothing


def test_a_true_null_is_claimed_no_more_often_for_the_sizing_and_the_promise_is_kept() -> None:
    rng, claims = random.Random(3), {0.0: 0, 0.1: 0}
    from scipy import stats

    for effect in claims:
        for _ in range(600):
            arms = [[rng.gauss(shift, 0.05) for _ in range(20)] for shift in (0.0, effect)]
            sized = size_design(piloted(), [arm[:4] for arm in arms], 20)
            tests = [
                stats.ttest_ind(*(arm[: look.seeds] for arm in arms), equal_var=False).pvalue < look.alpha
                for look in sized.looks
            ]
            claims[effect] += any(tests)
    assert claims[0.0] / 600 < 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5
    assert claims[0.1] / 600 > 0.75
