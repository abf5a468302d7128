"""Tests of samplers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.design.samplers import Ladders, Surface

LADDERS = Ladders((5, 4, 2), (True, True, True))
GRID = list(product(range(5), range(4), range(2)))


def truth(top: tuple[int, int], switch: float, point: tuple[int, ...]) -> float:
    return -0.05 * (point[0] - top[0]) ** 2 - 0.05 * (point[1] - top[1]) ** 2 + switch * point[2]


def lost(top: tuple[int, int], switch: float, seed: int) -> float:
    random = np.random.default_rng(seed)
    seen = [GRID[at] for at in random.permutation(len(GRID))[:20]]
    surface = Surface(LADDERS, seen, [0] * 20, [truth(top, switch, point) for point in seen])
    found = GRID[int(np.argmax(surface.predict(GRID, 0).mean))]
    return truth(top, switch, (*top, int(switch > 0))) - truth(top, switch, found)


def test_a_planted_optimum_is_recovered_from_half_the_grid() -> None:
    planted = [*product(product(range(5), range(4)), (-0.1, 0.1), range(3))]
    losses = np.array([lost(*one) for one in planted])
    assert (losses <= 0.051).mean() >= 0.95, "next to it, but for an unlucky half"


def test_pairs_that_turn_each_other_around_are_seen() -> None:
    def crossed(point: tuple[int, ...]) -> float:
        return 0.1 * (point[0] - 2) * (point[1] - 1.5)

    random = np.random.default_rng(0)
    seen = [GRID[at] for at in random.permutation(len(GRID))[:24]]
    surface = Surface(LADDERS, seen, [0] * 24, [crossed(point) for point in seen])
    believed = surface.predict(GRID, 0).mean
    assert np.corrcoef(believed, [crossed(point) for point in GRID])[0, 1] > 0.95


def test_noise_alone_gives_a_flat_surface() -> None:
    random = np.random.default_rng(1)
    seen = [GRID[at] for at in random.permutation(len(GRID))[:24]]
    noise = random.normal(0.5, 0.05, 24)
    surface = Surface(LADDERS, seen, [0] * 24, noise.tolist())
    believed = surface.to_scores(surface.predict(GRID, 0).mean, 0)
    assert believed.std() < 0.5 * noise.std()
    assert believed.max() < noise.max()


def test_more_is_believed_where_more_was_seen() -> None:
    seen = [point for point in GRID if point[0] <= 1]
    surface = Surface(LADDERS, seen, [0] * len(seen), [0.1 * point[1] for point in seen])
    belief = surface.predict([(0, 1, 0), (4, 1, 0)], 0)
    assert belief.sd[1] > belief.sd[0]


def test_one_collapsed_run_does_not_bend_what_is_around_it() -> None:
    seen = [point for point in GRID if point != (4, 3, 1)]
    scores = [0.5 + 0.02 * point[0] for point in seen]
    scores[seen.index((4, 2, 1))] = 0.0
    believed = dict(zip(GRID, Surface(LADDERS, seen, [0] * len(seen), scores).predict(GRID, 0).mean, strict=True))
    assert believed[4, 3, 1] > believed[0, 3, 1]


def test_a_longer_rung_is_told_something_by_a_shorter_one() -> None:
    short = [0.1 * point[0] for point in GRID]
    seen, rungs = [*GRID, (0, 0, 0), (2, 0, 0)], [0] * len(GRID) + [1, 1]
    surface = Surface(LADDERS, seen, rungs, [*short, 0.3, 0.52])
    low, high = surface.to_scores(surface.predict([(1, 2, 1), (4, 2, 1)], 1).mean, 1)
    assert high > low
    assert low > 0.2  # on the longer rung's level, though it was never run there


@given(st.integers(0, 2**32 - 1))
def test_the_metrics_scale_and_a_cliff_in_it_change_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    seen = [GRID[at] for at in random.permutation(len(GRID))[:16]]
    scores = random.normal(size=16)
    cliff = np.where(scores < 0, 100 * scores, scores)
    plain, steep = (Surface(LADDERS, seen, [0] * 16, told.tolist()).predict(GRID, 0) for told in (scores, cliff))
    assert plain.mean == pytest.approx(steep.mean)
    assert plain.sd == pytest.approx(steep.sd)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.lists(st.floats(-4, 4), min_size=2, max_size=8))
def test_beliefs_on_the_metrics_scale_keep_their_order(scores: list[float], normal: list[float]) -> None:
    surface = Surface(LADDERS, GRID[: len(scores)], [0] * len(scores), scores)
    found = surface.to_scores(np.sort(np.array(normal)), 0)
    assert (np.diff(found) >= -1e-12).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_equal_scores_are_believed_everywhere(count: int) -> None:
    surface = Surface(LADDERS, GRID[:count], [0] * count, [0.4] * count)
    assert surface.to_scores(surface.predict(GRID, 0).mean, 0) == pytest.approx(0.4)


def test_words_have_no_order() -> None:
    ladders = Ladders((3, 2), (False, True))
    seen = [(0, 0), (0, 1), (2, 0), (2, 1)]
    believed = Surface(ladders, seen, [0] * 4, [0.9, 0.9, 0.1, 0.1]).predict([(0, 0), (1, 0), (2, 0)], 0)
    assert believed.mean[0] > believed.mean[1] > believed.mean[2]
    assert believed.sd[1] > believed.sd[0]


def test_without_a_score_nothing_is_believed_about_any_point_rather_than_another() -> None:
    belief = Surface(LADDERS, [], [], []).predict(GRID, 0)
    assert np.ptp(belief.mean) == 0
    assert belief.sd == pytest.approx(belief.sd[0])
