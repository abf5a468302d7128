"""Which training is a job's: the one that means the same or that it goes on with, else a new one, and that is said."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from swarm.errors import ServerFailed
from swarm.job import Job
from swarm.store import Archive
from tests.swarm.store.support import job, opened, reopened, train_step


async def trained(url: str, wanted: Job, steps: int, first: int = 1) -> None:
    async with opened(url, wanted) as (store, _):
        for step in range(first, first + steps):
            await train_step(store, step)
            await store.write()  # the writer tidies up after each group


def rewrite(url: str, digest: str, without: str) -> None:
    """Let the one training be as a release wrote it that did not know a field."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        recorded = json.loads(connection.execute(sa.text("select job from trainings")).scalar_one())
        del recorded[without]
        change = sa.text("update trainings set job = :job, job_digest = :digest")
        connection.execute(change, {"job": json.dumps(recorded), "digest": digest})
    engine.dispose()


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
    """An earlier release began a training for each number of steps."""
    falls = {"lr_schedule": "linear"}  # each number of steps is a training of its own
    for steps in (2, 4):
        await trained(url, job(steps=steps, **falls), steps)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("update trainings set job = replace(job, 'linear', 'constant')"))
    engine.dispose()
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


async def test_of_many_trainings_that_a_job_begins_beside_the_furthest_three_are_named(url: str) -> None:
    for seed, steps in ((2, 1), (3, 2), (4, 2), (5, 2)):
        await trained(url, job(seed=seed), steps)
    async with opened(url, job(seed=6)) as (_, found):
        said = str(found.fresh_start)
    assert [f"seed 6, not {seed}" in said for seed in (2, 3, 4, 5)] == [False, True, True, True]
    assert said.endswith("; and 1 more")


async def test_a_job_that_keeps_more_checkpoints_goes_on_from_no_step_whose_tokens_are_gone(url: str) -> None:
    await trained(url, job(checkpoints_kept=1), 3)
    found = await reopened(url, job(checkpoints_kept=3))
    assert found.checkpoints == [(3, "step-3")]
    assert all(sample.nodes for batch in found.replay.values() for sample in batch)
    assert 1 not in found.replay
