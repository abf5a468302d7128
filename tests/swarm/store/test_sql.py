"""Which training is a job's, what comes back of it, and what is refused."""

from __future__ import annotations

import asyncio
import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ServerFailed, StoreRefused, StoreUnavailable
from swarm.job import Job
from swarm.store import retention, writer
from swarm.store.archive import Archive
from swarm.store.changes import BatchScheduled, CallCaptured, CheckpointEvaluated, CheckpointSaved, StepMeasured
from swarm.store.reading import call_record
from swarm.store.tables import best_of, choose_kept_steps
from swarm.store.writer import Store
from swarm.timelines.node import pack, unpack
from swarm.wire import EvaluationSummary
from tests.swarm.store.support import began, ended, execute, job, node, opened, played, reopened, train_step


async def trained(url: str, wanted: Job, steps: int, first: int = 1) -> None:
    async with opened(url, wanted) as (store, _):
        for step in range(first, first + steps):
            await train_step(store, step)
            await store.write()  # the writer tidies up after each group


def rewrite(url: str, digest: str, without: str) -> None:
    ((job,),) = execute(url, "select job from trainings")
    recorded = {name: value for name, value in json.loads(job).items() if name != without}
    change = "update trainings set job = :job, job_digest = :digest"
    execute(url, change, job=json.dumps(recorded), digest=digest)


async def test_what_a_release_without_a_field_trained_goes_on_under_the_digest_it_had(url: str) -> None:
    await trained(url, job(), 2)
    rewrite(url, "as-it-was-digested-then", without="mismatch_limit")
    async with opened(url) as (_, found):
        assert (found.step, found.job_digest, found.fresh_start) == (2, "as-it-was-digested-then", None)
    assert await Archive(url, job()).digest() == "as-it-was-digested-then"
    async with opened(url, job(mismatch_limit=3)) as (_, found):
        assert found.step == 0


async def test_the_same_job_with_more_steps_goes_on_and_with_fewer_than_are_done_it_is_refused(url: str) -> None:
    begun = job(steps=2)
    await trained(url, begun, 2)
    for steps in (5, 9):
        async with opened(url, job(steps=steps)) as (_, found):
            assert (found.step, found.job_digest, found.fresh_start) == (2, begun.digest(), None)
    await trained(url, job(steps=9), 2, first=3)
    with pytest.raises(ServerFailed, match=r"at step 4 .*at least 4, found 3") as refusal:
        await reopened(url, job(steps=3))
    assert "\n" not in str(refusal.value)
    assert (await reopened(url, job(steps=4))).step == 4


async def test_of_several_that_a_job_goes_on_with_it_takes_its_own_else_the_furthest(url: str) -> None:
    falls = {"lr_schedule": "linear"}  # each number of steps is a training of its own
    for steps in (2, 4):
        await trained(url, job(steps=steps, **falls), steps)
    execute(url, "update trainings set job = replace(job, 'linear', 'constant')")
    assert (await reopened(url, job(steps=2))).step == 2
    assert (await reopened(url, job(steps=8))).step == 4


async def test_a_new_training_beside_checkpoints_of_other_jobs_names_them_and_what_differs(url: str) -> None:
    async with opened(url, job(seed=1)) as (_, found):
        assert found.fresh_start is None
    await trained(url, job(seed=2), 2)
    async with opened(url, job(seed=3)) as (_, found):
        said = str(found.fresh_start)
    assert f"checkpoints/{job(seed=2).digest()[:12]} (step 2; seed 3, not 2)" in said
    assert job(seed=1).digest()[:12] not in said  # it has no checkpoint
    assert "\n" not in said
    async with opened(url, job(seed=3)) as (_, found):
        assert found.fresh_start is None  # begun before


async def test_a_job_that_keeps_more_checkpoints_goes_on_from_no_step_whose_tokens_are_gone(url: str) -> None:
    await trained(url, job(checkpoints_kept=1), 3)
    found = await reopened(url, job(checkpoints_kept=3))
    assert found.checkpoints == [(3, "step-3")]
    assert all(sample.nodes for batch in found.replay.values() for sample in batch)
    assert 1 not in found.replay


async def test_episodes_are_shown_with_their_states_and_tokens(url: str) -> None:
    async with opened(url) as (store, _):
        await store.write(*played("a", calls=3), ended("a"), *played("b", calls=1, kind="eval", group=None))
        await store.write(BatchScheduled(1, ("a",)))
        shown = (await store.episodes(10)).episodes
        assert [(e.id, e.kind, e.state, e.step, e.calls, e.tokens) for e in shown] == [
            ("b", "eval", "open", None, 1, 3),
            ("a", "train", "in_step", 1, 3, 9),
        ]
        assert [e.id for e in (await store.episodes(1)).episodes] == ["b"]
        record, nodes = await store.episode("a"), [node(), node(1, node()), node(2, node(1))]
        assert record is not None
        assert record.record == tuple(call_record(each) for each in nodes)
        assert await store.episode("nobody") is None


async def test_a_text_no_database_takes_is_written_without_what_it_refuses(url: str) -> None:
    async with opened(url) as (store, _):
        await store.write(*played("a", task_id="a\0b", owner="\0"), ended("a", group="a\0b#1"))
    assert [sample.task_id for sample in (await reopened(url)).pool] == ["a\ufffdb"]


async def test_a_change_that_contradicts_fails_alone(url: str) -> None:
    async with opened(url) as (store, _):
        writes = [
            store.write(*played("a"), ended("a")),
            store.write(CallCaptured("nobody", node())),
            store.write(*played("b"), ended("b")),
            store.write(*played("a")),  # begun before
        ]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), StoreRefused, type(None), StoreRefused]
        assert store.broken is None
    assert [sample.episode for sample in (await reopened(url)).pool] == ["a", "b"]


async def test_nothing_is_written_after_the_close(url: str) -> None:
    async with opened(url) as (store, _):
        store.note(*played("a"), ended("a"))  # written by the close
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.write(began("b"))
        store.note(began("c"))
    found = await reopened(url)
    assert (found.begun, [sample.episode for sample in found.pool]) == (1, ["a"])


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
    data = pack("i", values)
    assert unpack("i", data) == tuple(values)
    assert data == struct.pack(f"<{len(values)}i", *values)


@given(st.lists(st.floats(allow_nan=False)))
def test_logprobs_come_back_exactly(values: list[float]) -> None:
    back = unpack("d", pack("d", values))
    assert back == tuple(values)
    assert [math.copysign(1, value) for value in back] == [math.copysign(1, value) for value in values]


def evaluation(step: int, solved: int, episodes: int = 8, reward: float = 0.0) -> EvaluationSummary:
    return EvaluationSummary(step=step, episodes=episodes, reward=reward, success=solved / episodes)


def test_of_few_episodes_a_perfect_score_is_worth_less_than_a_good_one_of_many() -> None:
    assert best_of([evaluation(1, 61, 64), evaluation(2, 4, 4)]) == evaluation(1, 61, 64)
    assert best_of([evaluation(1, 20, 64), evaluation(2, 4, 4)]) == evaluation(2, 4, 4)


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
