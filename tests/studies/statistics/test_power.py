from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.records.design import Design
from studies.records.procedure import InterimAnalysis, Pilot, PowerTarget
from studies.records.statements import apply_pilot
from studies.statistics import proportions as exact
from studies.statistics.comparison import Runs, compare
from studies.statistics.power import (
    PowerDesign,
    analyses_at_shares,
    blinded_variance,
    crossings,
    exaggeration,
    last_level,
    min_detectable_effect,
    plan_analyses,
    power,
    seeds_needed,
    size_design,
    spend_alpha,
)
from studies.statistics.proportions import rate_interval
from tests.lazily import lazy
from tests.studies.synthetic import design, hypothesis, studies

stats = lazy("scipy.stats")
powers = lazy("statsmodels.stats.power")
SCHEDULES = st.lists(st.integers(2, 40), min_size=1, max_size=4, unique=True).map(sorted)


def once(seeds: int, alpha: float = 0.05) -> tuple[InterimAnalysis, ...]:
    return (InterimAnalysis(seeds=seeds, alpha=alpha),)


def simulated(shape: PowerDesign, effect: float, studies: int) -> float:
    """Return how often the shipped comparison finds `effect`, in standard deviations, at the last look's level."""
    rng, found = random.Random(5), 0
    for _ in range(studies):
        shared, arms = [rng.gauss(0, shape.correlation**0.5) for _ in range(shape.seeds)], []
        for arm in range(shape.arms):
            own = (rng.gauss(0, (1 - shape.correlation) ** 0.5) for _ in shared)
            values = [common + alone + (effect if arm == 1 else 0) for common, alone in zip(shared, own, strict=True)]
            names = [f"{arm}-{n}" for n in range(shape.seeds)]
            arms.append(Runs(dict(zip(names, values, strict=True)), {name: n for n, name in enumerate(names)}))
        result = compare(shape.test, arms[0], arms[1], others=[arm.numbers for arm in arms[2:]])
        found += result is not None and result.interval(1 - shape.level)[0] > 0
    return found / studies


@pytest.mark.parametrize(
    ("shape", "effect"),
    [
        (PowerDesign("welch", once(5)), 2.0), (PowerDesign("welch", once(3)), 2.0),
        (PowerDesign("common", once(5), arms=3), 2.0), (PowerDesign("common", once(3), arms=5), 2.5),
        (PowerDesign("common", once(5), arms=4), 1.8), (PowerDesign("paired", once(5), correlation=0.5), 1.5),
        (PowerDesign("welch", once(10), families=4), 1.5),
    ],
)  # fmt: skip
@studies(60, 1000)
def test_power_is_what_the_shipped_test_has(shape: PowerDesign, effect: float, studies: int) -> None:
    near = 0.03 + 3 * 0.5 / studies**0.5
    assert simulated(shape, effect, studies) == pytest.approx(power(shape, effect, 1.0), abs=near)


@pytest.mark.parametrize(
    ("looks", "published"),
    [
        (once(6), (1.06, 1.56, 2.77)),
        (analyses_at_shares(6, (0.5, 1.0))[:1], (1.43, 2.3, 4.1)),
        (analyses_at_shares(6, (0.5, 1.0)), (1.06, 1.57, 2.77)),
    ],
)
def test_claims_measure_the_truth_as_many_times_as_simulated_studies_did(
    looks: tuple[InterimAnalysis, ...], published: tuple[float, ...]
) -> None:
    found = [exaggeration(PowerDesign("welch", looks), 0.05, effect) for effect in (0.1, 0.05, 0.025)]
    assert found == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_paired_tests_power_is_that_of_statsmodels(seeds: int) -> None:
    shape = PowerDesign("paired", once(seeds), correlation=0.5)
    theirs = powers.TTestPower().power(1.5, seeds, 0.05, alternative="two-sided")
    assert power(shape, 1.5, 1.0) == pytest.approx(theirs, abs=1e-4)


def test_the_seeds_that_effects_need_are_those_known_for_welchs_test() -> None:
    assert [seeds_needed(PowerDesign("welch", once(5)), d, 1.0) for d in (1.0, 1.5, 2.0, 3.0)] == [17, 9, 6, 4]
    assert seeds_needed(PowerDesign("welch", once(5)), 0.01, 1.0) is None


def test_the_detectable_effect_has_the_promised_power_and_more_seeds_keep_the_rhythm_of_the_looks() -> None:
    shape = PowerDesign("common", spend_alpha((3, 6, 10)), arms=3, compared=2)
    smallest = min_detectable_effect(shape, 0.03)
    assert power(shape, smallest, 0.03) == pytest.approx(0.8, abs=1e-3)
    assert min_detectable_effect(shape, 0.06) == pytest.approx(2 * smallest, rel=1e-3)
    shape = PowerDesign("welch", spend_alpha((3, 6, 10))).with_seeds(20)
    assert [look.seeds for look in shape.analyses] == [6, 12, 20]
    assert shape.analyses == spend_alpha((6, 12, 20), 0.05)
    assert [look.seeds for look in analyses_at_shares(3, (0.3, 0.6, 1.0))] == [2, 3]


