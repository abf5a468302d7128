"""What becomes of calls whose clients go away, come back, or ask the same thing twice: none is trained unserved."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from swarm.calls.call import Call
from swarm.rollout.episodes import LeasedEpisode
from swarm.store.changes import CallCaptured, CallWithdrawn, Change
from tests.swarm.server.support import MODEL, Served, eventually, job, serving
from tests.swarm.store.support import FakeStore

ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr("swarm.calls.call.GRACE_S", 30.0)
    numbers = iter(range(1000))
    async with serving(tmp_path, job(lease_ttl_s=60.0), script=lambda *_: f"number {next(numbers)}") as running:
        running.rollout.store = Store()
        yield running


class Store(FakeStore):
    writing = 0

    async def write(self, *changes: Change) -> None:
        self.writing += 1
        try:
            await super().write(*changes)
        finally:
            self.writing -= 1


class Client:
    """A client of one episode that can leave; `sent_before` None says nothing of retries."""

    def __init__(self, served: Served, lease: dict[str, Any]) -> None:
        self.served = served
        self.lease = lease

    @contextlib.asynccontextmanager
    async def asking(self, sent_before: int | None = None, **fields: Any) -> AsyncIterator[asyncio.Task[Any]]:
        headers = {"authorization": f"Bearer {self.lease['api_key']}"}
        if sent_before is not None:
            headers["x-stainless-retry-count"] = str(sent_before)
        body = {"model": MODEL, "messages": ASK, **fields}
        async with aiohttp.ClientSession() as session:
            url = f"{self.lease['base_url']}/chat/completions"
            call = asyncio.create_task(_read(session, url, body, headers))
            try:
                yield call
            finally:
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call

    async def ask(self, sent_before: int | None = None, **fields: Any) -> Any:
        async with self.asking(sent_before, **fields) as call:
            return await call


async def _read(session: aiohttp.ClientSession, url: str, body: Any, headers: dict[str, str]) -> Any:
    async with session.post(url, json=body, headers=headers) as response:
        return await (response.text() if body.get("stream") and response.status == 200 else response.json())


def only(served: Served) -> LeasedEpisode:
    (episode,) = served.rollout.leases
    return episode


def kinds(served: Served) -> Counter[str]:
    store = served.rollout.store
    assert isinstance(store, Store)
    return Counter(
        type(change).__name__ for change in store.changes if isinstance(change, CallCaptured | CallWithdrawn)
    )


async def generating(served: Served, count: int = 1) -> None:
    await eventually(lambda: served.backend.engine.active, lambda active: active == count)


async def deserted(served: Served) -> None:
    await eventually(lambda: any(isinstance(call, Call) and call.waiting for call in only(served).calls), bool)


def text(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_says_nothing_of_retries_cancels_its_call_by_leaving(served: Served, stream: bool) -> None:
    client = Client(served, await served.begin())
    served.backend.engine.hold()
    async with client.asking(stream=stream):
        await generating(served)
    await eventually(lambda: served.backend.engine.cancelled, lambda cancelled: cancelled == 1)
    served.backend.engine.release()
    await eventually(lambda: len(only(served).calls), lambda left: left == 0)
    assert (only(served).tree.nodes, kinds(served)) == ([], {})
    assert served.rollout.counts["calls_cancelled"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_sent_again_finds_its_generation(served: Served, stream: bool) -> None:
    client = Client(served, await served.begin())
    served.backend.engine.hold()
    async with client.asking(0, stream=stream):
        await generating(served)
    async with client.asking(1, stream=stream) as again:
        await eventually(lambda: served.rollout.counts["calls_coalesced"], bool)
        served.backend.engine.release()
        answer = await again
    assert "number 0" in (answer if stream else text(answer))
    assert len(served.backend.engine.seen) == len(only(served).tree.nodes) == 1
    assert kinds(served) == {"CallCaptured": 1}


async def test_another_body_or_episode_is_never_answered_by_a_call(served: Served) -> None:
    first, second = Client(served, await served.begin()), Client(served, await served.begin())
    replies = [await first.ask(0), await first.ask(1, seed=1), await second.ask(1)]
    assert len({reply["id"] for reply in replies}) == 3


async def test_a_retry_takes_the_call_that_lost_its_client_and_not_its_sibling(served: Served) -> None:
    client = Client(served, await served.begin())
    served.backend.engine.hold()
    async with client.asking(0) as stayed:
        await generating(served)
        async with client.asking(0):
            await generating(served, 2)
        await deserted(served)
        async with client.asking(1) as back:
            await eventually(lambda: served.rollout.counts["calls_coalesced"], bool)
            served.backend.engine.release()
            assert text(await stayed) == "number 0"
            assert text(await back) == "number 1"


async def test_a_store_that_cannot_write_answers_503_and_leaves_no_trace(served: Served) -> None:
    lease, store = await served.begin(), served.rollout.store
    client = Client(served, lease)
    assert isinstance(store, Store)
    store.fail = "disk full"
    assert (await client.ask(0))["error"]["code"] == "store_unavailable"
    answer = await served.chat(lease, "hi")
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "store_unavailable", "1")
    assert only(served).tree.nodes == []
    store.fail = None
    assert text(await client.ask(1)) == "number 2"
    assert kinds(served) == {"CallCaptured": 1}
    assert served.rollout.counts["calls_failed"] == 2


async def test_several_answers_are_captured_together_as_siblings(served: Served) -> None:
    lease = await served.begin()
    answer = await served.chat(lease, "hi", n=3, seed=5)
    texts = [choice["message"]["content"] for choice in answer.body["choices"]]
    assert [choice["index"] for choice in answer.body["choices"]] == [0, 1, 2]
    nodes = only(served).tree.nodes
    assert sorted(bytes(node.sampled[:-1]).decode() for node in nodes) == sorted(texts)
    assert len({node.context for node in nodes}) == 1
    assert answer.body["usage"]["prompt_tokens"] == len(nodes[0].context)
    assert answer.body["usage"]["completion_tokens"] == sum(len(node.sampled) for node in nodes)
    assert (await served.chat(lease, "hi", texts[1], "more")).status == 200
    continued = only(served).tree.nodes[-1]
    assert continued.parent is not None
    assert bytes(continued.parent.sampled[:-1]).decode() == texts[1]
