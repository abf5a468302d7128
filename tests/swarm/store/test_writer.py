"""The writer: what it does when the database takes nothing, and that nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
import sqlalchemy as sa

from swarm.errors import StoreRefused, StoreUnavailable
from swarm.store import database, writer
from swarm.store.changes import BatchScheduled, CallCaptured, Change, CheckpointSaved, EpisodeClosed, EpisodePrepared
from swarm.store.tables import TaskListRow
from swarm.store.writer import Store
from tests.swarm.server.support import eventually
from tests.swarm.store.support import began, ended, execute, node, opened, played, reopened, sample

CUT = sa.text(
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where pid <> pg_backend_pid() and datname = current_database()"
)
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
async def on_a_small_disk(url: str) -> AsyncIterator[tuple[Store, Callable[[], None]]]:
    """Open a store on a disk that is full after some calls; what comes with it makes room."""
    with ExitStack() as limit:
        limit.enter_context(room_for(200))
        async with opened(url) as (store, _):
            yield store, limit.close


async def fill(store: Store, name: str) -> list[int]:
    refusals: list[StoreUnavailable] = []
    for place in range(1000):
        try:
            await store.write(CallCaptured(name, node(place, size=BIG)))
        except StoreUnavailable as refusal:
            refusals.append(refusal)
            break
    assert (refusals[0].status, refusals[0].code) == (503, "store_unavailable")
    assert "database or disk is full; free space" in str(refusals[0])
    assert "\n" not in str(refusals[0])
    return list(range(place))


async def test_a_full_disk_loses_nothing_acknowledged_and_the_store_goes_on_by_itself_when_there_is_room_again(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(began("e"))
        kept = await fill(store, "e")
        make_room()
        await store.write(CallCaptured("e", node(len(kept), size=BIG)), ended("e"))  # the refused one is not there
    (sample,) = (await reopened(sqlite_url)).pool
    assert [call.index for call in sample.nodes] == [*kept, len(kept)]
    said = [record.message.split()[0] for record in caplog.records]
    assert said.count("event=store_unavailable") == said.count("event=store_available") == 1


async def test_kept_notes_are_tried_again_without_another_write(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.01)
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(began("e"))
        await fill(store, "e")
        store.note(*played("noted", calls=60), ended("noted"))
        store.note(CallCaptured("e", node(999, size=200 * BIG)))
        with pytest.raises(StoreUnavailable):
            await store.write(CallCaptured("e", node(998, size=200 * BIG)))
        make_room()

        async def noted() -> bool:
            return any(e.id == "noted" and e.state == "ended" for e in (await store.episodes(5)).episodes)

        await eventually(noted, bool)


@pytest.mark.slow
async def test_where_notes_are_lost_nothing_that_came_after_them_is_written(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sample whose dropping is lost must not be trained: what is there is what a kill then would have left."""
    monkeypatch.setattr(writer, "NOTES_KEPT", 3)
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(*played("kept"), ended("kept"), began("e"))
        await fill(store, "e")
        for number in range(5):
            store.note(began(f"n{number}"), CallCaptured(f"n{number}", node(0, size=100 * BIG)))
        with pytest.raises(StoreRefused, match=r"notes were lost \(more than 3\).*restart the server"):
            await store.write(CallCaptured("e", node(998, size=BIG)))
        assert "event=store_broken" in caplog.text
        make_room()
        for changes in ([began("later")], [BatchScheduled(1, ("kept",))], []):
            store.note(*changes)
            with pytest.raises(StoreRefused, match="notes were lost"):
                await store.write(*changes)
        assert "notes were lost" in str(store.broken)
    found = await reopened(sqlite_url)
    assert (found.begun, found.step, [sample.episode for sample in found.pool]) == (2, 0, ["kept"])


async def test_a_note_that_is_refused_is_a_note_that_is_lost(url: str) -> None:
    async with opened(url) as (store, _):
        await store.write(*played("a"), ended("a"))
        store.note(CallCaptured("nobody", node()))
        store.note(EpisodeClosed("a", "dropped", 1, reason="constant_group"))
        with pytest.raises(StoreRefused, match="is lost: episode nobody"):
            await store.write(BatchScheduled(1, ("a",)))
    found = await reopened(url)
    assert (found.step, [sample.episode for sample in found.pool]) == (0, ["a"])


async def test_what_comes_after_a_kept_note_waits_with_it_though_one_between_never_can(sqlite_url: str) -> None:
    """What was dropped must not be trained because the disk had room for the step, and not for the drop."""
    async with on_a_small_disk(sqlite_url) as (store, make_room):
        await store.write(*played("a"), ended("a"), began("e"))
        await fill(store, "e")
        store.note(EpisodeClosed("a", "dropped", 1, reason="stale"), CallCaptured("e", node(999, size=200 * BIG)))
        never, step = store.write(CallCaptured("nobody", node())), store.write(BatchScheduled(1, ("a",)))
        _, told = await asyncio.gather(never, step, return_exceptions=True)
        assert isinstance(told, StoreUnavailable)
        make_room()
    found = await reopened(sqlite_url)
    assert (found.step, found.pool, found.counts["drop_stale"]) == (0, [], 1)


