from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.inquiry.ledger import stake_of_one_round as staked
from studies.records.design import Design, Hypothesis
from studies.records.design_parts import Look, Noise, Replication
from studies.records.verdict import Verdict
from studies.statistics.comparison import compare
from studies.statistics.dunnett import adjusted_p
from studies.statistics.looks import spend
from studies.verdicts.verdict import ArmData, invalid, judge
from tests.studies import synthetic
from tests.studies.synthetic import hypothesis

CONTROL, FIRST, SECOND = "group_size=4", "group_size=8", "group_size=16"
LOW = [0.50, 0.52, 0.51, 0.49, 0.53]
HIGH = [0.61, 0.64, 0.60, 0.66, 0.63]
SHARES = st.lists(st.integers(0, 512).map(lambda n: n / 512), min_size=0, max_size=7)
TESTS = st.sampled_from(["welch", "pooled", "paired"])
BANK = Noise(sd=0.02, df=20, episodes=512, basis="made up for a test")
FLIPPED = {"supported": "refuted", "refuted": "supported"}


def design(*treatments: int, claims: tuple[Hypothesis, ...] = (), **changes: Any) -> Design:
    claims = claims or tuple(hypothesis(f"h{n + 1}", value) for n, value in enumerate(treatments or (8,)))
    given = {"test": "pooled", "noise": BANK, "exclusions": ("lost",), "counted_as_worst": ("NAN",)}
    return synthetic.design(claims, **(given | changes))


def mixed(**changes: Any) -> Design:
    """A study of three claims on two variables: two arms of one, one of the other."""
    rate = hypothesis("h3", 0.01, variable="learning_rate", control=0.001)
    claims: tuple[Hypothesis, ...] = (hypothesis("h1", 8), hypothesis("h2", 16), rate)
    arms = (
        *synthetic.design(claims[:2]).arms,
        synthetic.Arm(name="learning_rate=0.01", overrides={"learning_rate": 0.01}),
    )
    return design(claims=claims, arms=arms, control_arm=CONTROL, multiplicity="dunnett_bh", **changes)


def arm(name: str, values: list[float], **changes: Any) -> ArmData:
    runs = {f"{name}-{n}": value for n, value in enumerate(values)}
    seeds = {run: n for n, run in enumerate(runs)}
    extra = {run: 100 + n for n, run in enumerate([*changes.get("excluded", {}), *changes.get("worst", {})])}
    return ArmData(runs, seeds | extra, **changes)


def data(control: list[float], treatment: list[float], **more: list[float]) -> dict[str, ArmData]:
    return {CONTROL: arm("c", control), FIRST: arm("t", treatment)} | {k: arm(k, v) for k, v in more.items()}


def verdict(control: list[float], treatment: list[float], chosen: Design | None = None, **options: Any) -> Verdict:
    return judge(staked(chosen or design()), "h1", data(control, treatment), **({"look": 1} | options))


# what decides


@given(SHARES, SHARES, TESTS, st.sampled_from([None, 0.01, 0.2]))
@settings(deadline=None)
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
@settings(deadline=None)
def test_a_predicted_decrease_is_the_mirror_of_a_predicted_increase(a: list[float], b: list[float], test: str) -> None:
    up = verdict(a, b, design(test=test))
    claim = hypothesis("h1", 8, direction="decrease")
    down = verdict(a, b, design(claims=(claim,), test=test))
    assert down.verdict == FLIPPED.get(up.verdict, up.verdict)
    assert (up.low, up.high, up.p) == (down.low, down.high, down.p)


@given(SHARES, SHARES, TESTS, st.integers(-3, 3))
@settings(deadline=None)
def test_shifting_every_value_changes_no_verdict(a: list[float], b: list[float], test: str, shift: int) -> None:
    there = verdict(a, b, design(test=test))
    moved = verdict([x + shift for x in a], [x + shift for x in b], design(test=test))
    if there.p is None or abs(there.p - 0.05) > 1e-6:
        assert moved.verdict == there.verdict


