from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.records.design import Design, Hypothesis
from studies.records.procedure import InterimAnalysis, Noise, Prediction, Replication
from studies.records.verdict import Verdict, VerdictName
from studies.statistics.power import dunnett_p, spend_alpha
from studies.verdicts.inputs import ArmData, JudgeInput
from studies.verdicts.rules import brier, calibration, judge
from tests.golden import assert_golden
from tests.studies import synthetic
from tests.studies.synthetic import hypothesis, runs_of, staked

CONTROL, FIRST, SECOND = "group_size=4", "group_size=8", "group_size=16"
RATE = "learning_rate=0.01"
LOW = [0.50, 0.52, 0.51, 0.49, 0.53]
HIGH = [0.61, 0.64, 0.60, 0.66, 0.63]
FLAT = [0.51, 0.50, 0.53, 0.49, 0.52]
MIDDLE = [0.52, 0.55, 0.54, 0.50, 0.56]
SHARES = st.lists(st.integers(0, 512).map(lambda n: n / 512), min_size=0, max_size=7)
TESTS = st.sampled_from(["welch", "pooled", "paired"])
BANK = Noise(sd=0.02, df=20, episodes=512, basis="made up for a test")
FLIPPED = {"supported": "refuted", "refuted": "supported"}


@cache
def design(*treatments: int, claims: tuple[Hypothesis, ...] = (), **changes: Any) -> Design:
    claims = claims or tuple(hypothesis(f"h{n + 1}", value) for n, value in enumerate(treatments or (8,)))
    given = {"test": "pooled", "noise": BANK, "exclusions": ("lost",), "counted_as_worst": ("NAN",)}
    return synthetic.design(claims, **(given | changes))


def mixed(**changes: Any) -> Design:
    """A study of three claims on two variables: two arms of one, one of the other."""
    rate = hypothesis("h3", 0.01, variable="learning_rate", control=0.001)
    claims = (hypothesis("h1", 8), hypothesis("h2", 16), rate)
    arms = (*synthetic.design(claims[:2]).arms, synthetic.Arm(name=RATE, overrides={"learning_rate": 0.01}))
    given = {"arms": arms, "control_arm": CONTROL, "multiplicity": "dunnett_bh"}
    return design.__wrapped__(claims=claims, **given, **changes)  # arms have no hash


MIXED = mixed()


def data(control: list[float], treatment: list[float], *more: list[float], **about: Any) -> dict[str, ArmData]:
    arms = {CONTROL: runs_of(control, "c"), FIRST: runs_of(treatment, "t", **about)}
    return arms | {name: runs_of(values, name) for name, values in zip((SECOND, RATE), more, strict=False)}


def judged(chosen: Design, values: dict[str, ArmData], claim: str = "h1", **options: Any) -> Verdict:
    return judge(JudgeInput(staked(chosen), claim, values, **({"look": 1} | options)))


def verdict(control: list[float], treatment: list[float], chosen: Design | None = None, **options: Any) -> Verdict:
    return judged(chosen or design(), data(control, treatment), **options)


@given(SHARES, SHARES, TESTS, st.sampled_from([None, 0.01, 0.2]))
def test_verdict_interval_and_p_never_contradict_each_other(
    a: list[float], b: list[float], test: str, margin: float | None
) -> None:
    found = verdict(a, b, design(test=test, equivalence_margin=margin))
    if min(len(a), len(b)) < 2:
        assert found.verdict == "invalid"
    if found.low is None or found.high is None or found.p is None:
        assert found.verdict in ("invalid", "inconclusive")
        return
    beyond = found.low > 0 or found.high < 0
    assert abs(found.p - 0.05) < 1e-9 or beyond == (found.p < 0.05)
    same = found.equivalence
    within = same is not None and -same.margin < same.low and same.high < same.margin
    sided = "supported" if found.low > 0 else "refuted"
    assert found.verdict == ("equivalent" if within else sided if beyond else "inconclusive")


@given(SHARES, SHARES, TESTS)
def test_a_predicted_decrease_and_swapped_arms_are_mirrors(a: list[float], b: list[float], test: str) -> None:
    up, back = (verdict(*arms, design(test=test)) for arms in ((a, b), (b, a)))
    down = verdict(a, b, design(claims=(hypothesis("h1", 8, direction="decrease"),), test=test))
    assert down.verdict == back.verdict == FLIPPED.get(up.verdict, up.verdict)
    assert (up.low, up.high, up.p) == (down.low, down.high, down.p)
    if up.low is not None:
        assert (up.estimate, up.low, up.p) == pytest.approx((-back.estimate, -back.high, back.p), abs=1e-9)


