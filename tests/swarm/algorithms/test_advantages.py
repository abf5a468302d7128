"""What holds for all advantages, token weights and rows; that they are verl's is in local/test_against_verl.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.algorithms.advantages import advantages, call_advantages
from swarm.algorithms.losses import token_weights
from swarm.algorithms.rows import flatten_tokens, train_rows
from swarm.backends.local.micro_batch import PaddedRows, split_rows
from swarm.backends.protocols import CallReward, TrainEpisode
from swarm.job import Job
from swarm.rendering.messages import BackendError
from swarm.timelines.node import TrainRow

ALGORITHMS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gspo")


def _by(algorithm: str, episodes: list[tuple[float, str, int]], **fields: Any) -> list[float]:
    rewards, groups, tokens = zip(*episodes, strict=True)
    return advantages(Job(algorithm=algorithm, **fields), rewards, groups, tokens)


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.sampled_from(["grpo", "dr_grpo", "rloo", "gspo"]))
def test_a_constant_group_and_a_group_of_one_have_exactly_no_advantage(reward: float, size: int, by: str) -> None:
    others = [(0.0, "other", 2), (1.0, "other", 3)]
    found = _by(by, [*others, *[(reward, "g", 4)] * size])
    assert found[2:] == [0.0] * size
    assert found[1] > 0 > found[0]


_EPISODE, _TOKEN = Job(), Job(loss_weighting="token")
_CONSTANT = Job(algorithm="dr_grpo", max_context=100, loss_weighting="token")


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
@given(batches())
def test_calls_worth_the_same_give_the_episode_s_advantage_exactly(algorithm: str, batch: list[TrainEpisode]) -> None:
    same = [replace(e, call_rewards=tuple(replace(each, reward=e.reward) for each in e.call_rewards)) for e in batch]
    counts = tokens(same)
    expected = advantages(
        job(algorithm), [e.reward for e in batch], [e.group for e in batch], [sum(own.values()) for own in counts]
    )
    assert call_advantages(job(algorithm), same, counts) == (expected, {})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_does_not_matter_and_all_is_finite(algorithm: str, batch: list[TrainEpisode], random: object) -> None:
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


_CPU = torch.device("cpu")
_rows = st.lists(st.booleans(), min_size=1, max_size=12).map(lambda flags: [False, *flags])
_flagged = st.lists(st.lists(_rows, min_size=1, max_size=4), min_size=1, max_size=6)


def _episode(number: int, flags: list[list[bool]]) -> TrainEpisode:
    rows = tuple(
        TrainRow(
            ids=tuple(1 + (number * 37 + r * 11 + t) % 90 for t in range(len(row))),
            sampled=tuple(map(int, row)),
            logprobs=tuple(-0.01 * (1 + t) if on else 0.0 for t, on in enumerate(row)),
            versions=tuple(0 if on else -1 for on in row),
        )
        for r, row in enumerate(flags)
    )
    return TrainEpisode(f"e{number}", f"g{number // 2}", float(number), rows)


@given(_flagged, st.integers(1, 40))
def test_sampled_tokens_are_trained_once_with_all_of_their_own(flags: list[list[list[bool]]], budget: int) -> None:
    episodes = [_episode(i, rows) for i, rows in enumerate(flags)]
    advantages = [10.0 * i for i in range(len(episodes))]
    counts = [sum(map(sum, rows)) for rows in flags]
    expected = sorted(
        (row.ids[t], round(row.logprobs[t], 6), advantages[i], round(1 / (len(episodes) * counts[i]), 6))
        for i, episode in enumerate(episodes)
        for row in episode.rows
        for t in range(len(row.ids))
        if row.sampled[t]
    )
    found = []
    weights = token_weights(Job(), counts, [1.0] * len(episodes))
    for part in split_rows([row for rows in train_rows(episodes) for row in rows], budget):
        micro = PaddedRows(part)
        assert micro.tokens == micro.ids.numel()
        assert micro.tokens <= budget or len(micro.rows) == 1
        tokens = flatten_tokens(micro.rows, advantages, weights, _CPU)
        columns = (tokens.targets, tokens.rollout, tokens.advantages, tokens.weights)
        found += [
            (int(a), round(float(b), 6), float(c), round(float(d), 6)) for a, b, c, d in zip(*columns, strict=True)
        ]
    assert sorted(found) == expected


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (TrainRow((1, 2), (1, 0), (-0.1, 0.0), (0, -1)), "equally long"),
        (TrainRow((1, 2, 3), (0, 1), (0.0, -0.1), (-1, 0)), "equally long"),
        (TrainRow((1, 2, 3), (0, 1, 1), (0.0, -1.0, math.nan), (-1, 0, 0)), "finite log-prob"),
        (TrainRow((1, 2, 3), (0, 1, 1), (0.0, -1.0, -math.inf), (-1, 0, 0)), "finite log-prob"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_with_its_episode(row: TrainRow, said: str) -> None:
    with pytest.raises(BackendError, match=f"episode e7.*{said}"):
        train_rows([TrainEpisode("e7", "g", 1.0, (row,))])
