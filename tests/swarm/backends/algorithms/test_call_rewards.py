"""Advantages of calls: by the formula, equal to the episodes' where calls are worth the same, whatever the order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.backends.algorithms.advantages import advantages
from swarm.backends.algorithms.call_rewards import call_advantages, episode_reward
from swarm.backends.protocols import CallReward, TrainEpisode
from swarm.job import Job

ALGORITHMS = ("grpo", "gspo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline")
rewards = st.floats(-100, 100, allow_nan=False)


def made(group: str, *worth: float, agents: Sequence[str] = (), reward: float = 0.0) -> TrainEpisode:
    """An episode whose calls are worth this; without calls, one that is worth `reward`."""
    names = agents or [""] * len(worth)
    return TrainEpisode("e", group, reward, (), 1.0, tuple(map(CallReward, range(len(worth)), worth, names)))


def tokens(episodes: Sequence[TrainEpisode]) -> list[dict[int, int]]:
    return [{each.call: 2 + each.call for each in episode.call_rewards} or {-1: 3} for episode in episodes]


def job(algorithm: str, **fields: object) -> Job:
    return Job.model_validate({"algorithm": algorithm, **fields})


@st.composite
def batches(draw: st.DrawFn) -> list[TrainEpisode]:
    def one() -> TrainEpisode:
        worth = draw(st.lists(rewards, min_size=0, max_size=4))
        agents = [draw(st.sampled_from(["", "a", "b"])) for _ in worth]
        return made(draw(st.sampled_from("gh")), *worth, agents=agents, reward=draw(rewards))

    return [one() for _ in range(draw(st.integers(1, 8)))]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60)
@given(batches())
def test_calls_that_are_worth_the_same_give_the_episode_s_advantage_exactly(
    algorithm: str, batch: list[TrainEpisode]
) -> None:
    same = [replace(e, call_rewards=tuple(replace(each, reward=e.reward) for each in e.call_rewards)) for e in batch]
    counts = tokens(same)
    expected = advantages(
        job(algorithm), [e.reward for e in batch], [e.group for e in batch], [sum(own.values()) for own in counts]
    )
    assert call_advantages(job(algorithm), same, counts) == (expected, {})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60)
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter_and_all_is_finite(
    algorithm: str, batch: list[TrainEpisode], random: object
) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)  # type: ignore[attr-defined]
    whole, calls = call_advantages(job(algorithm), batch, tokens(batch))
    moved = [batch[number] for number in order]
    again, calls_again = call_advantages(job(algorithm), moved, tokens(moved))
    assert all(map(math.isfinite, whole))
    for place, number in enumerate(order):
        assert again[place] == pytest.approx(whole[number], abs=1e-6, rel=1e-6)
        assert calls_again.get(place, {}) == pytest.approx(calls.get(number, {}), abs=1e-6, rel=1e-6)


def test_by_call_each_is_held_against_the_group_in_which_an_episode_counts_once() -> None:
    batch = [made("g", 1.0, 0.0), made("g", 0.0, 0.0, 0.0), made("h", reward=1.0), made("h", reward=0.0)]
    whole, calls = call_advantages(job("dr_grpo"), batch, tokens(batch))
    assert calls == {0: {0: 0.75, 1: -0.25}, 1: dict.fromkeys(range(3), -0.25)}
    assert whole == [pytest.approx((0.75 * 2 - 0.25 * 3) / 5), pytest.approx(-0.25), 0.5, -0.5]
    _, scaled = call_advantages(job("grpo"), batch, tokens(batch))
    deviation = math.sqrt(fmean([0.75**2, 0.25**2]) + 0.25**2) + 1e-6
    assert scaled[0] == pytest.approx({0: 0.75 / deviation, 1: -0.25 / deviation})
    _, out = call_advantages(job("rloo"), batch, tokens(batch))
    assert out == {0: {0: 1.0, 1: 0.0}, 1: dict.fromkeys(range(3), -0.5)}


def test_by_agent_each_is_compared_with_itself_in_other_episodes() -> None:
    batch = [made("g", 1.0, 0.0, agents="ab"), made("g", 0.0, 0.0, agents="ab"), made("g", 1.0, 5.0, agents="ac")]
    _, calls = call_advantages(job("dr_grpo"), batch, tokens(batch))
    assert calls[0] == pytest.approx({0: 1 / 3, 1: 0.0})  # b is worth the same wherever it played
    assert calls[1] == pytest.approx({0: -2 / 3, 1: 0.0})
    assert calls[2] == pytest.approx({0: 1 / 3, 1: 0.0})  # c played in no other episode


def test_an_episode_alone_compares_nothing() -> None:
    assert call_advantages(job("grpo"), [made("g", 1.0, 0.0)], [{0: 1, 1: 1}])[1] == {0: {0: 0.0, 1: 0.0}}


def test_an_episode_is_worth_the_mean_of_its_calls() -> None:
    assert episode_reward(made("g", 1.0, 0.0)) == 0.5
    assert episode_reward(made("g", reward=3.0)) == 3.0