@given(SHARES, SHARES, TESTS)
def test_a_smaller_alpha_never_makes_a_claim_that_a_larger_one_does_not(
    a: list[float], b: list[float], test: str
) -> None:
    strict, loose = (verdict(a, b, design(test=test, alpha=alpha)).verdict for alpha in (0.01, 0.1))
    assert strict in (loose, "inconclusive")


def test_a_clear_effect_is_supported_with_the_numbers_of_its_test() -> None:
    found = verdict(LOW, HIGH)
    assert (found.verdict, found.test, found.df, found.final) == ("supported", "pooled", 16, True)
    assert (found.n_control, found.n_treatment, found.within_prediction) == (5, 5, True)
    numbers = (found.mean_control, found.mean_treatment, found.sd_treatment, found.estimate, found.brier)
    assert numbers == pytest.approx((fmean(LOW), fmean(HIGH), stdev(HIGH), fmean(HIGH) - fmean(LOW), 0.3**2))
    assert_golden(found.reason)


REASONS: dict[str, tuple[list[float], list[float], Design, str, dict[str, Any]]] = {
    "against the prediction": (HIGH, LOW, design(), "refuted", {}),
    "surely not zero, in a margin": (LOW, [x + 0.03 for x in LOW], design(equivalence_margin=0.1), "equivalent", {}),
    "a wide interval": ([0.4, 0.6, 0.5], [0.45, 0.58, 0.5], design(equivalence_margin=0.05), "inconclusive", {}),
    "a test that gave way": (LOW, [0.2, 0.9, 0.5, 0.7, 0.1], design(), "inconclusive", {}),
    "pairs that differ by the same": ([0.25, 0.5, 0.75], [0.5, 0.75, 1.0], design(test="paired"), "invalid", {}),
    "a violation": (LOW, HIGH, design(), "invalid", {"violations": ["unequal_steps: 40 and 80 steps"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_the_sentence_names_the_rule_that_decided(name: str) -> None:
    control, treatment, chosen, expected, options = REASONS[name]
    found = verdict(control, treatment, chosen, **options)
    assert found.verdict == expected
    assert_golden(found.reason)
    if expected == "equivalent":
        assert verdict(control, treatment).verdict == "supported"
        assert (found.equivalence.p < 0.05, found.brier) == (True, None)
    if expected == "invalid":
        assert (found.low, found.p, found.brier) == (None, None, None)


@pytest.mark.parametrize("test", ["welch", "pooled", "paired"])
def test_two_arms_without_variance_have_no_test_even_with_a_bank(test: str) -> None:
    same, apart = (verdict([0.0] * 3, [mean] * 3, design(test=test)) for mean in (0.0, 1.0))
    assert (same.verdict, apart.verdict) == ("inconclusive", "invalid")
    assert (apart.low, apart.p, apart.df, apart.brier, apart.estimate) == (None, None, None, None, 1.0)
    assert same.sd_control == 0.0
    assert_golden(f"{same.reason}\n{apart.reason}")


def test_a_locked_exclusion_is_counted_an_unnamed_end_or_too_many_make_the_verdict_invalid() -> None:
    lost = data(LOW, HIGH, excluded={"x": "client_died"})
    found = judged(design(), lost)
    assert found.verdict == "invalid"
    assert_golden(found.reason)
    assert judged(design(), lost, accepted=["client_died"]).verdict == "supported"
    lost = data(LOW, HIGH, excluded={"x": "lost", "y": "lost"})
    found = judged(design(most_excluded=0.3), lost)
    assert (found.verdict, found.excluded) == ("supported", {"group_size=8: lost": 2})
    just = {"most_excluded": 2 / 7}
    assert judged(design(**just), lost).verdict == "supported"
    strict = judged(design(most_excluded=0.25), lost)
    assert strict.verdict == "invalid"
    assert_golden(strict.reason)


def test_a_run_that_broke_down_counts_with_the_worst_value_and_a_threat_stands_beside_a_verdict() -> None:
    found = judged(design(), data(LOW, HIGH, worst={"x": "NAN"}))
    assert (found.n_treatment, found.mean_treatment) == (6, pytest.approx(fmean([*HIGH, 0.0])))
    assert found.counted_as_worst == {"group_size=8: NAN": 1}
    assert found.verdict == "inconclusive"
    told = verdict(LOW, HIGH, threats=["hardware: two kinds"])
    assert (told.verdict, told.violations) == ("supported", ("hardware: two kinds",))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"claim": "h9"}, "'h9'"), ({"look": 2}, "between 1 and 1; found 2"),
        ({"values": {CONTROL: runs_of(LOW, "c"), FIRST: runs_of(HIGH, "c")}}, "one arm"),
        ({"values": {CONTROL: runs_of([float("nan"), 1.0], "c"), FIRST: runs_of(HIGH, "t")}}, "finite"),
    ],
)  # fmt: skip
def test_inputs_no_verdict_can_rest_on_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        judged(design(), **({"values": data(LOW, HIGH)} | wrong))


