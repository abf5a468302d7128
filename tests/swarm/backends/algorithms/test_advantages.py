"""Advantages against computations by hand, and what holds for all of them."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.algorithms.advantages import advantages, constant_groups, group_relative, leave_one_out, whitened
from swarm.job import Job

ALGORITHMS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gspo")
_REWARDS, _GROUPS = [1.0, 0.0, 0.0, 4.0, 2.0], ["a", "a", "a", "b", "b"]
_EPISODES = st.lists(
    st.tuples(st.integers(-5, 5).map(float), st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=12
)


def _by(algorithm: str, episodes: list[tuple[float, str, int]], **fields: Any) -> list[float]:
    rewards, groups, tokens = zip(*episodes, strict=True)
    return advantages(Job(algorithm=algorithm, **fields), rewards, groups, tokens)


def test_advantages_are_rewards_less_the_group_s_mean_over_its_deviation() -> None:
    plain = group_relative(_REWARDS, _GROUPS, normalize=False)
    assert plain == pytest.approx([2 / 3, -1 / 3, -1 / 3, 1.0, -1.0])
    a, b = math.sqrt(1 / 3), math.sqrt(2)
    scaled = group_relative(_REWARDS, _GROUPS, normalize=True)
    expected = [2 / 3 / (a + 1e-6), -1 / 3 / (a + 1e-6), -1 / 3 / (a + 1e-6), 1 / (b + 1e-6), -1 / (b + 1e-6)]
    assert scaled == pytest.approx(expected)


def test_leaving_one_out_compares_with_the_mean_of_the_others() -> None:
    assert leave_one_out(_REWARDS, _GROUPS) == pytest.approx([1.0, -0.5, -0.5, 2.0, -2.0])


def test_whitening_counts_an_episode_once_for_each_of_its_tokens() -> None:
    found = whitened([1.0, 0.0, 7.0], [3, 1, 0])
    deviation = math.sqrt((3 * 0.25**2 + 0.75**2) / 3 + 1e-8)
    assert found[:2] == pytest.approx([0.25 / deviation, -0.75 / deviation])


def test_an_episode_without_tokens_does_not_make_a_constant_batch_vary() -> None:
    assert whitened([0.1, 0.1, 0.1, 7.0], [3, 1, 2, 0])[:3] == [0.0, 0.0, 0.0]


def test_each_algorithm_has_its_own() -> None:
    tokens, by = [1, 2, 3, 4, 5], {}
    for algorithm in ALGORITHMS:
        by[algorithm] = advantages(Job(algorithm=algorithm), _REWARDS, _GROUPS, tokens)
    centred = group_relative(_REWARDS, _GROUPS, normalize=False)
    assert by["grpo"] == by["gspo"] == group_relative(_REWARDS, _GROUPS, normalize=True)
    assert by["dr_grpo"] == centred
    assert by["rloo"] == leave_one_out(_REWARDS, _GROUPS)
    assert by["reinforce_pp"] == whitened(_REWARDS, tokens)
    assert by["reinforce_pp_baseline"] == whitened(centred, tokens)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_grpo_and_gspo_heed_whether_to_normalise(algorithm: str) -> None:
    episodes = [(1.0, "a", 1), (0.0, "a", 2), (3.0, "b", 3), (0.5, "b", 4)]
    same = _by(algorithm, episodes) == _by(algorithm, episodes, normalize_advantage=False)
    assert same == (algorithm not in {"grpo", "gspo"})


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.sampled_from(["grpo", "dr_grpo", "rloo", "gspo"]))
def test_a_constant_group_and_a_group_of_one_have_exactly_no_advantage(reward: float, size: int, by: str) -> None:
    others = [(0.0, "other", 2), (1.0, "other", 3)]
    found = _by(by, [*others, *[(reward, "g", 4)] * size])
    assert found[2:] == [0.0] * size
    assert found[1] > 0 > found[0]


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.sampled_from(ALGORITHMS))
def test_a_batch_of_equal_rewards_has_exactly_no_advantage(reward: float, size: int, by: str) -> None:
    assert _by(by, [(reward, f"g{i % 2}", 1 + i) for i in range(size)]) == [0.0] * size


def test_the_whole_batch_s_baseline_makes_something_of_a_constant_group() -> None:
    found = _by("reinforce_pp", [(1.0, "a", 1), (1.0, "a", 1), (0.0, "b", 1), (0.0, "b", 1)])
    assert found[0] == found[1] > 0 > found[2] == found[3]


@given(_EPISODES, st.sampled_from(ALGORITHMS), st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(
    episodes: list[tuple[float, str, int]], algorithm: str, rng: random.Random
) -> None:
    order = rng.sample(range(len(episodes)), len(episodes))
    straight, shuffled = _by(algorithm, episodes), _by(algorithm, [episodes[i] for i in order])
    assert shuffled == pytest.approx([straight[i] for i in order], abs=1e-9)


@given(_EPISODES, st.sampled_from(ALGORITHMS), st.floats(-100, 100))
def test_the_same_added_to_all_rewards_changes_nothing(
    episodes: list[tuple[float, str, int]], algorithm: str, shift: float
) -> None:
    moved = [(reward + shift, group, tokens) for reward, group, tokens in episodes]
    assert _by(algorithm, moved) == pytest.approx(_by(algorithm, episodes), abs=1e-6)


def test_constant_groups_are_counted_once_each() -> None:
    assert constant_groups([1.0, 1.0, 0.0, 1.0, 3.0], ["a", "a", "b", "b", "c"]) == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_empty_batch_has_none(algorithm: str) -> None:
    assert advantages(Job(algorithm=algorithm), [], [], []) == []
