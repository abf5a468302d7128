"""Tests of untrained."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from swarm.backends.fake import EOS_ID, FakeBackend, FakeLearner
from swarm.backends.protocols import DiskFull, Sampling
from swarm.calls.call import Call, CallState
from swarm.calls.prompts import SamplingPlan
from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.client.rollout import MOST_MISPLAYS, AgentMisplays
from swarm.dialects.base import Reply
from swarm.errors import InvalidRequest, StoreUnavailable, SwarmError
from swarm.rollout.episodes import LeasedEpisode
from swarm.rollout.keys import Claims
from swarm.rollout.rollout import Rollout
from swarm.rollout.state import StateMachine
from swarm.store.changes import BatchScheduled, CallCaptured, CallWithdrawn, Change, CheckpointSaved, EpisodeClosed
from swarm.store.writer import Store
from swarm.timelines.node import TrainRow
from swarm.wire import BeginRequest, EndRequest, ServerState
from tests.swarm.conformance.support import saying
from tests.swarm.server.support import DEADLINE_S, MODEL, Answer, Served, eventually, job, serving
from tests.swarm.store.support import FakeStore

FULL = OSError(errno.ENOSPC, "No space left on device")
NO_DESCRIPTOR = OSError(errno.EMFILE, "Too many open files")


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoints/*/*"))


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("what", [BatchScheduled, CheckpointSaved, "save", "publish", "open"])
async def test_a_step_waits_for_room_wherever_it_lacks_and_is_learned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Any, staleness: int
) -> None:
    is_full, write, save, publish = [True], Store.write, FakeLearner.save, FakeBackend.publish
    lacking = {"save": FULL, "open": NO_DESCRIPTOR}

    async def writing(store: Store, *changes: Change) -> None:
        if is_full and isinstance(what, type) and any(isinstance(change, what) for change in changes):
            raise StoreUnavailable("disk full")
        await write(store, *changes)

    def saving(learner: FakeLearner, folder: Path) -> None:
        if is_full and what in lacking:
            (folder.parent / f"{folder.name}.part").mkdir()
            raise lacking[what]
        save(learner, folder)

    def publishing(backend: FakeBackend) -> None:
        if is_full and what == "publish":
            raise DiskFull("no room in /tmp")
        publish(backend)

    monkeypatch.setattr(Store, "write", writing)
    monkeypatch.setattr(FakeLearner, "save", saving)
    monkeypatch.setattr(FakeBackend, "publish", publishing)
    monkeypatch.setattr("swarm.training.loop.RETRY_S", (0.01, 0.01))
    waits = {name: f"for room: {error}" for name, error in lacking.items()} | {
        "publish": "for room to publish: no room"
    }
    async with serving(tmp_path, job(steps=3, checkpoint_every=1, max_staleness=staleness)) as served:
        await served.play_step()
        status = await eventually(served.status, lambda status: status["waiting"])
        assert status["waiting"].startswith(f"step 1 waits {waits.get(what, 'for the store: disk full')}")
        assert (status["state"], status["reason"], status["updating"]) == (
            "ROLLING" if staleness else "WEIGHT_SYNCING", None, True,
        )  # fmt: skip
        for task in "ccdd" if staleness else "":  # episodes go on meanwhile
            await served.play(task)
        is_full.clear()
        done = 2 if staleness else 1
        assert (await served.until(step=done, state="ROLLING", updating=False))["waiting"] is None
        assert saved(tmp_path) == [f"step-{step:06d}" for step in range(1, done + 1)]
        trained = [name for _, batch in served.backend.learner.trained for name, _ in batch]
        assert len(trained) == len(set(trained)) == 4 * done


ACTIONS = (
    "come", "come announced", "come reading", "come reading announced", "leave", "hold", "release", "fail", "mend",
    "pause", "go on", "end",
)  # fmt: skip


@dataclass
class World:
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
            with self.call.attach(comes_back=comes_back):
                if reads:
                    async for _ in self.call.stream_pieces():
                        await asyncio.sleep(0)
                self.given.append(await self.call.replies())
        except SwarmError:
            pass  # told what happened: that is an answer, but no reply

    def act(self, action: str) -> None:
        if action.startswith("come") and self.call.state is not CallState.FAILED:
            client = self.be_client(comes_back="announced" in action, reads=self.streamed and "reading" in action)
            self.clients.append(asyncio.create_task(client))
        elif action == "leave" and self.clients:
            self.clients.pop(0).cancel()
        elif action == "end" and self.ending is None:
            claims = Claims("lease", episode=self.episode.id, fencing_token=1)
            self.ending = asyncio.create_task(self.rollout.end(claims, EndRequest(reward=1.0)))
        elif action in ("hold", "release"):
            getattr(self.store, action)()
        elif action in ("pause", "go on"):
            (self.rollout.gate.shut if action == "pause" else self.rollout.gate.open)()
        elif action in ("fail", "mend"):
            self.store.fail = "full" if action == "fail" else None


async def new_world(n: int, streamed: bool) -> World:
    machine = StateMachine()
    for state in (ServerState.BOOTING, ServerState.ROLLING):
        machine.transition_to(state)
    store = FakeStore()
    rollout, backend = Rollout(job(), machine, store), FakeBackend(job(), chunk_size=1)
    rollout.renderer = backend.renderer
    rollout.gate.open()
    episode = await rollout.begin(BeginRequest(task_id="t"))
    prompt = episode.tree.prompt([{"role": "user", "content": "hi"}])
    plan = SamplingPlan(Sampling(8, stop_ids=(EOS_ID,)), streamed=streamed)
    call = Call(rollout, backend, episode, prompt, plan, n=n)
    return World(rollout, backend, store, episode, call, streamed)


async def live(n: int, streamed: bool, script: Sequence[tuple[int, str]]) -> World:
    world = await new_world(n, streamed)
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
    with patch("swarm.calls.call.GRACE_S", grace_s):
        world = asyncio.run(live(n, streamed, [(0, "come announced"), *script]))
    nodes = world.episode.tree.nodes
    assert len(nodes) == (n if world.given else 0)
    assert all(replies == world.given[0] for replies in world.given)
    captured = [change.node for change in world.store.changes if isinstance(change, CallCaptured)]
    withdrawn = [change.node for change in world.store.changes if isinstance(change, CallWithdrawn)]
    assert [node for node in captured if node not in withdrawn] == nodes
    order = [type(change) for change in world.store.changes]
    assert not {CallCaptured, CallWithdrawn} & set(order[order.index(EpisodeClosed) :]), "what ended stays as it is"
    assert (len(world.backend.engine.seen), world.backend.engine.active) <= (n, 0)
    assert (world.rollout.gate.in_flight, world.episode.calls) == (0, set())


SAYS = ("first", "second", "third", "fourth")
ASKED = {
    "chat": ("/v1/chat/completions", {}),
    "responses": ("/v1/responses", {}),
    "messages": ("/v1/messages", {"max_tokens": 99}),
}
WAYS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "field": ({"train": False}, {}),
    "header": ({}, {"x-ajet-train": "false"}),
    "both": ({"train": True}, {"x-ajet-train": "false"}),
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, job(max_tokens=50, steps=3), script=saying(*SAYS)) as one:
        yield one


async def ask(
    served: Served, lease: dict[str, Any], turns: int, *, protocol: str = "chat", way: str | None = None, **fields: Any
) -> Answer:
    """Send what was said in the first turns, and one question more."""
    messages = [
        message
        for said in SAYS[:turns]
        for message in ({"role": "user", "content": "ask"}, {"role": "assistant", "content": said})
    ]
    messages.append({"role": "user", "content": "ask"})
    path, needed = ASKED[protocol]
    more, headers = WAYS[way] if way is not None else ({}, {})
    told = "input" if protocol == "responses" else "messages"
    body = {"model": MODEL, told: messages, **needed, **more, **fields}
    return await served.call("POST", path, lease["api_key"], body, **headers)


async def fill(served: Served, *leases: dict[str, Any]) -> None:
    for lease in leases:
        assert (await served.end(lease)).status == 200
    for task in ["t"] * (2 - len(leases)) + ["u", "u"]:
        await served.play(task)


def learned(served: Served, lease: dict[str, Any]) -> list[list[str]]:
    (episode,) = [one for one in served.backend.learner.batches[0].episodes if one.episode_id == lease["episode_id"]]
    return [_texts(row) for row in episode.rows]


def _texts(row: TrainRow) -> list[str]:
    texts, before = [], 0
    for token, mark in zip(row.ids, row.sampled, strict=True):
        if mark and not before:
            texts.append(b"")
        if mark and token < 256:
            texts[-1] += bytes([token])
        before = mark
    return [text.decode() for text in texts]


@pytest.mark.parametrize(
    ("protocol", "way", "merged"),
    [
        *((protocol, way, "tree") for protocol, way in zip(ASKED, WAYS, strict=True)),
        ("chat", "field", "linear"), ("chat", "field", "none"),
    ],
)  # fmt: skip
async def test_what_it_sampled_is_context_for_what_goes_on_from_it(
    tmp_path: Path, protocol: str, way: str, merged: str
) -> None:
    async with serving(tmp_path, job(max_tokens=50, merging=merged), script=saying(*SAYS)) as served:
        lease = await served.begin()
        for turn, how in enumerate((None, way, None, way)):
            assert (await ask(served, lease, turn, protocol=protocol, way=how)).status == 200
        await fill(served, lease)
        status = await served.until(step=1)
        assert learned(served, lease) == ([["first"], ["third"]] if merged == "none" else [["first", "third"]])
        assert status["metrics"]["calls/untrained"] == 2.0
        trained = sum(row.sampled.count(1) for one in served.backend.learner.batches[0].episodes for row in one.rows)
        assert status["metrics"]["tokens/trained"] == trained
        assert served.rollout.counts["calls_untrained"] == 2


async def test_a_header_that_says_neither_is_refused_by_its_name(served: Served) -> None:
    lease = await served.begin()
    refused = await served.chat(lease, headers={"x-ajet-train": "no"})
    assert (refused.status, refused.body["error"]["param"]) == (400, "x-ajet-train")


HEADER, KEY, BOTH = "header", "key", "both"
TRAINS_SOLVER = job(max_tokens=50, train_agents=["solver"])


@pytest.fixture
async def training_solver(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, TRAINS_SOLVER, script=saying(*SAYS)) as running:
        yield running


async def ask_as(served: Served, lease: dict[str, Any], agent: str, way: str = KEY, **sent: Any) -> tuple[int, Any]:
    key = lease["api_key"] + (f"/{agent}" if agent and way in (KEY, BOTH) else "")
    headers = {"x-ajet-agent": agent} if way in (HEADER, BOTH) else {}
    answer = await served.chat({"api_key": key}, "ask", headers=headers, **sent)
    return answer.status, answer.body


@pytest.mark.parametrize("way", [HEADER, KEY, BOTH])
async def test_only_the_named_agents_calls_are_trained_however_it_is_named(training_solver: Served, way: str) -> None:
    leases = [await training_solver.begin(task) for task in "ttuu"]
    for lease in leases:
        for agent in ("solver", "critic", ""):
            assert (await ask_as(training_solver, lease, agent, way))[0] == 200
        assert (await training_solver.end(lease, 1.0)).status == 200
    status = await training_solver.until(step=1)
    record = (await training_solver.get(f"/episodes/{leases[0]['episode_id']}"))["record"]
    assert [(c.get("agent"), c["trained"]) for c in record] == [("solver", True), ("critic", False), (None, False)]
    (batch,) = training_solver.backend.learner.batches
    assert {call for episode in batch.episodes for row in episode.rows for call in row.calls} <= {-1, 0}
    assert [sum(row.sampled) for episode in batch.episodes for row in episode.rows] == [len(b"first") + 1] * 4
    metrics = status["metrics"]
    assert (metrics["agent/solver/calls"], metrics["calls/untrained"], metrics["num_turns/mean"]) == (4.0, 8.0, 1.0)
    assert training_solver.rollout.counts["calls_untrained"] == 8


async def test_an_agent_that_is_not_trained_is_sampled_as_it_likes(training_solver: Served) -> None:
    lease = await training_solver.begin()
    assert (await ask_as(training_solver, lease, "solver", temperature=0))[0] == 400
    assert (await ask_as(training_solver, lease, "critic", temperature=0))[0] == 200


async def test_an_episode_without_a_call_of_those_that_are_trained_is_refused_and_stays_open(
    training_solver: Served,
) -> None:
    """A name that is wrong would have the training wait for ever."""
    lease = await training_solver.begin()
    await ask_as(training_solver, lease, "Solver")
    for verb in ("end", "prepare"):
        answer = await training_solver.verb(lease, verb, {"reward": 1.0})
        assert (answer.status, answer.body["error"]["param"]) == (400, "train_agents")
        assert [name in answer.message for name in ("`train_agents`", "'solver'", "'Solver'")] == [True] * 3
    await ask_as(training_solver, lease, "solver")
    assert (await training_solver.end(lease)).status == 200


async def test_a_name_is_said_once_and_is_a_name(training_solver: Served) -> None:
    lease = await training_solver.begin()
    answer = await training_solver.chat({"api_key": f"{lease['api_key']}/critic"}, headers={"x-ajet-agent": "solver"})
    assert answer.status == 400
    assert [name in answer.message for name in ("x-ajet-agent", "'solver'", "'critic'")] == [True] * 3
    for name in ("x" * 65, "two%0Alines"):
        assert (await ask_as(training_solver, lease, name))[0] == 400


@pytest.mark.parametrize("name", ["solver", "a/b", "the solver", "Löser", "100%"])
async def test_a_client_names_an_agent_by_key(training_solver: Served, name: str) -> None:
    async with AsyncSwarmClient(training_solver.url, training_solver.server.keys.role_key("client")) as client:
        episode = await client.begin(NamedTask("t"), kind="eval")
        await episode.chat([{"role": "user", "content": "ask"}], agent=name)
        openai = AsyncOpenAI(base_url=episode.base_url, api_key=episode.key_of(name))
        async with openai:
            await openai.chat.completions.create(model=episode.model, messages=[{"role": "user", "content": "ask"}])
        await episode.end(1.0)
        found = await client.episode(episode.id)
    assert [call.agent for call in found.record] == [name, name]


async def test_an_agent_whose_name_is_wrong_is_refused_after_a_few_plays(training_solver: Served) -> None:
    async def play(episode: Episode[NamedTask]) -> float:
        await episode.chat([{"role": "user", "content": "ask"}], agent="slover")
        return 1.0

    async with AsyncSwarmClient(training_solver.url, training_solver.server.keys.role_key("client")) as client:
        with pytest.raises(AgentMisplays, match=rf"'slover'.*\({MOST_MISPLAYS} times"):
            await client.rollout(play, [NamedTask("t")], concurrency=1)
        episode = await client.begin(NamedTask("other"))
        await episode.chat([{"role": "user", "content": "ask"}])
        with pytest.raises(InvalidRequest, match="says its name"):
            await episode.end(1.0)