@pytest.mark.parametrize(("effect", "sd"), [(0, 1), (1, 0), (-1, 1)])
def test_no_noise_and_no_effect_have_no_power(effect: float, sd: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        power(PowerDesign("welch", once(5)), effect, sd)


def bounds(seeds: list[int], alpha: float = 0.05) -> list[float]:
    return [float(stats.norm.isf(look.alpha / 2)) for look in spend_alpha(seeds, alpha)]


@pytest.mark.parametrize(
    "published",
    [[2.963, 1.969], [3.710, 2.511, 1.993], [4.333, 2.963, 2.359, 2.014], [4.877, 3.357, 2.680, 2.290, 2.031]],
)
def test_bounds_of_equal_looks_are_the_published_ones(published: list[float]) -> None:
    """Reboussin, DeMets, Kim & Lan 2000 (Controlled Clinical Trials 21), two-sided 0.05."""
    found = bounds([100 * (look + 1) for look in range(len(published))])
    assert found == pytest.approx(published, abs=6e-4)


@given(SCHEDULES, st.sampled_from([0.01, 0.05, 0.2]))
def test_all_looks_together_spend_alpha(seeds: list[int], alpha: float) -> None:
    shares = [n / seeds[-1] for n in seeds]
    found = crossings(bounds(seeds, alpha), shares)
    assert sum(sum(look) for look in found) == pytest.approx(alpha, rel=1e-5)
    so_far = 0.0
    for look, share in zip(found, shares, strict=True):
        so_far += sum(look)
        assert so_far == pytest.approx(4 * stats.norm.sf(stats.norm.isf(alpha / 4) / share**0.5), rel=1e-4, abs=1e-9)
        assert look.above == pytest.approx(look.below)


@given(SCHEDULES, st.data(), st.sampled_from([0.01, 0.05, 0.2]))
def test_a_last_look_and_those_made_spend_alpha_and_less_where_somebody_chose_the_moment(
    seeds: list[int], draw: st.DataObject, alpha: float
) -> None:
    plan = tuple((look.seeds, look.alpha) for look in spend_alpha(seeds, alpha))
    looks = draw.draw(st.integers(0, len(plan) - 1))
    made = tuple(n - draw.draw(st.floats(0, 1)) for n, _ in plan[:looks])
    few, many = sorted(draw.draw(st.floats(made[-1] if made else 1, seeds[-1])) for _ in range(2))
    fewer, level, chosen_early, chosen = (
        last_level(plan, made, count, whole=whole) for whole in (True, False) for count in (few, many)
    )
    before = [(n, own) for n, (_, own) in zip(made, plan, strict=False) if n < many]
    shares = [n / many for n in (*(n for n, _ in before), many)]
    spent, less = (
        sum(
            map(sum, crossings([float(stats.norm.isf(own / 2)) for own in (*(own for _, own in before), last)], shares))
        )
        for last in (level, chosen)
    )
    assert spent == pytest.approx(alpha, rel=1e-4)
    assert less <= max(spent, sum(own for _, own in before)) * (1 + 1e-6)
    assert 0 < chosen_early <= chosen * (1 + 1e-9) <= level * (1 + 1e-6) <= alpha * (1 + 1e-5)
    assert fewer >= level * (1 - 1e-6)


@given(SCHEDULES)
def test_a_last_look_at_all_that_was_planned_is_the_planned_one(seeds: list[int]) -> None:
    plan = tuple((look.seeds, look.alpha) for look in spend_alpha(seeds))
    made = tuple(float(n) for n in seeds[:-1])
    assert last_level(plan, made, float(seeds[-1]), whole=True) == pytest.approx(plan[-1][1], rel=1e-6)


@pytest.mark.parametrize("looks", [(3,), (3, 5), (4, 6, 8), (6, 9, 12), (10, 15, 20)])
def test_who_watches_after_every_run_and_ends_it_at_will_makes_few_more_false_claims(looks: tuple[int, ...]) -> None:
    plan = tuple((look.seeds, look.alpha) for look in spend_alpha(looks))
    planned, bounds, shares = dict(plan), list[float](), list[float]()
    for runs in range(4, 2 * looks[-1] + 1):
        count = 2 / (1 / (runs // 2) + 1 / (runs - runs // 2))
        level = planned.get(runs // 2) if runs % 2 == 0 else None
        bounds.append(float(stats.norm.isf((level or last_level(plan, (), count, whole=False)) / 2)))
        shares.append(count / looks[-1])
    assert 0.05 < sum(map(sum, crossings(bounds, shares))) < 0.052


def test_a_drift_is_found_on_its_side_with_the_power_of_a_normal_test() -> None:
    (only,) = crossings([1.96], [1.0], drift=2.8)
    assert only.above == pytest.approx(stats.norm.sf(1.96 - 2.8))
    assert only.below == pytest.approx(stats.norm.cdf(-1.96 - 2.8))


@pytest.mark.parametrize("seeds", [[], [3, 3], [6, 3], [1, 5]])
def test_looks_that_do_not_grow_are_refused(seeds: list[int]) -> None:
    with pytest.raises(ValueError, match="must grow"):
        spend_alpha(seeds)


COUNTS = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(COUNTS)
def test_wilsons_interval_is_the_textbooks(counts: tuple[int, int]) -> None:
    k, n = counts
    z, p = float(stats.norm.ppf(0.975)), k / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    found = rate_interval(k, n)
    assert (found.mean, found.low, found.high) == pytest.approx((p, centre - half, centre + half), abs=1e-12)


def test_a_rate_of_nothing_is_missing_and_an_impossible_count_refused() -> None:
    assert rate_interval(0, 0) is None
    for limits in (rate_interval, exact.exact_limits):
        with pytest.raises(ValueError, match="3 trials; found 4"):
            limits(4, 3)


def chance(count: int, of: int, rate: float) -> float:
    return math.comb(of, count) * rate**count * (1 - rate) ** (of - count)


@pytest.mark.parametrize(
    ("control", "treatment", "p"),
    # one-sided p of R's package Exact, as scipy's tests quote them; the last is told the other way round there
    [((2, 10), (7, 9), 0.009886142), ((5, 25), (16, 41), 0.05827348), ((31, 63), (74, 117), 0.0355640643)],
)
def test_the_p_is_twice_the_published_one_sided_p(
    control: tuple[int, int], treatment: tuple[int, int], p: float
) -> None:
    assert exact.boschloo(control, treatment) == pytest.approx(2 * p, rel=1e-6)


@pytest.mark.parametrize(("n", "m"), [(2, 7), (4, 4), (6, 3), pytest.param(7, 7, marks=pytest.mark.full)])
def test_equal_rates_are_told_apart_with_a_probability_of_at_most_alpha(n: int, m: int) -> None:
    p = {(a, b): exact.boschloo((a, n), (b, m)) for a, b in product(range(n + 1), range(m + 1))}
    for alpha, percent in product((0.01, 0.05, 0.2), range(1, 100)):
        told_apart = [chance(a, n, percent / 100) * chance(b, m, percent / 100) for a, b in p if p[a, b] <= alpha]
        assert sum(told_apart) <= alpha + 1e-9


def test_limits_are_clopper_and_pearsons_and_the_interval_newcombes_tenth_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as published:  # with Wilson's limits
        published.setattr(exact, "exact_limits", lambda count, of, level: rate_interval(count, of))
        assert exact.difference((48, 80), (56, 70)) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    found = exact.exact_limits(0, 5)
    assert (found.mean, found.low, found.high) == pytest.approx((0.0, 0.0, 1 - 0.025 ** (1 / 5)))
    assert (exact.exact_limits(10, 10).low, exact.exact_limits(10, 10).high) == pytest.approx((0.6915029, 1.0))


def test_power_is_what_enumeration_gives() -> None:
    n, rates = 6, (0.1, 0.7)
    seen = sum(
        chance(a, n, rates[0]) * chance(b, n, rates[1])
        for a, b in product(range(n + 1), repeat=2)
        if b > a and exact.boschloo((a, n), (b, n)) <= 0.05
    )
    assert exact.power_of_rates(*rates, n) == pytest.approx(seen, abs=1e-9)
    assert exact.power_of_rates(*reversed(rates), n) == pytest.approx(seen, abs=1e-9)


def test_what_few_seeds_cannot_see_is_said_to_be_unseen() -> None:
    assert exact.seeds_for_rates(0.1, 0.11) is None
    with pytest.raises(ValueError, match="two different"):
        exact.seeds_for_rates(0.2, 0.2)
    seen = [exact.min_detectable_rate(seeds) for seeds in (2, 3, 8)]
    assert seen[0] is None
    assert seen[1] == pytest.approx(0.8 ** (1 / 3), abs=1e-6)
    assert exact.power_of_rates(0.0, seen[2], 8) == pytest.approx(0.8, abs=1e-6)


def test_a_margin_holds_from_the_alpha_on_whose_interval_lies_inside_it() -> None:
    alpha = exact.equivalence_p((0, 30), (1, 30), 0.3)
    low, high = exact.difference((0, 30), (1, 30), 1 - 2 * alpha)
    assert max(-low, high) == pytest.approx(0.3, abs=1e-6)
    assert exact.equivalence_p((0, 5), (5, 5), 0.3) == pytest.approx(0.5)


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
