"""Rows: every sampled token is trained exactly once, however rows are cut and padded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.algorithms.rows import flat_tokens, train_rows
from swarm.backends.algorithms.weighting import token_weights
from swarm.backends.local.learning.micro_batch import PaddedRows, padded_rows
from swarm.backends.protocols import BackendError, TrainEpisode, TrainRow
from swarm.job import Job

_CPU = torch.device("cpu")
_rows = st.lists(st.booleans(), min_size=1, max_size=12).map(lambda flags: [False, *flags])
_episodes = st.lists(st.lists(_rows, min_size=1, max_size=4), min_size=1, max_size=6)


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


@given(_episodes, st.integers(1, 40))
def test_sampled_tokens_are_trained_once_with_their_own_logprob_advantage_and_weight(
    flags: list[list[list[bool]]], budget: int
) -> None:
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
    for micro in padded_rows([row for rows in train_rows(episodes) for row in rows], budget):
        assert micro.tokens == micro.ids.numel()
        assert micro.tokens <= budget or len(micro.rows) == 1
        tokens = flat_tokens(micro.rows, advantages, weights, _CPU)
        columns = (tokens.targets, tokens.rollout, tokens.advantages, tokens.weights)
        found += [
            (int(a), round(float(b), 6), float(c), round(float(d), 6)) for a, b, c, d in zip(*columns, strict=True)
        ]
    assert sorted(found) == expected


def test_a_target_stands_right_after_its_place() -> None:
    episode = _episode(0, [[False, True, False, True, False], [False, False, True]])
    rows = sorted(train_rows([episode])[0], key=lambda row: -len(row.ids))
    micro, tokens = PaddedRows(rows), flat_tokens(rows, [1.0], [1.0], _CPU)
    ids = [row.ids for row in episode.rows]
    assert micro.ids.tolist() == [[*ids[0][:3]], [*ids[1][:2], 0]]
    assert micro.places.tolist() == [0, 2, 4]
    assert tokens.targets.tolist() == [ids[0][1], ids[0][3], ids[1][2]]


@pytest.mark.parametrize(
    "row",
    [TrainRow((1, 2), (1, 0), (-0.1, 0.0), (0, -1)), TrainRow((1, 2, 3), (0, 1), (0.0, -0.1), (-1, 0))],
)
def test_a_row_that_makes_no_sense_is_refused(row: TrainRow) -> None:
    with pytest.raises(BackendError, match="episode broken"):
        train_rows([TrainEpisode("broken", "g", 1.0, (row,))])


@pytest.mark.parametrize("poison", [float("nan"), -float("inf")])
def test_a_log_prob_that_is_not_finite_is_refused_with_its_episode(poison: float) -> None:
    row = TrainRow((1, 2, 3), (0, 1, 1), (0.0, -1.0, poison), (-1, 0, 0))
    with pytest.raises(BackendError, match="episode e7: expected a finite log-prob"):
        train_rows([TrainEpisode("e7", "g", 1.0, (row,))])
