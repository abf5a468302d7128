"""The learner gives each token the advantage of its call, and changes nothing where calls are worth the same."""

from __future__ import annotations

from dataclasses import replace

import torch

from swarm.backends.algorithms.rows import flat_tokens, train_rows, value_calls
from swarm.backends.local.learning.learner import LocalLearner
from swarm.backends.protocols import Batch, CallReward, TrainEpisode, TrainRow
from swarm.job import Job
from tests.swarm.backends.local.batches import make_batch
from tests.swarm.backends.local.models import make_policy


def numbered(row: TrainRow, first: int = 0) -> TrainRow:
    """Number the spans of a row as calls."""
    call, calls = first - 1, []
    for place, flag in enumerate(row.sampled):
        call += bool(flag and not row.sampled[place - 1])
        calls.append(call if flag else -1)
    return replace(row, calls=tuple(calls))


def credited(episode: TrainEpisode, *, first: float | None = None) -> TrainEpisode:
    """Give each call a reward: the episode's, but for the first call where `first` is given."""
    rows: list[TrainRow] = []
    for row in episode.rows:
        rows.append(numbered(row, 1 + max((call for each in rows for call in each.calls), default=-1)))
    calls = sorted({call for row in rows for call in row.calls} - {-1})
    worth = {call: episode.reward if first is None or call else first for call in calls}
    return replace(episode, rows=tuple(rows), call_rewards=tuple(CallReward(call, worth[call]) for call in calls))


def updated(batch: Batch) -> tuple[dict[str, torch.Tensor], float]:
    policy = make_policy()
    metrics = LocalLearner(policy, Job(learning_rate=0.01, max_context=128), {}).update(batch)
    return policy.model.state_dict(), metrics["critic/advantages/max"]


def test_calls_that_are_worth_their_episode_change_no_bit() -> None:
    batch = make_batch(make_policy())
    plain, most = updated(batch)
    same, most_too = updated(replace(batch, episodes=tuple(map(credited, batch.episodes))))
    assert most == most_too
    assert all(torch.equal(plain[name], same[name]) for name in plain)


def test_a_call_s_own_reward_teaches_otherwise() -> None:
    batch = make_batch(make_policy())
    plain, _ = updated(batch)
    other, _ = updated(replace(batch, episodes=tuple(credited(each, first=-2.0) for each in batch.episodes)))
    assert not all(torch.equal(plain[name], other[name]) for name in plain)


def test_each_token_has_the_advantage_of_its_call() -> None:
    row = TrainRow((9, 1, 2, 9, 3), (0, 1, 1, 0, 1), (0.0, -1.0, -1.0, 0.0, -1.0), (-1, 0, 0, -1, 0), (-1, 4, 4, -1, 7))
    plain = TrainRow((9, 1), (0, 1), (0.0, -1.0), (-1, 0))
    episodes = [
        TrainEpisode("a", "g", 0.0, (row,), 1.0, (CallReward(4, 1.0), CallReward(7, 2.0))),
        TrainEpisode("b", "g", 0.0, (plain,)),
    ]
    rows = train_rows(episodes)
    value_calls(rows[0], {4: 0.5, 7: -0.25})
    flat = [one for own in rows for one in own]
    tokens = flat_tokens(flat, [9.0, 3.0], [1.0, 1.0], torch.device("cpu"))
    assert tokens.advantages.tolist() == [0.5, 0.5, -0.25, 3.0]