@given(SHARES, SHARES, TESTS)
@settings(deadline=None)
def test_a_smaller_alpha_never_makes_a_claim_that_a_larger_one_does_not(
    a: list[float], b: list[float], test: str
) -> None:
    strict, loose = (verdict(a, b, design(test=test, alpha=alpha)).verdict for alpha in (0.01, 0.1))
    assert strict in (loose, "inconclusive")


def test_a_clear_effect_is_supported_with_the_numbers_of_its_test() -> None:
    found = verdict(LOW, HIGH)
    assert (found.verdict, found.test, found.df, found.final) == ("supported", "pooled", 16, True)
    assert found.sd_pooled is not None
    assert found.reason == (
        f"The whole 95 % interval of the difference ({found.low:+.3f} to {found.high:+.3f}; the pooled t-test) lies "
        "above 0, the predicted side."
    )


def test_the_same_effect_against_the_prediction_is_refuted() -> None:
    assert verdict(HIGH, LOW).verdict == "refuted"
    assert "below 0, against the prediction" in verdict(HIGH, LOW).reason


def test_a_difference_surely_inside_the_margin_is_equivalent_even_if_it_is_surely_not_zero() -> None:
    close = [value + 0.03 for value in LOW]
    assert verdict(LOW, close).verdict == "supported"
    found = verdict(LOW, close, design(equivalence_margin=0.1))
    assert found.verdict == "equivalent"
    assert found.equivalence is not None
    assert found.equivalence.p < 0.05
    assert found.brier is None
    assert "90 % interval" in found.reason
    assert "inside the equivalence margin of 0.1 to both sides of 0" in found.reason


def test_a_wide_interval_around_zero_is_inconclusive_and_not_equivalent() -> None:
    found = verdict([0.4, 0.6, 0.5], [0.45, 0.58, 0.5], design(equivalence_margin=0.05))
    assert found.verdict == "inconclusive"
    assert found.reason.endswith("holds 0.")


def test_a_test_that_gave_way_says_so() -> None:
    found = verdict(LOW, [0.2, 0.9, 0.5, 0.7, 0.1])
    assert found.test == "welch"
    assert "Welch's test as the spread of the treatment arm contradicts the pooled one" in found.reason


# what makes a verdict invalid


@pytest.mark.parametrize("test", ["welch", "pooled", "paired"])
def test_two_arms_without_variance_have_no_test_even_with_a_bank(test: str) -> None:
    chosen = design(test=test)
    same, apart = verdict([0.5] * 3, [0.5] * 3, chosen), verdict([0.0] * 3, [1.0] * 3, chosen)
    assert (same.verdict, apart.verdict) == ("inconclusive", "invalid")
    assert (apart.low, apart.p, apart.df, apart.brier) == (None, None, None, None)
    assert apart.estimate == 1.0
    assert "without variance" in apart.reason


def test_pairs_that_all_differ_by_the_same_have_no_test() -> None:
    found = verdict([0.25, 0.5, 0.75], [0.5, 0.75, 1.0], design(test="paired"))
    assert (found.verdict, found.p) == ("invalid", None)
    assert "Every pair of runs with one seed differs by the same (+0.250)" in found.reason


@pytest.mark.parametrize(("control", "treatment"), [([], HIGH), ([0.5], HIGH), (LOW, [0.6]), ([], [])])
def test_fewer_than_two_runs_are_no_arm(control: list[float], treatment: list[float]) -> None:
    found = verdict(control, treatment)
    assert found.verdict == "invalid"
    assert "at least 2 valid runs in each arm" in found.reason
    assert (found.low, found.p) == (None, None)


def test_a_missing_arm_is_an_invalid_verdict_and_no_crash() -> None:
    found = judge(staked(design()), "h1", {}, look=1)
    assert (found.verdict, found.n_control, found.estimate) == ("invalid", 0, None)


def test_an_ending_that_the_lock_does_not_name_makes_the_verdict_invalid() -> None:
    lost = {CONTROL: arm("c", LOW), FIRST: arm("t", HIGH, excluded={"x": "client_died"})}
    found = judge(staked(design()), "h1", lost, look=1)
    assert found.verdict == "invalid"
    assert "1 of 6 runs of group_size=8 ended as client_died, for which the lock names no exclusion" in found.reason
    assert judge(staked(design()), "h1", lost, look=1, accepted=["client_died"]).verdict == "supported"


