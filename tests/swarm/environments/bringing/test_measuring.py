"""Memory that grows with each play is told from a cache that fills."""

from __future__ import annotations

import pytest

from swarm.environments.bringing.measuring import LEAK_BYTES, leak, require_declared
from swarm.environments.playing.rewards import RewardFailed

MIB = 1 << 20


def test_growth_by_each_play_is_a_leak_of_so_much() -> None:
    assert leak([100 * MIB + play * 2 * MIB for play in range(60)]) == pytest.approx(2 * MIB)


@pytest.mark.parametrize(
    "peaks",
    [
        [100 * MIB] * 60,
        [min(100 + 10 * play, 200) * MIB for play in range(60)],
        [100 * MIB + (play > 50) * 500 * MIB for play in range(60)],
        [100 * MIB + play * LEAK_BYTES // 2 for play in range(60)],
        [play * 100 * MIB for play in range(20)],
    ],
    ids=["at rest", "a cache that fills", "one large play", "crumbs", "too few plays to say"],
)
def test_what_comes_to_rest_is_none(peaks: list[int]) -> None:
    assert leak(peaks) == 0


@pytest.mark.parametrize(
    ("said", "fault"),
    [({}, "'calls' of every play, found none"), ({"calls": 5.0}, "declared range, 4 to 0, found 5; widen the range")],
)
def test_a_declared_fact_that_a_play_lacks_or_has_beyond_its_range_is_a_fault(
    said: dict[str, float], fault: str
) -> None:
    with pytest.raises(RewardFailed, match=fault):
        require_declared({"calls": (4.0, 0.0)}, said)
    require_declared({"calls": (4.0, 0.0)}, {"calls": 4.0, "more": 9.0})
