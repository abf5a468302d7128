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
from swarm.backends.verl.engine import OutputQueue, ReplicaInstance, ReplicatedEngine
from swarm.backends.verl.replica import Delivery, GenerateCommand
from swarm.backends.verl.vllm import ReplicaDied
from swarm.rendering.messages import BackendError, RequestRefused


class FakeReplica:
    """Answers each order with id 1, its number and its life, when told to (`answer`)."""

    def __init__(self, number: int, life: int) -> None:
        self.number, self.life, self.version = number, life, 0
        self.orders: dict[int, GenerateCommand] = {}
        self.cancelled: list[int] = []
        self.loaded: list[int] = []
        self.booted = self.resting = self.dead = False
        self.refusals: dict[str, BackendError] = {}
        """What a method raises, by its name."""
        self.may_boot = asyncio.Event()
        self.may_boot.set()
        self._found: asyncio.Queue[Delivery | None] = asyncio.Queue()

    def _called(self, method: str) -> None:
        if self.dead:
            raise ReplicaDied("it was shot")
        if method in self.refusals:
            raise self.refusals[method]

    async def boot(self) -> None:
        await self.may_boot.wait()
        self._called("boot")
        self.booted = True

    def submit(self, order: GenerateCommand) -> None:
        self.orders[order.key] = order

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)
        self.orders.pop(key, None)

    def answer(self, *, finish: bool = True, lost: str = "") -> None:
        assert not self.resting
        chunk = Chunk((1, self.number, self.life), (-1.0,) * 3, self.version, "stop" if finish else None)
        for key in list(self.orders):
            self._found.put_nowait(Delivery(key, None if lost else chunk, lost))
            if finish:
                del self.orders[key]

    def die(self) -> None:
        self.dead = True
        self._found.put_nowait(None)

    async def take(self) -> Sequence[Delivery]:
        found = await self._found.get()
        self._called("take")
        assert found is not None
        return [found]

    def load(self, version: int, buckets: Sequence[Any]) -> None:
        self._called("load")
        self.version, self.resting = version, False
        self.loaded.append(version)

    def sleep(self) -> None:
        self._called("sleep")
        self.resting = True

    def kill(self) -> None:
        self.dead = True


class World:
    """An engine over fakes, all of which are remembered in the order in which they were made."""

    def __init__(self, prepare: Callable[[FakeReplica], None] = lambda fake: None) -> None:
        self.made: list[FakeReplica] = []
        self.prepare = prepare
        self.engine = ReplicatedEngine(self._make, 2, 32, 100)

    def _make(self, number: int, life: int) -> FakeReplica:
        self.made.append(FakeReplica(number, life))
        self.prepare(self.made[-1])
        return self.made[-1]

    def ask(self, session: str = "") -> asyncio.Task[list[Chunk]]:
        async def asked() -> list[Chunk]:
            return [chunk async for chunk in self.engine.generate(request(session))]

        return asyncio.ensure_future(asked())

    async def open(self, number: int = 0) -> asyncio.Task[list[Chunk]]:
        """Ask, and return once that replica was asked."""
        task = self.ask()
        await until(lambda: self.made[number].orders)
        return task

    async def publish(self, version: int) -> None:
        await asyncio.to_thread(self.engine.publish, version, ["bucket"])


def request(session: str = "", **how: object) -> GenerationRequest:
    return GenerationRequest("r", (1, 2), Sampling(**{"max_tokens": 5, **how}), session)  # type: ignore[arg-type]


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
    world = World()
    await world.engine.start()
    yield world
    await world.engine.stop()


async def test_it_stops_though_something_is_brought_in_that_moment() -> None:
    # asyncio.wait_for of Python 3.11 returns it then, and forgets that it was cancelled

    async def take() -> Sequence[Delivery]:
        try:
            return await asyncio.Future[Sequence[Delivery]]()
        except asyncio.CancelledError:
            return []

    world = World(lambda fake: setattr(fake, "take", take))
    await world.engine.start()
    await asyncio.wait_for(world.engine.stop(), 60)
    assert all(fake.dead for fake in world.made)


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
    await two.publish(1)
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
    two.prepare = lambda fake: setattr(fake, "may_boot", held)
    two.made[0].die()
    await until(lambda: len(two.made) == 3)
    for version in (1, 2):
        await two.publish(version)
    assert two.engine.version == 2
    assert two.made[1].loaded == [1, 2]
    held.set()
    await until(lambda: two.made[2].loaded)
    assert two.made[2].loaded == [2]


async def test_who_dies_while_it_is_published_is_replaced_and_the_version_serves(two: World) -> None:
    two.made[0].dead = True
    await two.publish(1)
    assert two.engine.version == 1
    two.made[0].die()
    await until(lambda: len(two.made) == 3 and two.made[2].loaded == [1])


async def test_weights_that_cannot_be_loaded_end_the_engine_with_the_reason(two: World) -> None:
    waiting = await two.open()
    two.made[1].refusals["load"] = BackendError("missed lm_head")
    with pytest.raises(BackendError, match=r"version 1 .*missed lm_head"):
        await two.publish(1)
    assert two.engine.version == 0
    await ended(two, waiting, two.ask())


async def ended(world: World, *asked: asyncio.Task[list[Chunk]]) -> None:
    """Expect that the engine is over, and whoever asked is told why."""
    for each in asked:
        with pytest.raises(BackendError) as caught:
            await each
        assert str(caught.value) == world.engine.failure()
        assert not isinstance(caught.value, RequestLost)