@pytest.mark.parametrize("statement", ["drop table nodes", "alter table nodes rename column drift to other", None])
async def test_a_schema_that_is_not_this_versions_and_a_read_only_file_are_not_tried_again(
    url: str, statement: str | None
) -> None:
    if statement is None and not url.startswith("sqlite"):
        pytest.skip("a file alone can become read-only")
    async with opened(url) as (store, _):
        await store.write(*played("a"), ended("a"))
        if statement is None:
            sa.event.listen(store._engine, "begin", lambda c: c.exec_driver_sql("PRAGMA query_only=ON"))
        else:
            execute(url, statement)
        with pytest.raises(StoreRefused, match=r"for good: .*(nodes|drift|readonly).*restart") as refusal:
            await store.write(*played("b"))
        assert "\n" not in str(refusal.value)
        assert str(store.broken) == str(refusal.value)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_who_may_not_log_in_any_more_is_refused_for_good(url: str) -> None:
    role, engine = f"ajet_{uuid4().hex}", sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"create role {role} superuser login"))
        try:
            async with opened(sa.make_url(url).set(username=role).render_as_string(hide_password=False)) as (store, _):
                await store.write(*played("a"), ended("a"))
                connection.execute(sa.text(f"alter role {role} nologin"))
                connection.execute(CUT)
                with pytest.raises(StoreUnavailable, match="terminating connection"):
                    await store.write(*played("b"))
                with pytest.raises(StoreRefused, match=r"for good: .*not permitted"):
                    await store.write(*played("b"))
        finally:
            connection.execute(sa.text(f"reassign owned by {role} to postgres"))
            connection.execute(sa.text(f"drop role {role}"))
    engine.dispose()


async def test_garbage_that_cannot_be_collected_stops_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bool:
        raise ValueError("senseless")

    monkeypatch.setattr(writer.retention, "collect_garbage", broken)
    async with opened(sqlite_url) as (store, _):
        await store.write(began("e"), ended("e"))
        async with asyncio.timeout(120):
            await store.write(BatchScheduled(1, ("e",)))
        assert "event=store_garbage_left reason='senseless'" in caplog.text


FULL = ["PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL"]


@pytest.mark.parametrize(
    ("change", "levels"),
    [
        (BatchScheduled(1, ("a",)), FULL),
        (CheckpointSaved(0, "step-0"), FULL),
        (EpisodePrepared(sample("b")), FULL),
        (TaskListRow("a", "0" * 64, ("x",)), FULL),
        (replace(ended("b"), team=True), FULL),
        (EpisodeClosed("b", "aborted", 1, reason="its team aborted", team=True), FULL),
        (ended("b"), []),
        (CallCaptured("b", node(0)), []),
    ],
)
async def test_what_must_stand_through_a_loss_of_power_is_synced_and_a_call_is_not(
    sqlite_url: str, change: Change, levels: list[str]
) -> None:
    seen: list[str] = []

    def told(_: object, __: object, statement: str, *___: object) -> None:
        if "synchronous" in statement:
            seen.append(statement)

    async with opened(sqlite_url) as (store, _):
        await store.write(*played("a"), ended("a"), began("b"))
        sa.event.listen(store._engine, "before_cursor_execute", told)
        await store.write(change)
        await store.write(began("c"))
    assert seen == levels


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
        with pytest.raises(StoreRefused, match=r"during a commit.*restart"):
            await store.write(*played("b"), ended("b"))
        sa.event.remove(store._engine, "commit", goes)
        sa.event.remove(store._engine, "do_connect", away)
        with pytest.raises(StoreRefused, match="restart the server"):
            await store.write(*played("c"), ended("c"))
    assert [sample.episode for sample in (await reopened(sqlite_url)).pool] == ["a"]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)  # SQLite has no connection to cut
async def test_a_connection_that_is_cut_is_made_anew(url: str) -> None:
    engine = sa.create_engine(url)
    async with opened(url) as (store, _):
        await store.write(*played("a"), ended("a"))
        with engine.connect() as connection:
            connection.execute(CUT)
        with pytest.raises(StoreUnavailable, match="terminating connection"):
            await store.write(*played("b"), ended("b"))
        await store.write(*played("b"), ended("b"))
        assert len((await store.episodes(5)).episodes) == 2
    engine.dispose()
    assert [sample.episode for sample in (await reopened(url)).pool] == ["a", "b"]
