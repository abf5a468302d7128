"""No prompt holds up the calls of others: what cannot fit is refused by its length, what is long is encoded beside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from swarm.backends.fake import FakeBackend, FakeRenderer
from swarm.calls.prompts import LONG, PromptBuilder
from swarm.job import Job
from swarm.rollout.episodes import LeasedEpisode
from swarm.timelines import CallTree
from tests.swarm.server.support import MODEL, Clock, Served, job, serving

WIDE = job(max_context=200_000, episodes_per_step=8)
LONG_WORDS = "word " * LONG


class SlowRenderer(FakeRenderer):
    """Takes as long as it is told to for a long text."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def encode(self, text: str) -> list[int]:
        if len(text) >= LONG:
            self.begun.set()
            assert self.go_on.wait(120)
        return super().encode(text)


@pytest.fixture
def renderer() -> Iterator[SlowRenderer]:
    slow = SlowRenderer()
    yield slow
    slow.go_on.set()


@pytest.fixture
async def served(tmp_path: Path, renderer: SlowRenderer, clock: Clock) -> AsyncIterator[Served]:
    def backend(loaded: Job) -> FakeBackend:
        made = FakeBackend(loaded, script=lambda *_: "yes")
        made.renderer = renderer
        return made

    async with serving(tmp_path, WIDE, backend=backend, clock=clock) as running:
        yield running


async def test_others_are_answered_while_a_long_prompt_is_encoded_or_counted(
    served: Served, renderer: SlowRenderer
) -> None:
    long, short = await served.begin("long"), await served.begin("short")
    body = {"model": MODEL, "messages": [{"role": "user", "content": LONG_WORDS}]}
    asked = asyncio.create_task(served.chat(long, LONG_WORDS))
    counted = asyncio.create_task(served.post("/v1/messages/count_tokens", long["api_key"], body))
    assert await asyncio.to_thread(renderer.begun.wait, 120)
    assert (await served.chat(short, "hi")).text == "yes"
    assert not asked.done()
    assert not counted.done()
    renderer.go_on.set()
    assert (await asked).text == "yes"
    assert (await counted).body["input_tokens"] > LONG
    assert (await served.end(long)).status == 200


async def test_an_episode_that_ends_meanwhile_has_no_call(served: Served, renderer: SlowRenderer) -> None:
    lease = await served.begin()
    asked = asyncio.create_task(served.chat(lease, LONG_WORDS))
    assert await asyncio.to_thread(renderer.begun.wait, 120)
    assert (await served.verb(lease, "abort", {"reason": "tired"})).status == 200
    renderer.go_on.set()
    assert (await asked).code == "episode_ended"
    assert served.rollout.counts["calls"] == 0


async def test_a_call_whose_prompt_is_encoded_for_long_keeps_its_lease(
    served: Served, renderer: SlowRenderer, clock: Clock
) -> None:
    """Nothing else is heard of its client: many long prompts wait for their turn."""
    lease = await served.begin()
    asked = asyncio.create_task(served.chat(lease, LONG_WORDS))
    assert await asyncio.to_thread(renderer.begun.wait, 120)
    clock.now += 10 * WIDE.lease_ttl_s
    served.rollout.sweep()
    renderer.go_on.set()
    assert (await asked).text == "yes"
    assert (await served.end(lease)).status == 200


@pytest.mark.parametrize("turns", [[LONG_WORDS, "hi"], ["hi", LONG_WORDS], [LONG_WORDS, LONG_WORDS]])
async def test_a_prompt_is_the_same_whether_its_texts_are_encoded_at_once_or_beside(turns: list[str]) -> None:
    at_once, beside = CallTree(FakeRenderer()), CallTree(FakeRenderer())
    builder, playing = PromptBuilder(FakeRenderer()), cast(LeasedEpisode, Playing(beside))
    messages: list[dict[str, str]] = []
    for words in turns:
        messages.append({"role": "user", "content": words})
        plain = at_once.prompt(messages)
        _, other = await builder.build(playing, lambda: playing, messages, ())
        assert (plain.prompt_ids, plain.context, plain.drift) == (other.prompt_ids, other.context, other.drift)
        answer = {"role": "assistant", "content": "yes"}
        for tree, prompt in ((at_once, plain), (beside, other)):
            ids = [*b"yes", FakeRenderer.eos_id]
            tree.add(prompt, ids, [-0.1] * 4, [0] * 4, text="yes<|end|>", answer=answer)
        messages.append(answer)


class Playing:
    """An episode, as far as a prompt builder looks at it."""

    def __init__(self, tree: CallTree) -> None:
        self.tree = tree
        self.calls: set[object] = set()


async def test_what_no_context_can_hold_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, job(max_context=256)) as served:
        lease = await served.begin()
        reader, writer = await served.connect()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {lease['api_key']}\r\n"
        writer.write(f"{head}content-length: 15000000\r\n\r\n{{".encode())
        async with asyncio.timeout(120):
            assert await reader.readline() == b"HTTP/1.1 400 Bad Request\r\n"
            said = (await reader.readuntil(b"}")).decode()
        assert '"code":"context_length_exceeded"' in said
        assert [part in said for part in ("1064960 bytes", "256 tokens", "15000000")] == [True] * 3
        writer.close()


async def test_a_body_in_chunks_is_held_to_the_same_length(tmp_path: Path) -> None:
    async with serving(tmp_path, job(max_context=256)) as served:
        lease = await served.begin()

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 100_000

        refused = await served.call("POST", "/v1/chat/completions", lease["api_key"], raw=pieces())
        assert refused.code == "context_length_exceeded"
        assert served.rollout.counts["calls"] == 0
