"""The writer: what it does when the database takes nothing, and that nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest
import sqlalchemy as sa

from swarm.errors import StoreUnavailable
from swarm.store import Captured, InStep, Prepared, SqlStore, database, writer
from tests.swarm.server.support import eventually
from tests.swarm.store.support import began, ended, node, opened, played, reopened

BIG = 3000
"""Ids in a call that fills some pages."""


@contextmanager
def room_for(pages: int) -> Iterator[None]:
    """Let no SQLite database grow beyond `pages`, on connections made from now on: what is more is SQLITE_FULL."""
    database.PRAGMAS.append(f"max_page_count={pages}")
    try:
        yield
    finally:
        database.PRAGMAS.pop()


@asynccontextmanager
async def on_a_small_disk(url: str) -> AsyncIterator[tuple[SqlStore, Callable[[], None]]]:
    """Open a store on a disk that is full after some calls; what comes with it makes room."""
    with ExitStack() as limit:
        limit.enter_context(room_for(200))
        async with opened(url) as (store, _):
            yield store, limit.close


async def fill(store: SqlStore, name: str) -> list[int]:
    """Capture calls until the disk is full; return the places of those that were acknowledged."""
    refusals: list[StoreUnavailable] = []
    for place in range(1000):
        try:
            await store.write(Captured(name, node(place, size=BIG)))
        except StoreUnavailable as refusal:
            refusals.append(refusal)
            break
    assert (refusals[0].status, refusals[0].code) == (503, "store_unavailable")
    assert "database or disk is full; free space" in str(refusals[0])
    assert "\n" not in str(refusals[0])
    return list(range(place))


async def test_a_full_disk_loses_nothing_acknowledged_and_counts_nothing_else(sqlite_url: str) -> None:
    with room_for(200):
        async with opened(sqlite_url) as (store, _):
            await store.write(began("e"))
            kept = await fill(store, "e")
            assert kept
            with pytest.raises(StoreUnavailable):
                await store.write(Captured("e", node(len(kept), size=BIG)))
    found = await reopened(sqlite_url)
    assert (found.begun, found.epochs) == (1, {"e": (2, "fenced", "server_restarted")})
    async with opened(sqlite_url) as (store, _):
        record = await store.episode("e")
    assert record is not None
    assert [call.index for call in record.record] == kept


async def test_the_store_goes_on_by_itself_when_there_is_room_again(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(began("e"))
        kept = await fill(store, "e")
        make_room()
        await store.write(Captured("e", node(len(kept), size=BIG)), ended("e"))
    (sample,) = (await reopened(sqlite_url)).pool
    assert len(sample.nodes) == len(kept) + 1
    said = [record.message.split()[0] for record in caplog.records]
    assert said.count("event=store_unavailable") == said.count("event=store_available") == 1


async def test_notes_of_a_failed_group_are_written_before_what_comes_later(sqlite_url: str) -> None:
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(began("e"))
        await fill(store, "e")
        store.note(began("later"))
        with pytest.raises(StoreUnavailable):
            await store.write(Captured("later", node(0, size=200 * BIG)))
        make_room()
        await store.write(Captured("later", node(0)), ended("later"))
    assert [sample.episode for sample in (await reopened(sqlite_url)).pool] == ["later"]


async def test_kept_notes_are_tried_again_without_another_write(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(began("e"))
        await fill(store, "e")
        store.note(*played("noted", calls=60), ended("noted"))
        store.note(Captured("e", node(999, size=200 * BIG)))
        with pytest.raises(StoreUnavailable):
            await store.write(Captured("e", node(998, size=200 * BIG)))
        make_room()

        async def noted() -> bool:
            return any(e.id == "noted" and e.state == "ended" for e in (await store.episodes(5)).episodes)

        await eventually(noted, bool)


async def test_notes_are_kept_up_to_a_bound_and_it_is_said(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "NOTES_KEPT", 3)
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(began("e"))
        await fill(store, "e")
        for number in range(5):
            store.note(began(f"n{number}"), Captured(f"n{number}", node(0, size=100 * BIG)))
        with pytest.raises(StoreUnavailable):
            await store.write(Captured("e", node(998, size=BIG)))
        assert "event=store_dropped_note dropped=2" in caplog.text
        make_room()
        await store.write()
    assert (await reopened(sqlite_url)).begun == 1 + 3


async def test_nothing_is_acknowledged_of_an_episode_whose_beginning_was_given_up(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "NOTES_KEPT", 1)
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(began("e"))
        await fill(store, "e")
        for name in ("lost", "kept"):
            store.note(began(name), Captured(name, node(9, size=100 * BIG)))
        with pytest.raises(StoreUnavailable):
            await store.write(Captured("lost", node(0, size=200 * BIG)))
        make_room()
        prepared = Prepared("lost", 1.0, None, 1.0, None, None)
        for change in (Captured("lost", node(0)), prepared, ended("lost")):
            with pytest.raises(StoreUnavailable, match="never began"):
                await store.write(change)
        await store.write(ended("kept"))
    assert [sample.episode for sample in (await reopened(sqlite_url)).pool] == ["kept"]


async def test_garbage_that_cannot_be_collected_stops_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bool:
        raise ValueError("a row that makes no sense")

    monkeypatch.setattr(writer.garbage, "collect", broken)
    async with opened(sqlite_url) as (store, _):
        await store.write(began("e"), ended("e"))
        async with asyncio.timeout(5):
            await store.write(InStep(1, ("e",)))
        assert "event=store_garbage_left reason='a row that makes no sense'" in caplog.text


async def test_a_step_is_synced_and_a_call_is_not(sqlite_url: str) -> None:
    levels: list[str] = []
    async with opened(sqlite_url) as (store, _):

        def seen(_: object, __: object, statement: str, *___: object) -> None:
            if "synchronous" in statement:
                levels.append(statement)

        sa.event.listen(store._engine, "before_cursor_execute", seen)
        await store.write(*played("a"), ended("a"))
        await store.write(InStep(1, ("a",)))
        await store.write(began("b"))
    assert levels == ["PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL"]


async def test_a_commit_that_arrived_though_the_connection_broke_is_no_failure(sqlite_url: str) -> None:
    async with opened(sqlite_url) as (store, _):
        broken: list[int] = []

        def breaks(connection: sa.Connection) -> None:
            """Commit, then lose the answer."""
            if not broken and connection.connection.in_transaction:
                broken.append(1)
                connection.connection.commit()
                raise sa.exc.OperationalError("COMMIT", None, RuntimeError("the connection was lost"))

        sa.event.listen(store._engine, "commit", breaks)
        await store.write(*played("a"), ended("a"))
        assert broken
        sa.event.remove(store._engine, "commit", breaks)
        await store.write(*played("b"), ended("b"))
    assert [sample.episode for sample in (await reopened(sqlite_url)).pool] == ["a", "b"]


async def test_a_commit_nobody_knows_the_end_of_stops_the_store_until_a_restart(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database went away during a commit and stayed away: no later write may be built on a guess."""
    monkeypatch.setattr(writer, "DOUBT_S", 0.0)
    async with opened(sqlite_url) as (store, _):
        gone: list[int] = []

        def goes(_: object) -> None:
            gone.append(1)
            raise sa.exc.OperationalError("COMMIT", None, RuntimeError("the connection was lost"))

        def away(*_: object) -> None:
            if gone:
                raise sa.exc.OperationalError("CONNECT", None, RuntimeError("nobody answers"))

        await store.write(*played("a"), ended("a"))
        sa.event.listen(store._engine, "commit", goes)
        sa.event.listen(store._engine, "do_connect", away)
        with pytest.raises(StoreUnavailable, match=r"went away during a commit.*restart the server"):
            await store.write(*played("b"), ended("b"))
        sa.event.remove(store._engine, "commit", goes)
        sa.event.remove(store._engine, "do_connect", away)
        with pytest.raises(StoreUnavailable, match="restart the server"):
            await store.write(*played("c"), ended("c"))
    assert [sample.episode for sample in (await reopened(sqlite_url)).pool] == ["a"]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)  # SQLite has no connection to cut