def test_a_locked_exclusion_is_counted_and_too_many_make_the_verdict_invalid() -> None:
    lost = {CONTROL: arm("c", LOW), FIRST: arm("t", HIGH, excluded={"x": "lost", "y": "lost"})}
    found = judge(staked(design(most_excluded=0.3)), "h1", lost, look=1)
    assert (found.verdict, found.excluded) == ("supported", {"group_size=8: lost": 2})
    strict = judge(staked(design(most_excluded=0.25)), "h1", lost, look=1)
    assert strict.verdict == "invalid"
    assert "2 of 7 runs of group_size=8 were excluded, a larger share than the 25%" in strict.reason
    assert strict.reason.endswith("that the lock allows (lost).")


@pytest.mark.parametrize(("lost", "verdict_said"), [(2, "supported"), (3, "invalid")])
def test_just_the_share_that_the_lock_allows_is_not_too_many(lost: int, verdict_said: str) -> None:
    values = data(LOW, HIGH)
    values[FIRST] = arm("t", HIGH[lost:], excluded={f"x{n}": "lost" for n in range(lost)})
    assert judge(staked(design(most_excluded=0.4)), "h1", values, look=1).verdict == verdict_said


def test_a_run_that_broke_down_by_its_own_training_counts_with_the_worst_value() -> None:
    broken = {CONTROL: arm("c", LOW), FIRST: arm("t", HIGH, worst={"x": "NAN"})}
    found = judge(staked(design()), "h1", broken, look=1)
    assert found.n_treatment == 6
    assert found.mean_treatment == pytest.approx(fmean([*HIGH, 0.0]))
    assert found.counted_as_worst == {"group_size=8: NAN": 1}
    assert found.verdict == "inconclusive"


def test_a_violation_makes_any_comparison_invalid_and_a_threat_stands_beside_it() -> None:
    found = verdict(LOW, HIGH, violations=["unequal_steps: 40 and 80 steps"])
    assert found.verdict == "invalid"
    assert "no amendment accepts it: unequal_steps: 40 and 80 steps" in found.reason
    assert (found.low, found.brier) == (None, None)
    told = verdict(LOW, HIGH, threats=["hardware: two kinds"])
    assert (told.verdict, told.violations) == ("supported", ("hardware: two kinds",))


def test_a_changed_lock_is_invalid_whatever_the_numbers() -> None:
    found = invalid(staked(design()), "h1", "The lock was edited by hand.", data=data(LOW, HIGH))
    assert (found.verdict, found.reason, found.n_control) == ("invalid", "The lock was edited by hand.", 5)
    assert (found.low, found.p, found.brier) == (None, None, None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hypothesis": "h9"}, "no hypothesis 'h9'"),
        ({"look": 2}, "the look must lie between 1 and 1; found 2"),
        ({"data": {CONTROL: arm("c", LOW), FIRST: arm("c", HIGH)}}, "belongs to one arm"),
        ({"data": {CONTROL: arm("c", [float("nan"), 1.0])}}, "must be finite"),
    ],
)
def test_inputs_no_verdict_can_rest_on_are_refused(wrong: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"hypothesis": "h1", "data": data(LOW, HIGH), "look": 1} | wrong
    with pytest.raises(ValueError, match=said):
        judge(staked(design()), **given)


# several looks and several claims


def test_a_look_uses_its_own_level_and_is_final_only_when_it_decides_or_is_the_last() -> None:
    looks = spend((3, 5))
    chosen = design(looks=looks)
    weak = [0.5, 0.55, 0.52]
    first = judge(staked(chosen), "h1", data([0.5, 0.52, 0.51], weak), look=1)
    assert (first.verdict, first.final, first.look) == ("inconclusive", False, 1)
    assert first.level == pytest.approx(1 - looks[0].alpha)
    assert "look 1 of 2" in first.reason
    assert judge(staked(chosen), "h1", data([0.5, 0.52, 0.51], weak), look=2).final is True
    assert judge(staked(chosen), "h1", data([0.50, 0.52, 0.51], [0.9, 0.92, 0.91]), look=1).final is True


