"""Clients come, leave and come back at any moment: a call is trained if and only if somebody was given its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.fake import EOS_ID, FakeBackend
from swarm.backends.protocols import Sampling
from swarm.calls.call import Call
from swarm.calls.prompts import SamplingPlan
from swarm.dialects.base import Reply
from swarm.errors import SwarmError
from swarm.rollout.episodes import LeasedEpisode
from swarm.rollout.keys import Claims
from swarm.rollout.rollout import Rollout
from swarm.rollout.state import StateMachine
from swarm.store import Captured, Closed, FakeStore, Withdrawn
from swarm.wire import BeginRequest, EndRequest, ServerState
from tests.swarm.server.support import DEADLINE_S, job

ACTIONS = (
    "come", "come announced", "come reading", "come reading announced", "leave", "hold", "release", "fail", "mend",
    "pause", "go on", "end",
)  # fmt: skip


@dataclass
class World:
    """One call of one episode, and its clients."""

    rollout: Rollout
    backend: FakeBackend
    store: FakeStore
    episode: LeasedEpisode
    call: Call
    streamed: bool
    clients: list[asyncio.Task[None]] = field(default_factory=list)
    given: list[Sequence[Reply]] = field(default_factory=list)
    ending: asyncio.Task[object] | None = None

    async def be_client(self, *, comes_back: bool, reads: bool) -> None:
        try:
            with self.call.attached(comes_back=comes_back):
                if reads:
                    async for _ in self.call.said():
                        await asyncio.sleep(0)
                self.given.append(await self.call.replies())
        except SwarmError:
            pass  # told what happened: that is an answer, but no reply

    def act(self, action: str) -> None:
        if action.startswith("come") and self.call.alive:
            client = self.be_client(comes_back="announced" in action, reads=self.streamed and "reading" in action)
            self.clients.append(asyncio.create_task(client))
        elif action == "leave" and self.clients:
            self.clients.pop(0).cancel()
        elif action == "end" and self.ending is None:
            claims = Claims("lease", episode=self.episode.id, epoch=1)
            self.ending = asyncio.create_task(self.rollout.end(claims, EndRequest(reward=1.0)))
        elif action in ("hold", "release"):
            getattr(self.store, action)()
        elif action in ("pause", "go on"):
            (self.rollout.gate.shut if action == "pause" else self.rollout.gate.open)()
        elif action in ("fail", "mend"):
            self.store.fail = "full" if action == "fail" else None


async def new_world(n: int, grace_s: float, streamed: bool) -> World:
    machine = StateMachine()
    for state in (ServerState.BOOTING, ServerState.ROLLING):
        machine.to(state)
    store = FakeStore()
    rollout, backend = Rollout(job(), machine, store), FakeBackend(job(), chunk_size=1)
    rollout.ledger.renderer = backend.renderer
    rollout.gate.open()
    episode = await rollout.begin(BeginRequest(task_id="t"))
    prompt = episode.tree.prompt([{"role": "user", "content": "hi"}])
    plan = SamplingPlan(Sampling(8, stop_ids=(EOS_ID,)), streamed=streamed)
    call = Call(rollout.ledger, backend, episode, prompt, plan, n=n, grace_s=grace_s)
    return World(rollout, backend, store, episode, call, streamed)


async def live(n: int, grace_s: float, streamed: bool, script: Sequence[tuple[int, str]]) -> World:
    world = await new_world(n, grace_s, streamed)
    for wait, action in script:
        for _ in range(wait):
            await asyncio.sleep(0)
        world.act(action)
    for action in ("go on", "release", "mend", "end"):
        world.act(action)
    assert world.ending is not None
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(world.ending, return_exceptions=True)
        world.ending = None
        world.act("end")  # again, for the first one may have met a full store
        assert world.ending is not None
        await world.ending
        await asyncio.gather(*world.clients, return_exceptions=True)
    return world


@given(
    script=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(ACTIONS)), max_size=14), n=st.integers(1, 2),
    grace_s=st.sampled_from((0.0, 30.0)), streamed=st.booleans(),
)  # fmt: skip
def test_a_call_is_trained_if_and_only_if_its_reply_was_given(
    script: list[tuple[int, str]], n: int, grace_s: float, streamed: bool
) -> None:
    world = asyncio.run(live(n, grace_s, streamed, [(0, "come announced"), *script]))
    nodes = world.episode.tree.nodes
    assert len(nodes) == (n if world.given else 0)
    assert all(replies == world.given[0] for replies in world.given)
    captured = [change.node for change in world.store.changes if isinstance(change, Captured)]
    withdrawn = [change.node for change in world.store.changes if isinstance(change, Withdrawn)]
    assert [node for node in captured if node not in withdrawn] == nodes
    order = [type(change) for change in world.store.changes]
    assert not {Captured, Withdrawn} & set(order[order.index(Closed) :]), "what ended stays as it is"
    assert (len(world.backend.engine.seen), world.backend.engine.active) <= (n, 0)
    assert (world.rollout.gate.in_flight, world.episode.calls) == (0, set())
