from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.records.alpha import allocate_single_round as staked
from studies.records.design import Design
from studies.records.procedure import CollapseRule
from studies.records.verdict import Verdict
from studies.statistics.sequential import spend_alpha
from studies.verdicts.inputs import ArmData
from studies.verdicts.rules import LEAST_KEPT, judge
from tests.golden import assert_golden
from tests.lazily import lazy
from tests.studies import synthetic
from tests.studies.synthetic import design, hypothesis, runs_of, studies

CONTROL, TREATMENT = "group_size=4", "group_size=8"
LOW, HIGH = [0.50, 0.52, 0.51, 0.49, 0.53], [0.61, 0.64, 0.60, 0.66, 0.63]
SHARES = st.lists(st.integers(0, 512).map(lambda n: n / 512), min_size=0, max_size=7)


@cache
def locked(margin: float | None = None, drop: float | None = None, **changes: Any) -> Design:
    given: dict[str, Any] = {
        "test": "welch", "collapse": CollapseRule(drop=drop), "shared_seeds": False, "equivalence_margin": margin,
        "counted_as_worst": ("NAN",), "exclusions": ("lost",),
    }  # fmt: skip
    return design((hypothesis("h1", 8),), **(given | changes))


def arm(name: str, values: list[float], collapsed: list[float] | None = None, broken: int = 0) -> ArmData:
    runs = [*values, *(collapsed or [])]
    fell = {f"{name}-{n}": "it fell" for n in range(len(values), len(runs))}
    return runs_of(runs, name, worst={f"{name}-w{n}": "NAN" for n in range(broken)}, collapsed=fell)


def judged(control: ArmData, treatment: ArmData, chosen: Design | None = None) -> Verdict:
    return judge(staked(chosen or locked()), "h1", {CONTROL: control, TREATMENT: treatment}, look=1)


def test_a_collapsed_run_is_no_part_of_the_mean_and_is_counted() -> None:
    clean = judged(arm("c", LOW), arm("t", HIGH))
    found = judged(arm("c", LOW), arm("t", HIGH, [0.1], broken=1))
    assert (found.estimate, found.low, found.high, found.p) == (clean.estimate, clean.low, clean.high, clean.p)
    assert (found.verdict, found.scope, found.n_treatment) == ("supported", "not_collapsed", 5)
    assert [(rate.arm, rate.count, rate.of) for rate in found.collapses] == [(CONTROL, 0, 5), (TREATMENT, 2, 7)]
    assert_golden(found.reason)
    assert found.inputs_sha256 != clean.inputs_sha256


NEAR = [0.51, 0.50, 0.52, 0.50, 0.53]
FAR = ([0.01, 0.02, 0.0, 0.01, 0.02], [0.9, 0.91, 0.92, 0.9, 0.93])
SCOPES: dict[str, tuple[list[float], ArmData, Design, tuple[str, str]]] = {
    "no open rate could undo it": (LOW, arm("t", HIGH), locked(drop=0.05), ("supported", "all")),
    "an open rate could": (LOW, arm("t", HIGH), locked(drop=0.4), ("supported", "not_collapsed")),
    "runs that fell less": (LOW, arm("t", HIGH, [0.58]), locked(drop=0.05), ("supported", "all")),
    "runs that contradict the drop": (LOW, arm("t", HIGH, [0.0]), locked(drop=0.05), ("supported", "not_collapsed")),
    "a broken run": (LOW, arm("t", HIGH, broken=1), locked(drop=0.05), ("supported", "not_collapsed")),
    "no known drop": (LOW, arm("t", HIGH), locked(), ("supported", "not_collapsed")),
    "all that is lost leaves it ahead": (FAR[0], arm("t", FAR[1]), locked(), ("supported", "all")),
    "none collapsed, none could matter": (LOW, arm("t", NEAR), locked(0.1, drop=0.1), ("equivalent", "all")),
    "a costly one could": (LOW, arm("t", NEAR), locked(0.1, drop=0.4), ("equivalent", "not_collapsed")),
    "one collapsed": (LOW, arm("t", NEAR, [0.45]), locked(0.3, drop=0.01), ("equivalent", "not_collapsed")),
}  # fmt: skip


@pytest.mark.parametrize("name", SCOPES)
def test_a_claim_speaks_of_all_trainings_only_where_no_collapse_could_undo_it(name: str) -> None:
    control, treatment, chosen, expected = SCOPES[name]
    found = judged(arm("c", control), treatment, chosen)
    assert (found.verdict, found.scope) == expected
    assert_golden(found.reason)


def test_a_small_difference_that_is_not_zero_is_told_as_both() -> None:
    found = judged(arm("c", LOW), arm("t", [value + 0.05 for value in LOW]), locked(0.1))
    assert (found.verdict, found.nonzero) == ("equivalent", True)
    assert "not zero" in found.reason


def test_of_pairs_the_arm_that_is_ahead_is_the_one_that_the_pairs_say() -> None:
    seeds = {f"{name}-{n}": n for name in "ct" for n in range(6)}
    control = ArmData({"c-0": 0.95, **{f"c-{n}": 0.30 + n / 100 for n in range(1, 6)}}, seeds)
    values = {f"t-{n}": 0.33 + n / 100 + n % 2 / 1000 for n in range(6)}
    treatment = ArmData(values, seeds, collapsed={"t-0": "it fell"})
    found = judged(control, treatment, locked(drop=0.06, test="paired", shared_seeds=True))
    assert (found.verdict, found.mean_control > found.mean_treatment) == ("supported", True)
    assert [rate.count for rate in found.collapses] == [0, 1]
    assert found.scope == "not_collapsed", "the treatment is ahead, and may collapse in 58 %"