def test_arms_of_one_variable_are_corrected_by_dunnetts_test() -> None:
    chosen = design(8, 16, multiplicity="dunnett_bh")
    values = data(LOW, HIGH, **{SECOND: [0.52, 0.55, 0.54, 0.50, 0.56]})
    found = judge(staked(chosen), "h2", values, look=1)
    assert found.p is not None
    assert found.p_adjusted == pytest.approx(adjusted_p(_t(found), found.df or 0, 5, [5, 5]))
    assert found.p < found.p_adjusted
    assert found.level == 0.95
    assert "corrected for 2 arms" in found.reason


def _t(found: Verdict) -> float:
    assert found.estimate is not None
    assert found.sd_pooled is not None
    return found.estimate / (found.sd_pooled * (2 / 5) ** 0.5)


def test_variables_share_alpha_by_how_many_of_them_are_found() -> None:
    chosen = mixed()
    flat = [0.51, 0.50, 0.53, 0.49, 0.52]
    one = data(LOW, HIGH, **{SECOND: flat, "learning_rate=0.01": flat})
    both = data(LOW, HIGH, **{SECOND: flat, "learning_rate=0.01": HIGH})
    assert judge(staked(chosen), "h1", one, look=1).level == pytest.approx(0.975)
    assert judge(staked(chosen), "h3", both, look=1).level == pytest.approx(0.95)
    assert judge(staked(chosen), "h3", one, look=1).p_adjusted is None
    assert "shared among 2 variables" in judge(staked(chosen), "h3", one, look=1).reason


@given(st.lists(st.integers(0, 60), min_size=20, max_size=20))
@settings(deadline=None, max_examples=40)
def test_in_a_study_of_several_claims_a_claim_is_made_exactly_when_its_corrected_p_allows_it(
    numbers: list[int],
) -> None:
    values = [0.4 + n / 256 for n in numbers]
    arms = {name: arm(name, values[n * 5 : n * 5 + 5]) for n, name in enumerate(a.name for a in mixed().arms)}
    for name in ("h1", "h2", "h3"):
        found = judge(staked(mixed()), name, arms, look=1)
        if found.p is None:
            continue
        p = found.p if found.p_adjusted is None else found.p_adjusted
        assert found.low is not None
        assert found.high is not None
        if abs(p - (1 - found.level)) > 1e-7:
            assert (found.low > 0 or found.high < 0) == (p < 1 - found.level)


def test_a_claim_decided_earlier_keeps_its_p_among_the_families() -> None:
    chosen = mixed(looks=spend((3, 5)))
    flat = [0.51, 0.50, 0.53, 0.49, 0.52]
    values = data(LOW, flat, **{SECOND: flat, "learning_rate=0.01": flat[:3]})
    early = judge(staked(chosen), "h3", data(LOW[:3], flat[:3], **{"learning_rate=0.01": [0.9, 0.92, 0.91]}), look=1)
    assert early.verdict == "supported"
    alone = judge(staked(chosen), "h1", values, look=2)
    after = judge(staked(chosen), "h1", values, look=2, earlier={"h3": early})
    assert alone.level == after.level  # one family found, as with none
    near = data(LOW, [x + 0.031 for x in LOW], **{SECOND: flat, "learning_rate=0.01": flat[:3]})
    assert (
        judge(staked(chosen), "h1", near, look=2, earlier={"h3": early}).level
        < judge(staked(chosen), "h1", near, look=2).level
    )


def test_a_replication_is_one_test_at_alpha_without_bank_or_sharing() -> None:
    chosen = mixed(looks=spend((3, 5)), replication=Replication(environment="other", seeds=(1, 2, 3, 4, 5)))
    found = judge(staked(chosen), "h1", data(LOW, HIGH), look=1, phase="replicate")
    assert (found.phase, found.level, found.df, found.final) == ("replicate", 0.95, 8, True)
    assert found.p_adjusted is None
    assert "look" not in found.reason


