"""What the engine does with replicas that answer, die and come back: over fakes, which are no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest

from swarm.backends.protocols import (
    BackendError,
    Chunk,
    GenerationRequest,
    NoRoom,
    RequestLost,
    RequestRefused,
    Sampling,
)
from swarm.backends.verl.generating import engine as engine_module
from swarm.backends.verl.generating.engine import ReplicatedEngine
from tests.swarm.backends.verl.generating.fake_replica import FakeReplica


class World:
    """An engine over fakes, all of which are remembered in the order in which they were made."""

    def __init__(self, replicas: int, prepare: Callable[[FakeReplica], None] = lambda fake: None) -> None:
        self.made: list[FakeReplica] = []
        self._prepare = prepare
        self.engine = ReplicatedEngine(self._make, replicas, 32, 100, most_deaths=2)

    def _make(self, number: int, life: int) -> FakeReplica:
        fake = FakeReplica(number, life)
        self._prepare(fake)
        self.made.append(fake)
        return fake

    def last(self, number: int) -> FakeReplica:
        return [fake for fake in self.made if fake.number == number][-1]

    def ask(self, session: str = "", name: str = "r") -> asyncio.Task[list[Chunk]]:
        async def asked() -> list[Chunk]:
            return [chunk async for chunk in self.engine.generate(request(session, name))]

        return asyncio.ensure_future(asked())


def request(session: str = "", name: str = "r", ids: tuple[int, ...] = (1, 2), **how: object) -> GenerationRequest:
    return GenerationRequest(name, ids, Sampling(**{"max_tokens": 5, **how}), session)  # type: ignore[arg-type]


async def until(there: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not there():  # noqa: ASYNC110 - nothing tells when it is so
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_PAUSE_S", 0.0)


@pytest.fixture
async def two() -> AsyncIterator[World]:
    world = World(2)
    await world.engine.start()
    yield world
    await world.engine.stop()


async def test_requests_spread_and_sessions_stay(two: World) -> None:
    asked = [two.ask() for _ in range(4)]
    await until(lambda: sum(len(fake.orders) for fake in two.made) == 4)
    assert [len(fake.orders) for fake in two.made] == [2, 2]
    sticky = [two.ask("episode") for _ in range(3)]
    await until(lambda: sum(len(fake.orders) for fake in two.made) == 7)
    assert sorted(len(fake.orders) for fake in two.made) == [2, 5]
    for fake in two.made:
        fake.answer()
    await asyncio.gather(*asked, *sticky)


async def test_closing_the_iterator_tells_the_replica_and_finishing_does_not(two: World) -> None:
    async with aclosing(two.engine.generate(request())) as chunks:
        task = asyncio.ensure_future(anext(chunks))
        await until(lambda: two.made[0].orders)
        two.made[0].answer(finish=False)
        await task
    assert len(two.made[0].cancelled) == 1
    done = two.ask()
    await until(lambda: two.made[0].orders)
    two.made[0].answer()
    await done
    assert len(two.made[0].cancelled) == 1


async def test_a_dead_replica_s_requests_are_lost_and_it_comes_back_with_the_published_weights(two: World) -> None:
    await asyncio.to_thread(two.engine.publish, 1, ["bucket"])
    first, second = two.ask(), two.ask()
    await until(lambda: all(fake.orders for fake in two.made))
    dying, living = two.made
    dying.die()
    with pytest.raises(RequestLost, match="gone: it was shot"):
        await first
    living.answer()
    assert (await second)[0].ids == (1, living.number, 0)
    await until(lambda: len(two.made) == 3)
    heir = two.made[-1]
    await until(lambda: heir.loaded == [1])
    assert (heir.number, heir.life) == (dying.number, 1)
    third = [two.ask(), two.ask()]
    await until(lambda: heir.orders)
    heir.answer()
    living.answer()
    assert {chunk.version for each in await asyncio.gather(*third) for chunk in each} == {1}
    assert two.engine.failure() is None


async def test_a_replica_that_boots_while_it_is_published_serves_the_newest_alone(two: World) -> None:
    held = asyncio.Event()
    two._prepare = lambda fake: setattr(fake, "asleep_until", held)
    two.made[0].die()
    await until(lambda: len(two.made) == 3)
    for version in (1, 2):
        await asyncio.to_thread(two.engine.publish, version, [])
    assert two.engine.version == 2
    assert two.made[1].loaded == [1, 2]
    held.set()
    await until(lambda: two.made[2].loaded)
    assert two.made[2].loaded == [2]


async def test_who_dies_while_it_is_published_is_replaced_and_the_version_serves(two: World) -> None:
    two.made[0].dead = True
    await asyncio.to_thread(two.engine.publish, 1, [])
    assert two.engine.version == 1
    two.made[0].die()
    await until(lambda: len(two.made) == 3 and two.made[2].loaded == [1])


async def test_publishing_works_on_the_event_loop_too(two: World) -> None:
    two.engine.publish(1, [])
    assert [fake.loaded for fake in two.made] == [[1], [1]]


async def test_weights_that_cannot_be_loaded_end_the_engine_with_the_reason(two: World) -> None:
    waiting = two.ask()
    await until(lambda: any(fake.orders for fake in two.made))
    two.made[1].unloadable = True
    with pytest.raises(BackendError, match="version 1 could not be published: expected all weights, missed lm_head"):
        await asyncio.to_thread(two.engine.publish, 1, [])
    assert two.engine.version == 0
    for ended in (waiting, two.ask()):
        with pytest.raises(BackendError) as caught:
            await ended
        assert str(caught.value) == two.engine.failure()
        assert not isinstance(caught.value, RequestLost)


async def test_all_dead_beyond_repair_is_a_failure_and_who_waits_is_told() -> None:
    world = World(2)
    await world.engine.start()
    world._prepare = lambda fake: setattr(fake, "unbootable", True)
    for fake in list(world.made):
        fake.die()
    await until(lambda: not world.engine._serving())
    waiting = world.ask()
    await until(world.engine.failure)
    assert "all 2 replicas are dead beyond repair; the last: no memory for it" in (world.engine.failure() or "")
    with pytest.raises(BackendError) as caught:
        await waiting
    assert str(caught.value) == world.engine.failure()
    await world.engine.stop()


async def test_a_boot_that_fails_is_told_and_leaves_nothing() -> None:
    world = World(2, lambda fake: setattr(fake, "unbootable", fake.number == 1))
    with pytest.raises(BackendError, match="replica 1: no memory for it"):
        await world.engine.start()
    assert all(fake.dead for fake in world.made)
    assert len(world.made) == 2


async def test_stopping_ends_open_requests_and_it_starts_again(two: World) -> None:
    waiting = two.ask()
    await until(lambda: any(fake.orders for fake in two.made))
    await two.engine.stop()
    with pytest.raises(RequestLost, match="stopped"):
        await waiting
    with pytest.raises(RequestLost, match="stopped"):
        await two.ask()
    await two.engine.stop()
    await two.engine.start()
    assert len(two.made) == 4
    assert not any(fake.dead for fake in two.made[2:])


async def test_a_request_that_a_replica_loses_is_lost_alone(two: World) -> None:
    first, second = two.ask(), two.ask()
    await until(lambda: all(fake.orders for fake in two.made))
    two.made[0].lose("vLLM ended the answer early")
    two.made[1].answer()
    with pytest.raises(RequestLost, match="early"):
        await first
    await second


async def test_silence_while_requests_are_open_is_a_death(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SILENCE_S", -1.0)
    waiting = two.ask()
    await until(lambda: two.made[0].orders)
    two.made[0].answer(finish=False)
    with pytest.raises(RequestLost, match="no token came"):
        await waiting


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (request(name="x", ids=()), "request x: expected 1 to 31 prompt ids, found 0"),
        (request(ids=(1,) * 32), "expected 1 to 31 prompt ids, found 32"),
        (request(ids=(1, 100)), "prompt ids from 0 to 99.*found 100"),
        (request(ids=(-1,)), "prompt ids from 0 to 99.*found -1"),
        (request(max_tokens=0), "max_tokens of 1 or more, found 0"),
        (request(temperature=0.001), "temperature 0, or 0.01 to 2.0.*found 0.001"),
        (request(temperature=2.5), "temperature 0, or 0.01 to 2.0.*found 2.5"),
        (request(grammar="start: /a/"), "no grammar"),
    ],
)
async def test_what_cannot_be_answered_is_refused_before_a_replica_sees_it(
    two: World, asked: GenerationRequest, said: str
) -> None:
    with pytest.raises(RequestRefused, match=said):
        await anext(two.engine.generate(asked))
    assert not any(fake.orders for fake in two.made)


async def test_publishing_without_room_serves_the_older_version_and_succeeds_again(two: World) -> None:
    full, other = two.made
    full.full = 1
    with pytest.raises(NoRoom, match="version 1 waits for room: /tmp has no room"):
        await asyncio.to_thread(two.engine.publish, 1, ["bucket"])
    assert (two.engine.version, two.engine.failure(), full.loaded, full.dead) == (0, None, [], False)
    await asyncio.to_thread(two.engine.publish, 1, ["bucket"])
    assert (two.engine.version, full.loaded, other.loaded) == (1, [1], [1, 1])


async def test_a_replica_that_is_made_again_waits_for_room(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.backends.verl.processes.own_time.SLICE_S", 0.001)
    await asyncio.to_thread(two.engine.publish, 1, ["bucket"])
    two._prepare = lambda fake: setattr(fake, "full", 3)
    two.made[0].die()
    await until(lambda: len(two.made) == 3 and two.made[2].loaded == [1])
    await until(lambda: len(two.engine._serving()) == 2)
    assert len(two.made) == 3
