"""What the engine does while a learner has its replicas' devices: over fakes, which are no model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from swarm.backends.protocols import BackendError, NoRoom, RequestLost
from swarm.backends.verl.backend import _turn
from swarm.backends.verl.generating import engine as engine_module
from swarm.backends.verl.generating.places import Life, Mailbox
from swarm.backends.verl.processes import own_time
from tests.swarm.backends.verl.generating.fake_replica import FakeReplica
from tests.swarm.backends.verl.generating.test_engine import World, until


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_PAUSE_S", 0.0)
    monkeypatch.setattr(own_time, "SLICE_S", 0.001)


@pytest.fixture
async def two() -> AsyncIterator[World]:
    world = World(2)
    await world.engine.start()
    yield world
    await world.engine.stop()


async def test_requests_wait_while_replicas_rest_and_go_on_with_the_next_weights(two: World) -> None:
    before = two.ask()
    await until(lambda: two.made[0].orders)
    await asyncio.to_thread(two.engine.rest)
    assert [fake.resting for fake in two.made] == [True, True]
    meanwhile = two.ask()
    await until(lambda: two.made[1].orders)
    await asyncio.to_thread(two.engine.publish, 1, ["bucket"])
    assert [fake.resting for fake in two.made] == [False, False]
    for fake in two.made:
        fake.answer()
    assert [chunk.version for each in await asyncio.gather(before, meanwhile) for chunk in each] == [1, 1]


def test_a_replica_that_rests_may_be_silent() -> None:
    life = Life(FakeReplica(0, 0), open={1: Mailbox()})
    life.silence._seconds = 2.0
    assert life.silent(1.0)
    life.resting = True
    assert not life.silent(1.0)


async def test_who_rests_says_so_when_it_is_asked_for_log_probs(two: World) -> None:
    await asyncio.to_thread(two.engine.rest)
    assert two.engine.scored([[1, 2]], 1.0) == {0: "it rests", 1: "it rests"}
    await asyncio.to_thread(two.engine.publish, 1, [])
    assert two.engine.scored([[1, 2]], 1.0) == {0: (1, [[-1.0]]), 1: (1, [[-1.0]])}


@pytest.mark.parametrize("how", ["before", "while it is laid down", "while it rests"])
async def test_who_dies_is_made_again_once_the_learner_s_turn_is_over(two: World, how: str) -> None:
    dying, living = two.made
    lost = two.ask()
    await until(lambda: dying.orders)
    dying.restless = how == "while it is laid down"
    dying.dead = how == "before"
    await asyncio.to_thread(two.engine.rest)
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
    await until(lambda: len(two.engine._serving()) == 2)
    assert two.last(0).loaded == [1]
    assert two.engine.failure() is None


async def test_with_all_dead_requests_wait_for_those_that_are_made_after_the_turn(two: World) -> None:
    await asyncio.to_thread(two.engine.rest)
    for fake in list(two.made):
        fake.die()
    await until(lambda: not two.engine._serving())
    waiting = two.ask()
    await asyncio.to_thread(two.engine.publish, 1, [])
    await until(lambda: any(fake.orders for fake in two.made[2:]))
    for fake in two.made[2:]:
        fake.answer()
    assert (await waiting)[0].version == 1


async def test_a_turn_begins_once_who_boots_is_up_and_lays_it_down_too(two: World) -> None:
    held = asyncio.Event()
    two._prepare = lambda fake: setattr(fake, "asleep_until", held)
    two.made[0].die()
    await until(lambda: len(two.made) == 3)
    turn = asyncio.ensure_future(asyncio.to_thread(two.engine.rest))
    await asyncio.sleep(0.02)
    assert not turn.done()
    assert not two.made[1].resting
    held.set()
    await turn
    assert (two.made[1].resting, two.made[2].resting) == (True, True)


async def test_a_replica_that_does_not_come_up_holds_the_learner_up_within_a_bound(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    two._prepare = lambda fake: setattr(fake, "asleep_until", asyncio.Event())
    two.made[0].die()
    await until(lambda: len(two.made) == 3)
    monkeypatch.setattr(engine_module, "UP_S", 0.005)
    begun = time.monotonic()
    with pytest.raises(BackendError, match="expected what boots beside the learner to be up"):
        await asyncio.to_thread(two.engine.rest)
    assert time.monotonic() - begun < 5


async def test_without_room_for_one_replica_s_weights_it_rests_on_and_the_same_again_wakes_it(two: World) -> None:
    await asyncio.to_thread(two.engine.rest)
    two.made[1].full = 1
    with pytest.raises(NoRoom):
        await asyncio.to_thread(two.engine.publish, 1, [])
    assert [fake.resting for fake in two.made] == [False, True]
    await asyncio.to_thread(two.engine.publish, 1, [])
    assert [fake.resting for fake in two.made] == [False, False]


async def test_what_is_over_does_not_rest_and_who_waits_is_told(two: World) -> None:
    await asyncio.to_thread(two.engine.rest)
    waiting = two.ask()
    await until(lambda: two.made[0].orders)
    two.engine.fail("the learner died")
    with pytest.raises(BackendError, match="the learner died"):
        await waiting
    with pytest.raises(BackendError, match="the learner died"):
        two.engine.rest()


class FakeLearner:
    """Has weights of a version to hand over, unless it is dead."""

    version = 1

    def __init__(self, *, dead: bool = False) -> None:
        self.dead = dead

    def exported(self) -> list[str]:
        if self.dead:
            raise BackendError("rank 0 of the learner died")
        return ["of version 1"]


def turn(world: World, learner: FakeLearner, update: Callable[[], None]) -> None:
    with _turn(learner, world.engine):  # type: ignore[arg-type]
        assert all(fake.resting for fake in world.made)
        update()


def failing() -> None:
    raise BackendError("it broke down")


async def test_a_turn_that_ends_well_leaves_waking_to_who_publishes(two: World) -> None:
    await asyncio.to_thread(turn, two, FakeLearner(), lambda: None)
    assert all(fake.resting for fake in two.made)


async def test_an_update_that_fails_has_the_weights_of_before_serve_again(two: World) -> None:
    waiting = two.ask()
    await until(lambda: two.made[0].orders)
    with pytest.raises(BackendError, match="it broke down"):
        await asyncio.to_thread(turn, two, FakeLearner(), failing)
    assert [fake.loaded for fake in two.made] == [[1], [1]]
    two.made[0].answer()
    assert (await waiting)[0].version == 1


async def test_an_update_whose_weights_are_lost_leaves_no_request_waiting(two: World) -> None:
    waiting = two.ask()
    await until(lambda: two.made[0].orders)
    with pytest.raises(BackendError, match="it broke down"):
        await asyncio.to_thread(turn, two, FakeLearner(dead=True), failing)
    for ended in (waiting, two.ask()):
        with pytest.raises(
            BackendError, match=r"it broke down; the replicas, .* not be woken: rank 0 of the learner died"
        ):
            await ended
