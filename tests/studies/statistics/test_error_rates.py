"""The shipped procedure judged by simulated studies with a planted truth; `benchmarks/verdicts.py` is its full size."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from studies.inquiry.ledger import stake_of_one_round as staked
from studies.records.design_parts import CollapseRule
from studies.records.verdict import Verdict
from studies.statistics.looks import spend
from studies.verdicts.verdict import judge
from tests.lazily import lazy
from tests.studies.synthetic import design, hypothesis, judged, runs_of, studies

stats = lazy("scipy.stats")
LOOKS = spend((5, 7, 10))


def study(rng: random.Random, effect: float) -> Verdict:
    """Judge one study as the loop does: look by look, until its claim is decided."""
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
    names = Counter(
        judged(
            hypothesis(),
            {f"c{n}": rng.gauss(0.5, 0.02) for n in range(5)},
            {f"t{n}": rng.gauss(0.5, 0.05) for n in range(5)},
        ).verdict
        for _ in range(1500)
    )
    assert 0.033 < 1 - names["inconclusive"] / 1500 < 0.067  # 5 % plus or minus three standard errors
    assert 0.010 < names["supported"] / 1500 < 0.040
