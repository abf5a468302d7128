"""Garbage: tokens no checkpoint needs again are deleted, the balance stays, and the file does not grow for ever."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from swarm.store import Captured, Closed, Consumed, InStep, SqlStore, writer
from swarm.store.tables import garbage
from tests.swarm.store.support import began, ended, job, node, opened, played, reopened


async def play_step(store: SqlStore, step: int) -> None:
    """Play and consume a step of one trained, one given up and one evaluation episode, with a checkpoint."""
    trained, lost, seen = f"trained-{step}", f"lost-{step}", f"seen-{step}"
    await store.write(*played(trained), ended(trained))
    await store.write(*played(lost, calls=1), Closed(lost, "fenced", 2, reason="lease_expired"))
    await store.write(*played(seen, kind="eval", group=None), ended(seen, group=None))
    await store.write(InStep(step, (trained,)))
    await store.write(Consumed(step, f"step-{step}"))
    await store.write()  # the writer tidies up after each group


async def with_tokens(store: SqlStore) -> list[str]:
    """Return the names of the episodes whose tokens are there."""
    names = [episode.id for episode in (await store.episodes(100)).episodes][::-1]
    records = [(name, await store.episode(name)) for name in names]
    return [name for name, record in records if record is not None and record.record]


async def test_what_was_consumed_before_the_oldest_kept_checkpoint_loses_its_tokens(url: str) -> None:
    async with opened(url, job(checkpoints_kept=2)) as (store, _):
        await play_step(store, 1)
        assert await with_tokens(store) == ["trained-1", "lost-1", "seen-1"]
        await play_step(store, 2)
        assert await with_tokens(store) == ["trained-2", "lost-2", "seen-2"]
        await play_step(store, 3)
        assert await with_tokens(store) == ["trained-3", "lost-3", "seen-3"]


async def test_the_balance_survives_the_collection(url: str) -> None:
    wanted = job(checkpoints_kept=1)
    async with opened(url, wanted) as (store, _):
        for step in (1, 2, 3):
            await play_step(store, step)
        shown = {episode.id: episode for episode in (await store.episodes(100)).episodes}
        assert [(e.calls, e.tokens) for e in (shown["trained-1"], shown["lost-1"], shown["seen-1"])] == [
            (2, 6), (1, 3), (2, 6),
        ]  # fmt: skip
        assert (shown["trained-1"].state, shown["trained-1"].step) == ("consumed", 1)
    found = await reopened(url, wanted)
    assert (found.begun, found.counts["trained"], found.counts["evaluated"], found.counts["fenced"]) == (9, 3, 3, 3)


async def test_what_waits_for_its_batch_is_never_collected(url: str) -> None:
    wanted = job(checkpoints_kept=1)
    async with opened(url, wanted) as (store, _):
        await store.write(*played("waits"), ended("waits"))
        for step in (1, 2, 3):
            await play_step(store, step)
    (sample,) = (await reopened(url, wanted)).pool
    assert len(sample.nodes) == 2


async def test_evaluations_after_the_last_checkpoint_lose_their_tokens_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "CLOSINGS_KEPT", 3)
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
            await play_step(store, step)
    with sa.create_engine(url).begin() as connection:  # as if it had died before it tidied up
        connection.execute(sa.text("update episodes set calls = null, tokens = null where id = 'trained-1'"))
    async with opened(url, wanted) as (store, _):
        await store.write(began("x"))
        await store.write()
        with sa.create_engine(url).connect() as connection:
            left = connection.execute(
                sa.text("select count(*) from episodes where calls is null and state = 'consumed'")
            )
            assert left.scalar() == 0


async def test_the_file_does_not_grow_for_ever(sqlite_url: str) -> None:
    """Of ten times as many steps, the same file: freed pages are used again."""
    sizes: list[int] = []
    async with opened(sqlite_url, job(checkpoints_kept=1)) as (store, _):
        for step in range(1, 61):
            name = f"e{step}"
            await store.write(began(name), *(Captured(name, node(place, size=4000)) for place in range(4)), ended(name))
            await store.write(InStep(step, (name,)))
            await store.write(Consumed(step, f"step-{step}"))
            with sa.create_engine(sqlite_url).connect() as connection:
                sizes.append(connection.exec_driver_sql("PRAGMA page_count").scalar_one())
    assert sizes[-1] <= sizes[5] + 10  # rows of episodes
    assert sizes[5] > 80  # the tokens of a step alone are 80 pages