async def test_a_connection_that_is_cut_is_made_anew(url: str) -> None:
    engine = sa.create_engine(url)
    cut = sa.text(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where pid <> pg_backend_pid() and datname = current_database()"
    )
    async with opened(url) as (store, _):
        await store.write(*played("a"), ended("a"))
        with engine.connect() as connection:
            connection.execute(cut)
        with pytest.raises(StoreUnavailable, match="terminating connection"):
            await store.write(*played("b"), ended("b"))
        await store.write(*played("b"), ended("b"))
        assert len((await store.episodes(5)).episodes) == 2
    engine.dispose()
    assert [sample.episode for sample in (await reopened(url)).pool] == ["a", "b"]


KILLED = """
import asyncio, sys
from tests.swarm.server.support import eventually
from tests.swarm.store.support import began, ended, job, node, HERE
from swarm.store import Captured, open_store

async def play(store, name):
    await store.write(began(name))
    for place in range(3):
        await store.write(Captured(name, node(place)))
        print(name, place, flush=True)
    await store.write(ended(name))
    print(name, "ended", flush=True)

async def main():
    store, _ = open_store(sys.argv[1], job(), HERE)
    for round in range(1000):
        await asyncio.gather(*(play(store, f"{round}-{n}") for n in range(8)))

asyncio.run(main())
"""


def acknowledged_before_a_kill(url: str, after: int) -> list[tuple[str, str]]:
    """Write in another process, kill it after so many acknowledgements, return all it gave."""
    process = subprocess.Popen([sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(after)]
    process.kill()
    lines += [line for line in process.stdout if line.endswith("\n")]
    process.wait()
    return [(name, what) for name, _, what in (line.strip().partition(" ") for line in lines)]


@pytest.mark.parametrize("after", [2, 45, 100])
async def test_what_was_acknowledged_survives_a_kill(url: str, after: int) -> None:
    acknowledged = await asyncio.to_thread(acknowledged_before_a_kill, url, after)
    found = await reopened(url)
    pool = {sample.episode for sample in found.pool}
    assert {name for name, what in acknowledged if what == "ended"} <= pool
    assert all(len(sample.nodes) == 3 for sample in found.pool)
    async with opened(url) as (store, _):
        for name, what in acknowledged:
            record = await store.episode(name)
            assert record is not None
            assert what == "ended" or int(what) < len(record.record)
