"""The shipped loop is seldom wrong on simulated studies whose truth was planted, as far as a small sample can tell."""

from __future__ import annotations

from itertools import accumulate
from math import comb

import pytest
from simlab.noise import NAMES
from simlab.sim_records import FlightRecord, TemptingCase, flown, score
from simlab.suites import baits, faults, null, traps

pytestmark = pytest.mark.slow


def most(of: int, rate: float) -> int:
    """Return the largest count that events of this rate stay within, at 99.9 %."""
    chances = (comb(of, count) * rate**count * (1 - rate) ** (of - count) for count in range(of + 1))
    return next((count for count, within in enumerate(accumulate(chances)) if within >= 0.999), of)


def least(of: int, rate: float) -> int:
    """Return the smallest count that events of this rate reach, at 99.9 %."""
    return of - most(of, 1 - rate)


def accounted(records: list[FlightRecord]) -> bool:
    """Say whether every launched run is there once, and none after its study."""
    return all(one.launched_runs == one.accounted_runs and not one.duplicates + one.orphans for one in records)


def test_nothing_is_seldom_called_something_and_intervals_hold_the_truth() -> None:
    records = [flown(flight) for flight in null.flights(1, first=1, cells=NAMES[::2])]
    judged = [record for record in records if record.claims]
    assert len(judged) >= 0.7 * len(records), [record.refused for record in records]
    assert sum(any(claim.false for claim in one.claims) for one in judged) <= most(len(judged), null.MOST_FALSE)
    covered = [claim.covered for one in judged for claim in one.claims if claim.covered is not None]
    assert sum(covered) >= least(len(covered), 0.93) > 0
    assert accounted(records)


@pytest.mark.parametrize("case", [*baits.CASES, *traps.CASES], ids=lambda case: case.name)
def test_no_confound_passes_for_an_effect_and_nothing_forged_or_demanded_for_a_result(case: TemptingCase) -> None:
    found = score(case, 0)
    assert found.score != "fooled", found
    assert found.score == "detected" or case in baits.CASES or not case.named_by, found


def test_a_killed_controller_changes_nothing_and_whatever_breaks_every_run_is_accounted_for() -> None:
    survived = [faults.survive(kill) for kill in faults.kills(0, every=61)]
    assert survived
    assert all(one.reached and one.same and not one.duplicates and not one.orphans for one in survived), survived
    records = [flown(flight) for flight in faults.broken(8)]
    assert accounted(records)
    assert not any(claim.difference * claim.truth < 0 for record in records for claim in record.claims)
