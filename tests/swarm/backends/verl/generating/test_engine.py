"""What the engine does with replicas that answer, die, rest and come back: over fakes, which are no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from swarm.backends.protocols import Chunk, GenerationRequest, RequestLost, Sampling
from swarm.backends.verl import engine as engine_module
from swarm.backends.verl import processes
from swarm.backends.verl.backend import _use_devices
from swarm.backends.verl.engine import OutputQueue, ReplicaInstance, ReplicatedEngine, Router
from swarm.backends.verl.types import Delivery, GenerateCommand, ReplicaDied
from swarm.rendering.messages import BackendError, RequestRefused


class World:
    """An engine over fakes, all of which are remembered in the order in which they were made."""

    def __init__(self, replicas: int, prepare: Callable[[FakeReplica], None] = lambda fake: None) -> None:
        self.made: list[FakeReplica] = []
        self._prepare = prepare
        self.engine = ReplicatedEngine(self._make, replicas, 32, 100)

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

    async def open(self, number: int = 0) -> asyncio.Task[list[Chunk]]:
        task = self.ask()
        await until(lambda: self.made[number].orders)
        return task


def request(session: str = "", name: str = "r", ids: tuple[int, ...] = (1, 2), **how: object) -> GenerationRequest:
    return GenerationRequest(name, ids, Sampling(**{"max_tokens": 5, **how}), session)  # type: ignore[arg-type]


async def until(there: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not there():  # noqa: ASYNC110 - nothing tells when it is so
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_PAUSE_S", 0.0)
    monkeypatch.setattr(engine_module, "MOST_DEATHS", 2)
    monkeypatch.setattr(processes, "POLL_S", 0.001)


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
    done = await two.open()
    two.made[0].answer()
    await done
    assert len(two.made[0].cancelled) == 1


async def test_a_dead_replica_s_requests_are_lost_and_it_comes_back_with_the_published_weights(two: World) -> None:
    await asyncio.to_thread(two.engine.publish, 1, ["bucket"])
    first, second = two.ask(), two.ask()
    await until(lambda: all(fake.orders for fake in two.made))
    dying, living = two.made
    dying.die()
    with pytest.raises(RequestLost, match="it was shot"):
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


async def test_weights_that_cannot_be_loaded_end_the_engine_with_the_reason(two: World) -> None:
    waiting = two.ask()
    await until(lambda: any(fake.orders for fake in two.made))
    two.made[1].unloadable = True
    with pytest.raises(BackendError, match=r"version 1 .*missed lm_head"):
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
    await until(lambda: not world.engine._serving_instances())
    waiting = world.ask()
    await until(world.engine.failure)
    assert "all 2 replicas are dead" in (world.engine.failure() or "")
    with pytest.raises(BackendError) as caught:
        await waiting
    assert str(caught.value) == world.engine.failure()
    await world.engine.stop()


async def test_a_boot_that_fails_is_told_and_leaves_nothing() -> None:
    world = World(2, lambda fake: setattr(fake, "unbootable", fake.number == 1))
    with pytest.raises(BackendError, match="replica 1: no memory"):
        await world.engine.start()
    assert all(fake.dead for fake in world.made)
    assert len(world.made) == 2


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
    waiting = await two.open()
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
async def test_what_cannot_be_answered_reaches_no_replica(two: World, asked: GenerationRequest, said: str) -> None:
    with pytest.raises(RequestRefused, match=said):
        await anext(two.engine.generate(asked))
    assert not any(fake.orders for fake in two.made)


async def test_requests_wait_while_replicas_rest_and_go_on_with_the_next_weights(two: World) -> None:
    before = await two.open()
    await asyncio.to_thread(two.engine.sleep)
    assert [fake.resting for fake in two.made] == [True, True]
    meanwhile = await two.open(1)
    await asyncio.to_thread(two.engine.publish, 1, ["bucket"])
    assert [fake.resting for fake in two.made] == [False, False]
    for fake in two.made:
        fake.answer()
    assert [chunk.version for each in await asyncio.gather(before, meanwhile) for chunk in each] == [1, 1]


def test_a_replica_that_rests_may_be_silent() -> None:
    life = ReplicaInstance(FakeReplica(0, 0), open={1: OutputQueue()})
    life.heard -= 2.0
    assert life.is_silent(1.0)
    life.sleeping = True
    assert not life.is_silent(1.0)


@pytest.mark.parametrize("how", ["before", "while it is laid down", "while it rests"])
async def test_who_dies_is_made_again_once_the_learner_s_turn_is_over(two: World, how: str) -> None:
    dying, living = two.made
    lost = two.ask()
    await until(lambda: dying.orders)
    dying.restless = how == "while it is laid down"
    dying.dead = how == "before"
    await asyncio.to_thread(two.engine.sleep)
    dying.die()
    with pytest.raises(RequestLost):
        await lost
    again = two.ask()
    await until(lambda: living.orders)
    await asyncio.sleep(0.02)
    assert not any(fake.number == 0 and fake.booted for fake in two.made[1:])
    await asyncio.to_thread(two.engine.publish, 1, [])
    living.answer()
    assert (await again)[0].version == 1
    await until(lambda: len(two.engine._serving_instances()) == 2)
    assert two.last(0).loaded == [1]
    assert two.engine.failure() is None


async def test_what_is_over_does_not_rest_and_who_waits_is_told(two: World) -> None:
    await asyncio.to_thread(two.engine.sleep)
    waiting = await two.open()
    two.engine.fail("the learner died")
    with pytest.raises(BackendError, match="the learner died"):
        await waiting
    with pytest.raises(BackendError, match="the learner died"):
        two.engine.sleep()


class FakeLearner:
    """Has weights of a version to hand over, unless it is dead."""

    version = 1

    def __init__(self, *, dead: bool = False) -> None:
        self.dead = dead

    def export_weights(self) -> list[str]:
        if self.dead:
            raise BackendError("rank 0 of the learner died")
        return ["of version 1"]


def turn(world: World, learner: FakeLearner, update: Callable[[], None]) -> None:
    with _use_devices(learner, world.engine):  # type: ignore[arg-type]
        assert all(fake.resting for fake in world.made)
        update()


def failing() -> None:
    raise BackendError("it broke down")


async def test_an_update_that_fails_has_the_weights_of_before_serve_again(two: World) -> None:
    waiting = await two.open()
    with pytest.raises(BackendError, match="it broke down"):
        await asyncio.to_thread(turn, two, FakeLearner(), failing)
    assert [fake.loaded for fake in two.made] == [[1], [1]]
    two.made[0].answer()
    assert (await waiting)[0].version == 1


async def test_an_update_whose_weights_are_lost_leaves_no_request_waiting(two: World) -> None:
    waiting = await two.open()
    with pytest.raises(BackendError, match="it broke down"):
        await asyncio.to_thread(turn, two, FakeLearner(dead=True), failing)
    for ended in (waiting, two.ask()):
        with pytest.raises(BackendError, match=r"it broke down; .*rank 0"):
            await ended


def test_the_session_that_asked_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "MOST_SESSIONS", 2)
    router = Router()
    for session, load in (("a", {0: 0, 1: 1}), ("b", {0: 0, 1: 1}), ("a", {0: 0, 1: 1}), ("c", {0: 0, 1: 1})):
        router.choose(session, load)
    assert len(router._places) == 2
    assert router.choose("a", {0: 9, 1: 0}) == 0
    assert router.choose("b", {0: 9, 1: 0}) == 1


class FakeReplica:
    """Answers each order with id 1, its number and its life, when told to (`answer`)."""

    def __init__(self, number: int, life: int) -> None:
        self.number, self.life = number, life
        self.version = 0
        self.orders: dict[int, GenerateCommand] = {}
        self.cancelled: list[int] = []
        self.loaded: list[int] = []
        self.unbootable = self.dead = self.unloadable = False
        self.booted = self.resting = self.restless = False
        self.asleep_until: asyncio.Event | None = None
        self._found: asyncio.Queue[Delivery | None] = asyncio.Queue()

    async def boot(self) -> None:
        if self.asleep_until:
            await self.asleep_until.wait()
        if self.unbootable:
            raise BackendError("no memory for it")
        self.booted = True

    def submit(self, order: GenerateCommand) -> None:
        self.orders[order.key] = order

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)
        self.orders.pop(key, None)

    def answer(self, *, finish: bool = True) -> None:
        assert not self.resting
        for key in list(self.orders):
            chunk = Chunk((1, self.number, self.life), (-1.0,) * 3, self.version, "stop" if finish else None)
            self._found.put_nowait(Delivery(key, chunk))
            if finish:
                del self.orders[key]

    def lose(self, reason: str) -> None:
        for key in list(self.orders):
            self._found.put_nowait(Delivery(key, None, reason))
            del self.orders[key]

    def die(self) -> None:
        self.dead = True
        self._found.put_nowait(None)

    async def take(self) -> Sequence[Delivery]:
        found = await self._found.get()
        if found is None or self.dead:
            raise ReplicaDied("it was shot")
        return [found]

    def load(self, version: int, buckets: Sequence[Any]) -> None:
        if self.dead:
            raise ReplicaDied("it was shot")
        if self.unloadable:
            raise BackendError("expected all weights, missed lm_head")
        self.version = version
        self.resting = False
        self.loaded.append(version)

    def sleep(self) -> None:
        if self.dead:
            raise ReplicaDied("it was shot")
        if self.restless:
            raise BackendError("vLLM could not sleep")
        self.resting = True

    def kill(self) -> None:
        self.dead = True
