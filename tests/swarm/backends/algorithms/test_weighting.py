"""What a token weighs: shares of a minibatch, by episode, by token or by a constant."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.algorithms.weighting import token_weights
from swarm.job import Job

_EPISODE, _TOKEN = Job(), Job(loss_weighting="token")
_CONSTANT = Job(algorithm="dr_grpo", max_context=100, loss_weighting="token")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_an_episode_weighs_one_however_many_tokens_it_has(counts: list[int]) -> None:
    weights = token_weights(_EPISODE, counts, [1.0] * len(counts))
    for count, weight in zip(counts, weights, strict=True):
        assert count * weight == pytest.approx(1 / len(counts) if count else 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.just(0.0) | st.floats(1e-3, 1e6)), min_size=1, max_size=20),
    st.sampled_from([_EPISODE, _TOKEN, _CONSTANT]),
    st.floats(1e-3, 1e3),
)
def test_weights_are_shares_and_nothing_else(episodes: list[tuple[int, float]], job: Job, unit: float) -> None:
    counts, weights = [count for count, _ in episodes], [weight for _, weight in episodes]
    found = token_weights(job, counts, weights)
    assert all(value == 0 for value, weight in zip(found, weights, strict=True) if not weight)
    assert token_weights(job, counts, [unit * weight for weight in weights]) == pytest.approx(found)
    assert token_weights(job, [*counts, 7], [*weights, 0.0])[:-1] == found
    heavy = [(count, weight, value) for (count, weight), value in zip(episodes, found, strict=True) if count and weight]
    for (count, weight, value), (other_count, other_weight, other) in pairwise(heavy):
        scale = count / other_count if job is _EPISODE else 1
        assert value * scale / weight == pytest.approx(other / other_weight)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_by_token_every_sampled_token_weighs_the_same(counts: list[int]) -> None:
    assert token_weights(_TOKEN, counts, [1.0] * len(counts)) == pytest.approx([1 / sum(counts)] * len(counts))


def test_by_dr_grpo_a_token_weighs_the_same_in_any_batch_of_as_many_episodes() -> None:
    assert token_weights(_CONSTANT, [3, 30, 0], [1.0, 1.0, 1.0]) == pytest.approx([1 / 300, 1 / 300, 0.0])
    assert token_weights(_CONSTANT, [5, 5], [1.0, 3.0]) == pytest.approx([1 / 400, 3 / 400])


@pytest.mark.parametrize("job", [_EPISODE, _TOKEN, _CONSTANT])
def test_a_minibatch_of_nothing_has_weights_of_0(job: Job) -> None:
    assert token_weights(job, [4, 0], [0.0, 1.0]) == [0.0, 0.0]
    assert token_weights(job, [], []) == []
