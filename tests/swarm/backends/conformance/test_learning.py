"""Whatever learns: finite metrics, the right direction, and nothing that depends on how a batch is laid out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from swarm.backends.protocols import Backend, BackendError, Batch, Sampling, TrainEpisode, TrainRow
from tests.swarm.backends.conformance.kinds import MINIBATCHES, Kind
from tests.swarm.backends.conformance.support import Answer, ask, ask_all, episodes, played, prompt, row

Start = Callable[..., Any]
PROMISED = {
    "actor/pg_loss",
    "actor/entropy",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/grad_norm",
    "actor/lr",
    "critic/advantages/mean",
    "critic/advantages/max",
    "critic/advantages/min",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_max",
    "timing_s/update_actor",
}
"""Names of verl's that every learner tells."""


def mind(kind: Kind, backend: Backend) -> list[float]:
    """What a backend thinks of some places: the log-probs of every id there."""
    oracle = kind.ask(backend)
    return [value for ids in ([1, 2, 3], [40] * 9, prompt(backend, 0)) for value in oracle.distribution(ids)]


def plain(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics without those of the clock and of the work, which layout changes."""
    return {name: value for name, value in metrics.items() if name.split("/")[0] in ("actor", "critic", "training")}


async def conversations(backend: Backend, turns: int = 3, count: int = 4) -> list[list[Answer]]:
    """Conversations of a group of `count`: each turn's prompt is all that was before, and a little more."""
    found = []
    for number in range(count):
        ids = prompt(backend, 7)
        calls = []
        for turn in range(turns):
            calls.append(await ask(backend, ids, Sampling(max_tokens=4), f"{number}.{turn}"))
            ids = [*ids, *calls[-1].ids, turn, number]
        found.append(calls)
    return found


def merged(calls: Sequence[Answer]) -> TrainRow:
    """One row for a conversation: the last call's, with what the earlier ones sampled marked."""
    rows = [row(call) for call in calls]
    length = len(rows[-1].ids)
    sampled, logprobs, versions = [0] * length, [0.0] * length, [-1] * length
    for each in rows:
        for place in (place for place, flag in enumerate(each.sampled) if flag):
            sampled[place], logprobs[place], versions[place] = 1, each.logprobs[place], each.versions[place]
    return TrainRow(rows[-1].ids, tuple(sampled), tuple(logprobs), tuple(versions))


async def test_an_update_tells_finite_numbers_and_makes_a_version(kind: Kind, backend: Backend) -> None:
    metrics = backend.learner.update(await played(backend))
    await asyncio.to_thread(backend.publish)
    assert metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert backend.learner.version == 1


@pytest.mark.needs("learns")
async def test_an_update_tells_what_verl_s_readers_look_for(kind: Kind, backend: Backend) -> None:
    metrics = backend.learner.update(await played(backend))
    await asyncio.to_thread(backend.publish)
    assert set(metrics) >= PROMISED
    assert metrics["training/rollout_probs_diff_max"] < 10 * kind.tolerance, "learner and engine disagree"
    assert metrics["actor/grad_norm"] > 0


@pytest.mark.needs("model", "learns")
async def test_what_was_rewarded_becomes_likelier(kind: Kind, start: Start) -> None:
    backend: Backend = await start()
    oracle, ids = kind.ask(backend), prompt(backend, 0)
    answers = await ask_all(backend, [(ids, Sampling(max_tokens=3))] * 4)
    before = [sum(oracle.logprobs(ids, answer.ids)) for answer in answers]
    backend.learner.update(Batch(0, episodes(answers, [1.0, 0.0, 0.0, 0.0], group_size=4)))
    await asyncio.to_thread(backend.publish)
    after = [sum(oracle.logprobs(ids, answer.ids)) for answer in answers]
    assert after[0] > before[0] + 0.1
    assert sum(after[1:]) < sum(before[1:])


@pytest.mark.needs("model", "learns")
async def test_a_group_of_equal_rewards_teaches_nothing(kind: Kind, start: Start) -> None:
    backend: Backend = await start()
    before = mind(kind, backend)
    batch = await played(backend)
    equal = tuple(replace(episode, reward=1.0) for episode in batch.episodes)
    metrics = backend.learner.update(replace(batch, episodes=equal))
    await asyncio.to_thread(backend.publish)
    assert mind(kind, backend) == before
    assert metrics["actor/grad_norm"] == 0.0


@pytest.mark.needs("model", "learns", "exact")
async def test_conversations_teach_the_same_however_they_are_merged(kind: Kind, start: Start) -> None:
    alone = "trees" in kind.lacks  # such a kind computes rows as they are given, whatever `merging` says
    backend: Backend = await start(**({} if alone else {"merging": "none"}))
    calls = await conversations(backend)
    rewards = [1.0, 0.0, 0.5, 0.0]
    apart = tuple(TrainEpisode(f"e{i}", "g", rewards[i], tuple(map(row, each))) for i, each in enumerate(calls))
    together = tuple(replace(episode, rows=(merged(each),)) for episode, each in zip(apart, calls, strict=True))
    expected = plain(dict(backend.learner.update(Batch(0, apart))))
    await asyncio.to_thread(backend.publish)
    learned = mind(kind, backend)
    for merging, given in (
        ("none", together),
        ("linear", together),
        ("tree", together),
        ("auto", together),
        ("tree", apart),
    ):
        if alone and merging != "auto":
            continue
        other: Backend = await start(merging=merging, micro_batch_tokens=64)
        found = plain(dict(other.learner.update(Batch(0, given))))
        await asyncio.to_thread(other.publish)
        assert found == pytest.approx(expected, abs=20 * kind.tolerance), merging
        assert mind(kind, other) == pytest.approx(learned, abs=100 * kind.tolerance), merging


@pytest.mark.needs("model", "learns")
async def test_an_episode_of_weight_0_changes_nothing_at_all(kind: Kind, start: Start) -> None:
    one, two = await start(), await start()
    batch = await played(one)
    filler = tuple(replace(e, episode_id=f"{e.episode_id}f", reward=9.0, weight=0.0) for e in batch.episodes[:3])
    expected = one.learner.update(batch)
    await asyncio.to_thread(one.publish)
    found = two.learner.update(replace(batch, episodes=batch.episodes + filler))
    await asyncio.to_thread(two.publish)
    assert plain(dict(found)) == plain(dict(expected))
    assert mind(kind, two) == mind(kind, one)


@pytest.mark.needs("model", "learns")
async def test_a_batch_that_makes_no_sense_is_refused_and_changes_nothing(kind: Kind, start: Start) -> None:
    backend: Backend = await start(**MINIBATCHES)
    before = mind(kind, backend)
    batch = await played(backend)
    first, *others = batch.episodes
    good = first.rows[0]
    uneven = replace(good, versions=good.versions[1:])
    sampled_first = replace(good, sampled=(1, *good.sampled[1:]))
    no_number = replace(good, logprobs=tuple(math.nan for _ in good.logprobs))
    wrong = [(), *((replace(first, rows=(row,)), *others) for row in (uneven, sampled_first, no_number))]
    for bad in wrong:
        with pytest.raises(BackendError):
            backend.learner.update(replace(batch, episodes=bad))
        assert (mind(kind, backend), backend.learner.version) == (before, 0)
    backend.learner.update(batch)
    await asyncio.to_thread(backend.publish)
    assert backend.learner.version == 1


async def test_a_learning_rate_of_0_moves_no_weight_and_engine_and_learner_agree(start: Start) -> None:
    backend: Backend = await start(learning_rate=0.0, weight_decay=0.1, entropy_coef=0.01, epochs=2, minibatches=2)
    before, tolerance = backend.weights(), backend.probs_tolerance
    for step in range(3):
        metrics = backend.learner.update(await played(backend, step=step))
        await asyncio.to_thread(backend.publish)
        assert tolerance is None or metrics["training/rollout_probs_diff_max"] <= tolerance
    assert before is not None
    assert backend.weights() == before


@pytest.mark.needs("learns")
async def test_any_other_learning_rate_moves_weights(start: Start) -> None:
    backend: Backend = await start()
    before = backend.weights()
    backend.learner.update(await played(backend))
    await asyncio.to_thread(backend.publish)
    assert backend.weights() != before
