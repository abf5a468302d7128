from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.statistics.looks import crossings, spend, spent
from tests.lazily import lazy

stats = lazy("scipy.stats")
SCHEDULES = st.lists(st.integers(2, 40), min_size=1, max_size=4, unique=True).map(sorted)


def bounds(seeds: list[int], alpha: float = 0.05, **options: str) -> list[float]:
    return [float(stats.norm.isf(look.alpha / 2)) for look in spend(seeds, alpha, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("looks", "published"),
    [
        (2, [2.963, 1.969]),
        (3, [3.710, 2.511, 1.993]),
        (4, [4.333, 2.963, 2.359, 2.014]),
        (5, [4.877, 3.357, 2.680, 2.290, 2.031]),
    ],
)
def test_obrien_fleming_type_bounds_of_equal_looks_are_the_published_ones(looks: int, published: list[float]) -> None:
    """Reboussin, DeMets, Kim & Lan 2000 (Controlled Clinical Trials 21), two-sided 0.05."""
    assert bounds([100 * (look + 1) for look in range(looks)]) == pytest.approx(published, abs=6e-4)


def test_pocock_type_bounds_of_five_equal_looks_are_the_published_ones() -> None:
    """Reboussin, DeMets, Kim & Lan 2000, two-sided 0.05."""
    found = bounds([100, 200, 300, 400, 500], by="pocock")
    assert found == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=6e-4)


@given(SCHEDULES, st.sampled_from([0.01, 0.05, 0.2]), st.sampled_from(["obrien_fleming", "pocock"]))
@settings(max_examples=25, deadline=None)
def test_all_looks_together_spend_alpha(seeds: list[int], alpha: float, by: str) -> None:
    shares = [n / seeds[-1] for n in seeds]
    found = crossings(bounds(seeds, alpha, by=by), shares)
    assert sum(sum(look) for look in found) == pytest.approx(alpha, rel=1e-5)
    so_far = 0.0
    for look, share in zip(found, shares, strict=True):
        so_far += sum(look)
        assert so_far == pytest.approx(spent(share, alpha, by), rel=1e-4, abs=1e-9)  # type: ignore[arg-type]
        assert look.above == pytest.approx(look.below)


@pytest.mark.parametrize("seeds", [[3, 6, 9], [2, 4, 6, 8, 10], [3, 6, 10], [3, 5]])
def test_earlier_looks_need_stronger_evidence(seeds: list[int]) -> None:
    levels = [look.alpha for look in spend(seeds)]
    assert levels == sorted(levels)
    assert all(0 < level <= 0.05 for level in levels)


def test_one_look_has_all_of_alpha() -> None:
    (look,) = spend([5], 0.05)
    assert (look.seeds, look.alpha) == (5, pytest.approx(0.05, rel=1e-9))


def test_a_share_of_every_look_spends_hardly_more_than_that_share_of_alpha() -> None:
    """What several claims rely on, which divide each look's level."""
    shares = [0.3, 0.6, 1.0]
    levels = [look.alpha for look in spend([3, 6, 10])]
    for part in (0.5, 0.25, 0.1):
        found = crossings([float(stats.norm.isf(part * level / 2)) for level in levels], shares)
        assert part * 0.05 <= sum(sum(look) for look in found) <= 1.035 * part * 0.05


def test_a_drift_is_found_on_its_side_with_the_power_of_a_normal_test() -> None:
    (only,) = crossings([1.96], [1.0], drift=2.8)
    assert only.above == pytest.approx(stats.norm.sf(1.96 - 2.8))
    assert only.below == pytest.approx(stats.norm.cdf(-1.96 - 2.8))


@pytest.mark.parametrize("seeds", [[], [3, 3], [6, 3], [1, 5]])
def test_looks_that_do_not_grow_are_refused(seeds: list[int]) -> None:
    with pytest.raises(ValueError, match="looks must grow"):
        spend(seeds)