def test_a_claim_that_cannot_be_made_counts_as_one_that_shows_nothing() -> None:
    flat = [0.51, 0.50, 0.53, 0.49, 0.52]
    values = data(LOW, HIGH, **{SECOND: flat, "learning_rate=0.01": [x + 0.4 for x in LOW]})
    chosen = mixed(looks=spend((3, 5)))
    found = judge(staked(chosen), "h1", values, look=2)
    barred = judge(staked(chosen), "h1", values, look=2, barred=("h3",))
    assert 1 - found.level == pytest.approx(2 * (1 - barred.level))
    assert barred.inputs_sha256 != found.inputs_sha256
    settled = judge(staked(chosen), "h3", values, look=1, exploratory=True)
    assert settled.verdict == "supported"
    assert judge(staked(chosen), "h1", values, look=2, earlier={"h3": settled}).level == barred.level


# what it follows from


@given(st.randoms(use_true_random=False))
def test_the_order_of_runs_and_arms_is_of_no_account(rng: random.Random) -> None:
    arms = list(data(LOW, HIGH, **{SECOND: [0.5, 0.55]}).items())
    rng.shuffle(arms)
    shuffled = {}
    for name, found in arms:
        items = list(found.values.items())
        rng.shuffle(items)
        shuffled[name] = replace(found, values=dict(items))
    chosen = design(8, 16, multiplicity="dunnett_bh")
    straight = data(LOW, HIGH, **{SECOND: [0.5, 0.55]})
    assert judge(staked(chosen), "h1", shuffled, look=1) == judge(staked(chosen), "h1", straight, look=1)


def test_the_hash_changes_with_every_input_and_with_nothing_else() -> None:
    base = data(LOW, HIGH)
    early = judge(staked(design()), "h1", base, look=1)
    looks = (Look(seeds=3, alpha=0.01), Look(seeds=5, alpha=0.045))
    cases: list[tuple[Design, dict[str, ArmData], dict[str, Any]]] = [
        (design(), base, {}),
        (design(), data(LOW, [*HIGH[:4], 0.6301]), {}),
        (design(), {**base, FIRST: arm("t", HIGH, excluded={"x": "lost"})}, {}),
        (design(), {**base, FIRST: arm("t", HIGH, worst={"x": "NAN"})}, {}),
        (design(alpha=0.01), base, {}),
        (design(test="paired"), base, {}),
        (design(noise=BANK.model_copy(update={"sd": 0.03})), base, {}),
        (design(equivalence_margin=0.001), base, {}),
        (design(most_excluded=0.5), base, {}),
        (design(looks=looks), base, {}),
        (design(looks=looks), base, {"look": 2}),
        (design(), base, {"violations": ["a: b"]}),
        (design(), base, {"violations": ["c: b"]}),
        (design(), base, {"accepted": ["a"]}),
        (design(), base, {"exploratory": True}),
        (design(), base, {"earlier": {"h1": early}}),
    ]
    hashes = [
        judge(staked(chosen), "h1", values, **({"look": 1} | options)).inputs_sha256
        for chosen, values, options in cases
    ]
    assert len(set(hashes)) == len(cases)
    repriced = design(question="Another wording of the question?")
    assert judge(staked(repriced), "h1", base, look=1).inputs_sha256 == hashes[0]
    assert judge(staked(design()), "h1", base, look=1, threats=["a: b"]).inputs_sha256 == hashes[0]


def test_the_bank_counts_in_the_verdict_as_it_counts_in_the_comparison() -> None:
    arms = data(LOW, HIGH, **{SECOND: [0.52, 0.55, 0.54, 0.50, 0.56]})
    found = judge(staked(design(8, 16)), "h1", arms, look=1)
    runs = [arms[name].runs(0.0) for name in (CONTROL, FIRST, SECOND)]
    direct = compare("pooled", runs[0], runs[1], others=[runs[2].numbers], noise=BANK)
    assert direct is not None
    assert (found.p, found.df, found.sd_pooled) == (pytest.approx(direct.p), direct.df, direct.sd)
