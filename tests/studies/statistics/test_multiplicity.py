from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.statistics.multiplicity import chosen, effective_level
from tests.lazily import lazy

stats = lazy("scipy.stats")
P = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(P, st.sampled_from([0.01, 0.05, 0.2]))
def test_a_family_is_below_the_effective_level_exactly_when_it_is_chosen(p: list[float], alpha: float) -> None:
    level = effective_level(p, alpha)
    assert sum(value <= level * (1 + 1e-12) for value in p) == chosen(p, alpha)


@given(P, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_chosen_are_benjamini_and_hochbergs(p: list[float], alpha: float) -> None:
    theirs = sum(value <= alpha for value in stats.false_discovery_control(p))
    near = sum(abs(value - alpha) < 1e-12 for value in stats.false_discovery_control(p))
    assert abs(chosen(p, alpha) - theirs) <= near


@given(P)
def test_a_larger_alpha_chooses_no_fewer(p: list[float]) -> None:
    levels = [effective_level(p, alpha) for alpha in (0.001, 0.01, 0.05, 0.2)]
    assert levels == sorted(levels)
    assert 0.05 / len(p) - 1e-12 <= levels[2] <= 0.05 + 1e-12


def test_levels_of_a_known_case() -> None:
    """Benjamini & Hochberg 1995, section 4: fifteen endpoints, of which four are chosen at 0.05."""
    found = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    p = [*found, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    assert chosen(p, 0.05) == 4
    assert effective_level(p, 0.05) == pytest.approx(4 * 0.05 / 15)
    assert effective_level([0.5], 0.05) == 0.05
    assert effective_level([0.5, 0.6], 0.05) == 0.025


def test_no_family_has_no_level() -> None:
    with pytest.raises(ValueError, match="at least one family"):
        effective_level([], 0.05)