async def test_all_dead_beyond_repair_is_a_failure_and_who_waits_is_told(two: World) -> None:
    two.prepare = lambda fake: fake.refusals.update(boot=BackendError("no memory"))
    for fake in list(two.made):
        fake.die()
    await until(lambda: not two.engine._serving_instances())
    waiting = two.ask()
    await until(two.engine.failure)
    assert "all 2 replicas are dead" in (two.engine.failure() or "")
    await ended(two, waiting)


async def test_a_boot_that_fails_is_told_and_leaves_nothing() -> None:
    world = World(lambda fake: fake.refusals.update({"boot": BackendError("no memory")} if fake.number else {}))
    with pytest.raises(BackendError, match="replica 1: no memory"):
        await world.engine.start()
    assert [fake.dead for fake in world.made] == [True, True]


async def test_a_request_that_a_replica_loses_is_lost_alone(two: World) -> None:
    first, second = two.ask(), two.ask()
    await until(lambda: all(fake.orders for fake in two.made))
    two.made[0].answer(lost="ended early")
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
        (request(temperature=0.001), "0.01 to 2.0.*found 0.001"), (request(temperature=2.5), "0.01 to 2.0.*found 2.5"),
        (request(grammar="start: /a/"), "no grammar"),
    ],
)  # fmt: skip
async def test_what_cannot_be_answered_reaches_no_replica(two: World, asked: GenerationRequest, said: str) -> None:
    with pytest.raises(RequestRefused, match=said):
        await anext(two.engine.generate(asked))
    assert not any(fake.orders for fake in two.made)


async def test_requests_wait_while_replicas_rest_and_go_on_with_the_next_weights(two: World) -> None:
    before = await two.open()
    await asyncio.to_thread(two.engine.sleep)
    assert [fake.resting for fake in two.made] == [True, True]
    meanwhile = await two.open(1)
    await two.publish(1)
    assert [fake.resting for fake in two.made] == [False, False]
    for fake in two.made:
        fake.answer()
    assert [chunk.version for each in await asyncio.gather(before, meanwhile) for chunk in each] == [1, 1]


async def test_the_time_of_a_boot_is_no_silence() -> None:
    world = World(lambda fake: fake.may_boot.clear())
    starting = asyncio.ensure_future(world.engine.start())
    await until(lambda: len(world.made) == 2)
    for slot, fake in zip(world.engine._slots, world.made, strict=True):
        assert slot.instance
        slot.instance.heard -= 2 * engine_module.SILENCE_S
        fake.may_boot.set()
    await starting
    for slot in world.engine._slots:
        assert slot.instance
        slot.instance.open[1] = OutputQueue()
        assert not slot.instance.is_silent(engine_module.SILENCE_S)
    await world.engine.stop()


def test_a_replica_that_rests_may_be_silent() -> None:
    life = ReplicaInstance(FakeReplica(0, 0), open={1: OutputQueue()})
    life.heard -= 2.0
    assert life.is_silent(1.0)
    life.sleeping = True
    assert not life.is_silent(1.0)


@pytest.mark.parametrize("how", ["before", "laid down", "while it rests"])
async def test_who_dies_is_made_again_once_the_learner_s_turn_is_over(two: World, how: str) -> None:
    dying, living = two.made
    lost = await two.open()
    if how == "laid down":
        dying.refusals["sleep"] = BackendError("vLLM could not sleep")
    dying.dead = how == "before"
    await asyncio.to_thread(two.engine.sleep)
    dying.die()
    with pytest.raises(RequestLost):
        await lost
    again = two.ask()
    await until(lambda: living.orders)
    await asyncio.sleep(0.02)
    assert not any(fake.number == 0 and fake.booted for fake in two.made[1:])
    await two.publish(1)
    living.answer()
    assert (await again)[0].version == 1
    await until(lambda: len(two.engine._serving_instances()) == 2)
    assert [fake.loaded for fake in two.made if fake.number == 0][-1] == [1]
    assert two.engine.failure() is None


async def test_what_is_over_does_not_rest_and_who_waits_is_told(two: World) -> None:
    await asyncio.to_thread(two.engine.sleep)
    waiting = await two.open()
    two.engine.fail("the learner died")
    await ended(two, waiting)
    with pytest.raises(BackendError, match="the learner died"):
        two.engine.sleep()


@pytest.mark.parametrize("dead", [False, True], ids=["kept", "lost"])
async def test_an_update_that_fails_leaves_no_request_waiting_whether_or_not_its_weights_are_lost(
    two: World, dead: bool
) -> None:
    class Learner:
        version = 1

        def export_version(self) -> list[str]:
            if dead:
                raise BackendError("rank 0 died")
            return ["of version 1"]

    def turn() -> None:
        with _use_devices(Learner(), two.engine):  # type: ignore[arg-type]
            assert all(fake.resting for fake in two.made)
            raise BackendError("it broke down")

    waiting = await two.open()
    with pytest.raises(BackendError, match="it broke down"):
        await asyncio.to_thread(turn)
    if dead:
        await until(two.engine.failure)
        assert "it broke down; the replicas" in (two.engine.failure() or "")
        await ended(two, waiting, two.ask())
        return
    assert [fake.loaded for fake in two.made] == [[1], [1]]
    two.made[0].answer()
    assert (await waiting)[0].version == 1


async def test_the_session_that_asked_longest_ago_is_forgotten_first(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "MOST_SESSIONS", 2)
    for session in "abac":
        two.engine._route(session, {0: 0, 1: 1})
    assert [two.engine._route(session, {0: 9, 1: 0}) for session in "ab"] == [0, 1]
