"""The shipped procedure judged by simulated studies with a planted truth; `benchmarks/verdicts.py` is its full size."""

from __future__ import annotations

import random

import pytest

from studies.inquiry.ledger import stake_of_one_round as staked
from studies.records.design_parts import CollapseRule
from studies.records.verdict import Verdict
from studies.statistics.looks import spend
from studies.verdicts.verdict import ArmData, judge
from tests.lazily import lazy
from tests.studies.synthetic import design, hypothesis

stats = lazy("scipy.stats")
LOOKS = spend((5, 7, 10))
STUDIES = 500


def study(rng: random.Random, effect: float) -> Verdict:
    """Judge one study as the loop does: look by look, until its claim is decided."""
    locked = design((hypothesis("h1", 8),), seeds=10, test="welch", looks=LOOKS, collapse=CollapseRule())
    runs = {
        arm.name: [rng.gauss(mean, 1) for _ in range(10)] for arm, mean in zip(locked.arms, (0, effect), strict=True)
    }
    for number, look in enumerate(LOOKS, start=1):
        data = {
            name: ArmData(
                {f"{name}-{n}": value for n, value in enumerate(values[: look.seeds])},
                {f"{name}-{n}": n for n in range(look.seeds)},
            )
            for name, values in runs.items()
        }
        found = judge(staked(locked), "h1", data, look=number)
        if found.final:
            return found
    raise AssertionError("the last look is final")


@pytest.fixture(scope="module")
def null() -> list[Verdict]:
    rng = random.Random(7)
    return [study(rng, 0.0) for _ in range(STUDIES)]


def test_false_claims_are_no_more_than_alpha_allows(null: list[Verdict]) -> None:
    """At a true rate of 5 % more claims than this come up once in a thousand times."""
    claims = sum(verdict.verdict in ("supported", "refuted") for verdict in null)
    assert claims <= stats.binom.ppf(0.999, STUDIES, 0.05)
    assert claims >= stats.binom.ppf(0.001, STUDIES, 0.03)


def test_repeated_intervals_hold_the_truth_as_often_as_they_say(null: list[Verdict]) -> None:
    held = sum(v.low is not None and v.high is not None and v.low <= 0 <= v.high for v in null)
    assert stats.binom.ppf(0.001, STUDIES, 0.93) <= held <= stats.binom.ppf(0.999, STUDIES, 0.97)


def test_an_effect_of_two_standard_deviations_is_found_early_and_never_called_the_opposite() -> None:
    rng = random.Random(8)
    found = [study(rng, 2.0) for _ in range(120)]
    assert sum(verdict.verdict == "supported" for verdict in found) >= 110
    assert not any(verdict.verdict == "refuted" for verdict in found)
    assert sum(verdict.n_treatment for verdict in found) / len(found) < 8.5