def test_a_look_uses_its_own_level_and_is_final_only_when_it_decides_or_is_the_last() -> None:
    looks = spend_alpha((3, 5))
    weak, strong = data(LOW[:3], [0.5, 0.55, 0.52]), data(LOW[:3], [0.9, 0.92, 0.91])
    first = judged(design(looks=looks), weak)
    assert (first.verdict, first.final, first.look) == ("inconclusive", False, 1)
    assert first.level == pytest.approx(1 - looks[0].alpha)
    assert "look 1 of 2" in first.reason
    assert judged(design(looks=looks), weak, look=2).final is True
    assert judged(design(looks=looks), strong).final is True


def test_arms_of_one_variable_are_corrected_by_dunnetts_test() -> None:
    found = judged(design(8, 16, multiplicity="dunnett_bh"), data(LOW, HIGH, MIDDLE), "h2")
    t = found.estimate / (found.sd_pooled * (2 / 5) ** 0.5)
    assert found.p_adjusted == pytest.approx(dunnett_p(t, found.df or 0, 5, [5, 5]))
    assert found.p < found.p_adjusted
    assert found.level == 0.95
    assert_golden(found.reason)


def test_variables_share_alpha_by_how_many_of_them_are_found() -> None:
    one, both = data(LOW, HIGH, FLAT, FLAT), data(LOW, HIGH, FLAT, HIGH)
    assert judged(MIXED, one).level == pytest.approx(0.975)
    assert judged(MIXED, both, "h3").level == pytest.approx(0.95)
    found = judged(MIXED, one, "h3")
    assert found.p_adjusted is None
    assert_golden(found.reason)


@given(st.lists(st.integers(0, 60), min_size=20, max_size=20))
def test_in_a_study_of_several_claims_a_claim_is_made_exactly_when_its_corrected_p_allows_it(
    numbers: list[int],
) -> None:
    values = [0.4 + n / 256 for n in numbers]
    arms = {a.name: runs_of(values[n * 5 : n * 5 + 5], a.name) for n, a in enumerate(MIXED.arms)}
    for name in ("h1", "h2", "h3"):
        found = judged(MIXED, arms, name)
        if found.p is None:
            continue
        p = found.p if found.p_adjusted is None else found.p_adjusted
        if abs(p - (1 - found.level)) > 1e-7:
            assert (found.low > 0 or found.high < 0) == (p < 1 - found.level)


def test_a_claim_decided_earlier_keeps_its_p_among_the_families() -> None:
    chosen = mixed(looks=spend_alpha((3, 5)))
    values, near = data(LOW, FLAT, FLAT, FLAT[:3]), data(LOW, [x + 0.031 for x in LOW], FLAT, FLAT[:3])
    early = judged(chosen, {**data(LOW[:3], FLAT[:3]), RATE: runs_of([0.9, 0.92, 0.91], RATE)}, "h3")
    assert early.verdict == "supported"
    alone, after = (judged(chosen, values, look=2, earlier=known) for known in ({}, {"h3": early}))
    assert alone.level == after.level  # one family found, as with none
    alone, after = (judged(chosen, near, look=2, earlier=known) for known in ({}, {"h3": early}))
    assert after.level < alone.level


def test_a_replication_is_one_test_at_alpha_without_bank_or_sharing() -> None:
    chosen = mixed(looks=spend_alpha((3, 5)), replication=Replication(environment="other", seeds=(1, 2, 3, 4, 5)))
    found = judged(chosen, data(LOW, HIGH), phase="replicate")
    assert (found.phase, found.level, found.df, found.final) == ("replicate", 0.95, 8, True)
    assert found.p_adjusted is None
    assert "look" not in found.reason