def test_a_run_that_collapsed_is_one_that_was_measured() -> None:
    stray = ArmData({}, {"t-0": 0}, worst={"t-0": "NAN"}, collapsed={"t-0": "it fell"})
    with pytest.raises(ValueError, match="without a value"):
        judged(arm("c", LOW), stray)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_fewer_than_three_that_did_not_collapse_say_nothing_about_a_mean(kept: int) -> None:
    found = judged(arm("c", LOW), arm("t", HIGH[:kept], [0.1] * (5 - kept)), locked(0.5))
    assert (found.verdict, found.estimate is None, found.low, found.p) == ("inconclusive", kept == 0, None, None)
    assert f"found 5 of 5 and {kept} of 5" in found.reason
    assert found.collapses[1].count == 5 - kept


@given(SHARES, SHARES, SHARES, SHARES)
def test_values_of_collapsed_runs_change_nothing_but_their_count(
    a: list[float], b: list[float], fallen: list[float], other: list[float]
) -> None:
    size = min(len(fallen), len(other))
    one, two = (judged(arm("c", a), arm("t", b, each[:size]), locked(0.1)) for each in (fallen, other))
    told = ("verdict", "scope", "estimate", "low", "high", "p", "collapses", "reason")
    assert [getattr(one, name) for name in told] == [getattr(two, name) for name in told]
    if min(len(a), len(b)) < LEAST_KEPT:
        assert one.verdict in ("inconclusive", "invalid")


def test_a_verdict_of_before_reads_as_one_on_all_trainings() -> None:
    arms = {CONTROL: arm("c", LOW), TREATMENT: arm("t", HIGH)}
    old = judge(staked(design((hypothesis("h1", 8),), test="pooled")), "h1", arms, look=1)
    assert (old.scope, old.collapses) == ("all", ())
    assert "scope" not in old.model_dump()


def test_pairs_that_collapses_leave_are_three_at_the_least() -> None:
    control = runs_of([0.1, 0.50, 0.52, 0.51], "c", collapsed={"c-0": "it fell"})
    treatment = runs_of([0.61, 0.64, 0.66, 0.1], "t", collapsed={"t-3": "it fell"})
    found = judged(control, treatment, locked(test="paired", shared_seeds=True))
    assert (found.verdict, found.low) == ("inconclusive", None)


stats = lazy("scipy.stats")
LOOKS = spend_alpha((5, 7, 10))


def study(rng: random.Random, effect: float) -> Verdict:
    locked = design((hypothesis("h1", 8),), seeds=10, test="welch", looks=LOOKS, collapse=CollapseRule())
    runs = {a.name: [rng.gauss(mean, 1) for _ in range(10)] for a, mean in zip(locked.arms, (0, effect), strict=True)}
    for number, look in enumerate(LOOKS, start=1):
        data = {name: runs_of(values[: look.seeds], name) for name, values in runs.items()}
        found = judge(staked(locked), "h1", data, look=number)
        if found.final:
            return found
    raise AssertionError("the last look is final")


@studies(50, 500)
def test_false_claims_are_no_more_than_alpha_allows_and_intervals_hold_the_truth_as_often_as_they_say(
    studies: int,
) -> None:
    """At a true rate of 5 % more claims than this come up once in a thousand times."""
    rng = random.Random(7)
    null = [study(rng, 0.0) for _ in range(studies)]
    claims = sum(verdict.verdict in ("supported", "refuted") for verdict in null)
    assert stats.binom.ppf(0.001, studies, 0.03) <= claims <= stats.binom.ppf(0.999, studies, 0.05)
    held = sum(v.low is not None and v.high is not None and v.low <= 0 <= v.high for v in null)
    assert stats.binom.ppf(0.001, studies, 0.93) <= held <= stats.binom.ppf(0.999, studies, 0.97)


@studies(15, 120)
def test_an_effect_of_two_standard_deviations_is_found_early_and_never_called_the_opposite(studies: int) -> None:
    rng = random.Random(8)
    found = [study(rng, 2.0) for _ in range(studies)]
    names = Counter(verdict.verdict for verdict in found)
    assert names["supported"] >= 110 / 120 * studies
    assert names["refuted"] == 0
    assert sum(verdict.n_treatment for verdict in found) / len(found) < 8.5


@pytest.mark.full
def test_of_one_look_at_unequal_spreads_5_per_cent_find_a_difference_half_of_them_either_way() -> None:
    rng = random.Random(20)
    arms = ({"c": 0.02, "t": 0.05} for _ in range(1500))
    drawn = ([{f"{name}{n}": rng.gauss(0.5, sd) for n in range(5)} for name, sd in arm.items()] for arm in arms)
    names = Counter(synthetic.judged(hypothesis(), *sides).verdict for sides in drawn)
    assert 0.033 < 1 - names["inconclusive"] / 1500 < 0.067  # 5 % plus or minus three standard errors
    assert 0.010 < names["supported"] / 1500 < 0.040
