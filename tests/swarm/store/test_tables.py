"""Tokens as bytes, which checkpoints are kept, what of finished steps is told, and what is deleted in time."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.store import retention, writer
from swarm.store.changes import BatchScheduled, CheckpointEvaluated, CheckpointSaved, StepMeasured
from swarm.store.tables import best_of, choose_kept_steps, pack_floats, pack_ints, unpack_floats, unpack_ints
from swarm.store.writer import Store
from swarm.wire import EvaluationSummary
from tests.swarm.store.support import began, ended, execute, job, opened, played, train_step


async def with_tokens(store: Store) -> list[str]:
    names = [episode.id for episode in (await store.episodes(100)).episodes][::-1]
    records = [(name, await store.episode(name)) for name in names]
    return [name for name, record in records if record is not None and record.record]


async def test_evaluations_after_the_last_checkpoint_lose_their_tokens_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CLOSINGS_KEPT", 3)
    monkeypatch.setattr(writer, "CLOSINGS", 2)
    async with opened(url) as (store, _):
        await store.write(*played("waits"), ended("waits"))
        for number in range(7):
            name = f"seen-{number}"
            await store.write(*played(name, kind="eval", group=None), ended(name, group=None))
        await store.write()
        assert await with_tokens(store) == ["waits", "seen-4", "seen-5", "seen-6"]


async def test_what_a_killed_server_left_is_collected_by_the_next(url: str) -> None:
    wanted = job(checkpoints_kept=1)
    async with opened(url, wanted) as (store, _):
        for step in (1, 2):
            await train_step(store, step)
    # as if it had died before it tidied up
    execute(url, "update episodes set calls = null, tokens = null where id = 'e1'")
    async with opened(url, wanted) as (store, _):
        await store.write(began("x"))
        await store.write()
        assert not execute(url, "select * from episodes where calls is null and state = 'consumed'")


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_come_back_and_are_little_endian(values: list[int]) -> None:
    data = pack_ints(values)
    assert unpack_ints(data) == tuple(values)
    assert data == struct.pack(f"<{len(values)}i", *values)


@given(st.lists(st.floats(allow_nan=False)))
def test_logprobs_come_back_exactly(values: list[float]) -> None:
    back = unpack_floats(pack_floats(values))
    assert back == tuple(values)
    assert [math.copysign(1, value) for value in back] == [math.copysign(1, value) for value in values]


def test_an_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack_ints([2**31])


def evaluation(step: int, solved: int, episodes: int = 8, reward: float = 0.0) -> EvaluationSummary:
    return EvaluationSummary(step=step, episodes=episodes, reward=reward, success=solved / episodes)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=20))
def test_of_evaluations_of_one_size_the_best_is_the_first_with_most_successes(solved: list[int]) -> None:
    best = best_of(evaluation(step, count) for step, count in enumerate(solved, 1))
    assert best is not None
    assert best.step == 1 + solved.index(max(solved))


def test_of_few_episodes_a_perfect_score_is_worth_less_than_a_good_one_of_many() -> None:
    assert best_of([evaluation(1, 61, 64), evaluation(2, 4, 4)]) == evaluation(1, 61, 64)
    assert best_of([evaluation(1, 20, 64), evaluation(2, 4, 4)]) == evaluation(2, 4, 4)


def test_reward_decides_where_success_is_not_known_and_what_knows_it_goes_before() -> None:
    unknown = [EvaluationSummary(step=step, episodes=4, reward=reward) for step, reward in ((1, -3.0), (2, -1.0))]
    assert best_of(unknown) == unknown[1]
    assert best_of([*unknown, evaluation(3, 0)]) == evaluation(3, 0)
    assert best_of([]) is None


@given(
    st.sets(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(1, 5),
    st.dictionaries(st.integers(1, 40), st.integers(0, 8), max_size=12),
)
def test_kept_are_the_newest_and_the_best_of_those_that_are_there(
    saved: set[int], newest: int, solved: dict[int, int]
) -> None:
    kept = choose_kept_steps(saved, newest, [evaluation(step, count) for step, count in solved.items()])
    assert set(sorted(saved)[-newest:]) <= kept <= saved
    assert len(kept) <= newest + 1
    scored = {step: count for step, count in solved.items() if step in saved}
    if scored:
        most = max(scored.values())
        assert min(step for step, count in scored.items() if count == most) in kept


async def test_a_checkpoint_that_is_saved_again_keeps_its_evaluation(url: str) -> None:
    async with opened(url) as (store, _):
        await train_step(store, 1)
        await store.write(CheckpointEvaluated(evaluation(1, 3)), CheckpointEvaluated(evaluation(9, 8)))
        await store.write(CheckpointSaved(1, "again"))
    async with opened(url) as (_, recovered):
        assert (recovered.checkpoints, recovered.evaluations) == ([(1, "again")], [evaluation(1, 3)])


async def test_a_step_that_is_settled_and_not_learned_is_not_told(url: str) -> None:
    async with opened(url) as (store, _):
        for step in (1, 2):
            await store.write(*played(f"e{step}"), ended(f"e{step}"))
            await store.write(BatchScheduled(step, (f"e{step}",)), StepMeasured(step, {"timing_s/gen": 1.0}))
        await store.write(StepMeasured(1, {"timing_s/gen": 1.0, "training/global_step": 1.0}))
        assert [step for step, _ in await store.history(0, 10)] == [1]


async def test_what_was_measured_long_ago_is_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MEASURED_KEPT", 2)
    async with opened(url, job(checkpoints_kept=1)) as (store, _):
        for step in range(1, 6):
            await store.write(*played(f"e{step}"), ended(f"e{step}"))
            await store.write(BatchScheduled(step, (f"e{step}",)))
            await store.write(StepMeasured(step, {"training/global_step": float(step)}))
            await store.write(CheckpointSaved(step, f"step-{step}"))
        await store.write()  # the writer tidies up after each group
    async with opened(url) as (store, _):
        assert [step for step, _ in await store.history(0, 10)] == [4, 5]