def test_a_claim_that_cannot_be_made_counts_as_one_that_shows_nothing() -> None:
    values, chosen = data(LOW, HIGH, FLAT, [x + 0.4 for x in LOW]), mixed(looks=spend_alpha((3, 5)))
    found = judged(chosen, values, look=2)
    barred = judged(chosen, values, look=2, barred=("h3",))
    assert 1 - found.level == pytest.approx(2 * (1 - barred.level))
    assert barred.inputs_sha256 != found.inputs_sha256
    settled = judged(chosen, values, "h3", exploratory=True)
    assert settled.verdict == "supported"
    assert judged(chosen, values, look=2, earlier={"h3": settled}).level == barred.level


@given(st.randoms(use_true_random=False))
def test_the_order_of_runs_and_arms_is_of_no_account(rng: random.Random) -> None:
    straight = data(LOW, HIGH, [0.5, 0.55])
    shuffled = {
        name: replace(found, values=dict(rng.sample(list(found.values.items()), len(found.values))))
        for name, found in rng.sample(list(straight.items()), len(straight))
    }
    chosen = design(8, 16, multiplicity="dunnett_bh")
    assert judged(chosen, shuffled) == judged(chosen, straight)


def test_the_hash_changes_with_every_input_and_with_nothing_else() -> None:
    base = data(LOW, HIGH)
    early = judged(design(), base)
    looks = (InterimAnalysis(seeds=3, alpha=0.01), InterimAnalysis(seeds=5, alpha=0.045))
    cases: list[tuple[Design, dict[str, ArmData], dict[str, Any]]] = [
        (design(), base, {}), (design(), data(LOW, [*HIGH[:4], 0.6301]), {}),
        (design(), data(LOW, HIGH, excluded={"x": "lost"}), {}), (design(), data(LOW, HIGH, worst={"x": "NAN"}), {}),
        (design(alpha=0.01), base, {}), (design(test="paired"), base, {}),
        (design(noise=BANK.model_copy(update={"sd": 0.03})), base, {}), (design(equivalence_margin=0.001), base, {}),
        (design(most_excluded=0.5), base, {}), (design(looks=looks), base, {}),
        (design(looks=looks), base, {"look": 2}), (design(), base, {"violations": ["a: b"]}),
        (design(), base, {"violations": ["c: b"]}), (design(), base, {"accepted": ["a"]}),
        (design(), base, {"exploratory": True}), (design(), base, {"earlier": {"h1": early}}),
    ]  # fmt: skip
    hashes = [judged(chosen, values, **options).inputs_sha256 for chosen, values, options in cases]
    assert len(set(hashes)) == len(cases)
    repriced = design(question="Another wording of the question?")
    assert judged(repriced, base).inputs_sha256 == hashes[0]
    assert judged(design(), base, threats=["a: b"]).inputs_sha256 == hashes[0]


def ended(name: VerdictName, estimate: float | None = 0.1) -> Verdict:
    return verdict([0.1, 0.2], [0.4, 0.5]).model_copy(update={"verdict": name, "estimate": estimate})


def said(probability: float, **changes: Any) -> Prediction:
    return Prediction(**({"low": 0.05, "high": 0.2, "level": 0.8, "probability": probability} | changes))


def test_figures_without_anything_behind_them_are_missing_and_a_probability_is_scored_by_what_came() -> None:
    nothing = calibration([])
    assert (nothing.predictions, nothing.scored, nothing.intervals) == (0, 0, 0)
    assert (nothing.brier, nothing.skill, nothing.coverage, nothing.supported, nothing.mean_level) == (None,) * 5
    open_ended = calibration([(said(0.6), ended("inconclusive")), (said(0.6), ended("equivalent", 0.01))])
    assert (open_ended.brier, open_ended.scored, open_ended.intervals) == (None, 0, 2)
    assert open_ended.verdicts == {"inconclusive": 1, "equivalent": 1}
    scores = [brier(p, name) for p, name in ((1.0, "supported"), (1.0, "refuted"), (0.5, "refuted"))]
    assert scores == [0.0, 1.0, 0.25]
    assert brier(0.7, "inconclusive") is brier(0.7, "invalid") is None
    found = calibration([(said(1.0), ended("supported")), (said(0.0), ended("refuted"))])
    assert (found.brier, found.constant, found.skill) == (0.0, 0.25, 1.0)
