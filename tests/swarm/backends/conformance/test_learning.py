"""Whatever learns: finite metrics, the right direction, no layout that matters, and generation around updates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from swarm.backends.protocols import Backend, Batch, Sampling, TrainEpisode
from swarm.timelines.node import TrainRow
from tests.swarm.backends.conformance import kinds
from tests.swarm.backends.conformance.kinds import Kind, ask, played, prompt, row

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
PROMISED = {
    "actor/pg_loss", "actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac", "actor/grad_norm", "actor/lr",
    "critic/advantages/mean", "critic/advantages/max", "critic/advantages/min",
    "training/rollout_probs_diff_mean", "training/rollout_probs_diff_max", "timing_s/update_actor",
}  # fmt: skip
"""Names of verl's that every learner tells."""


def mind(kind: Kind, backend: Backend) -> list[float]:
    oracle = kind.ask(backend)
    return [value for ids in ([1, 2, 3], [40] * 9, prompt(backend, 0)) for value in oracle.distribution(ids)]


def plain(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics without those of the clock and of the work, which layout changes."""
    return {name: value for name, value in metrics.items() if name.split("/")[0] in ("actor", "critic", "training")}


async def conversations(backend: Backend, turns: int = 3, count: int = 4) -> list[list[kinds.Answer]]:
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


def merged(calls: Sequence[kinds.Answer]) -> TrainRow:
    rows = [row(call) for call in calls]
    length = len(rows[-1].ids)
    sampled, logprobs, versions = [0] * length, [0.0] * length, [-1] * length
    for each in rows:
        for place in (place for place, flag in enumerate(each.sampled) if flag):
            sampled[place], logprobs[place], versions[place] = 1, each.logprobs[place], each.versions[place]
    return TrainRow(rows[-1].ids, tuple(sampled), tuple(logprobs), tuple(versions))


@pytest.mark.needs("model", "learns")
async def test_what_was_rewarded_becomes_likelier(kind: Kind, start: Start) -> None:
    backend: Backend = await start()
    oracle, ids = kind.ask(backend), prompt(backend, 0)
    answers = await kinds.ask_all(backend, [(ids, Sampling(max_tokens=3))] * 4)
    before, weights = [sum(oracle.logprobs(ids, answer.ids)) for answer in answers], backend.weights()
    backend.learner.update(Batch(0, kinds.episodes(answers, [1.0, 0.0, 0.0, 0.0], group_size=4)))
    await asyncio.to_thread(backend.publish)
    after = [sum(oracle.logprobs(ids, answer.ids)) for answer in answers]
    assert backend.weights() != weights
    assert after[0] > before[0] + 0.1
    assert sum(after[1:]) < sum(before[1:])


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
    ways = [("none", together), ("linear", together), ("tree", together), ("auto", together), ("tree", apart)]
    for merging, given in ways[3:4] if alone else ways:
        other: Backend = await start(merging=merging, micro_batch_tokens=64)
        found = plain(dict(other.learner.update(Batch(0, given))))
        await asyncio.to_thread(other.publish)
        assert found == pytest.approx(expected, abs=20 * kind.tolerance), merging
        assert mind(kind, other) == pytest.approx(learned, abs=100 * kind.tolerance), merging


async def test_a_learning_rate_of_0_moves_no_weight_and_engine_and_learner_agree(start: Start) -> None:
    backend: Backend = await start(learning_rate=0.0, weight_decay=0.1, entropy_coef=0.01, epochs=2, minibatches=2)
    before, tolerance = backend.weights(), backend.probs_tolerance
    for step in range(3):
        metrics = backend.learner.update(await played(backend, step=step))
        await asyncio.to_thread(backend.publish)
        assert tolerance is None or metrics["training/rollout_probs_diff_max"] <= tolerance
    assert before is not None
    assert backend.weights() == before


@pytest.mark.needs("model", "learns")
async def test_after_an_update_nothing_of_the_older_weights_is_used(kind: Kind, start: Start) -> None:
    backend: Backend = await start()
    oracle = kind.ask(backend)
    opening = list(range(70))
    for step in range(2):
        batch = await played(backend, step=step)
        asked = [[*opening, 1], opening, prompt(backend, 0, 0)]
        answers = await kinds.ask_all(backend, [(ids, Sampling(max_tokens=6)) for ids in asked])
        before = [oracle.logprobs(answer.prompt, answer.ids) for answer in answers]
        backend.learner.update(batch)  # what was asked last is what an engine still holds
        await asyncio.to_thread(backend.publish)
        for answer, older in zip(answers, before, strict=True):
            assert oracle.logprobs(answer.prompt, answer.ids) != pytest.approx(older, abs=1e-2), "learned too little"
            onward = await ask(backend, [*answer.prompt, *answer.ids, 7], Sampling(max_tokens=4))
            again = await ask(backend, answer.prompt, Sampling(max_tokens=4))
            for found in (onward, again):
                assert found.logprobs == pytest.approx(oracle.logprobs(found.prompt, found.ids), abs=kind.tolerance)
                assert set(found.versions) == {step + 1}


@pytest.mark.needs("model", "learns", "overlaps", "long")
async def test_generations_caught_by_an_update_go_on_under_the_new_weights(kind: Kind, start: Start) -> None:
    """Wherever the update falls, a token after it has the log-prob of the new weights over all that stands before."""
    backend: Backend = await start(max_staleness=1)
    oracle = kind.ask(backend)
    batch = await played(backend)
    answers: list[kinds.Answer] = []
    begun, over = asyncio.Event(), asyncio.Event()

    async def keep_asking(number: int) -> None:
        while not over.is_set():
            answers.append(await ask(backend, [number, 9, 9], Sampling(max_tokens=60 + 25 * number)))
            begun.set()

    async with asyncio.timeout(kinds.PATIENCE_S):
        crowd = [asyncio.ensure_future(keep_asking(number)) for number in range(3)]
        await begun.wait()
        await asyncio.to_thread(backend.learner.update, batch)
        await asyncio.to_thread(backend.publish)
        over.set()
        await asyncio.gather(*crowd)
    caught = [answer for answer in answers if set(answer.versions) == {0, 1}]
    assert caught
    for answer in caught:
        assert list(answer.versions) == sorted(answer.versions)
        given = answer.versions.count(0)
        expected = oracle.logprobs([*answer.prompt, *answer.ids[:given]], answer.ids[given:])
        assert answer.logprobs[given:] == pytest.approx(expected, abs=kind.tolerance)
