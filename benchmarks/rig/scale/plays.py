"""Episodes of one shape, played to the end of a short training through a relay: what they sent, and what was stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rig.scale.relay import Exchange, Relay, over_socket, over_tcp
from rig.scale.rows import Held, look
from rig.serving.load import passage
from rig.serving.servers import ServerProcess
from sandboxes.gateway.gateway import PORTS, SERVER_PORT, Gateway
from sandboxes.gateway.reverse_proxy import PLACEHOLDER, Upstream
from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.job import Job

DATABASE = "store.sqlite3"
Way = Literal["ajet", "openai", "openai, streamed"]
"""By which client the agent makes its calls."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What each episode is like, and how many are played; `silent_s` is how long its agent is silent after a call."""

    turns: int
    way: Way = "ajet"
    concurrency: int = 32
    silent_s: float = 0.0
    asked: int = 240
    """Characters of each of the agent's own messages."""
    contained: bool = False
    """Behind a container's gateway."""


@dataclass(slots=True)
class Played:
    """What became of a shape: what passed before the client and before the server, and the store around it."""

    shape: Shape
    job: Job
    before: Held
    after: Held
    passed: list[Exchange]
    behind: list[Exchange]
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    said: int = 0
    """Bytes of text that the policy said, all calls together."""

    @property
    def episodes(self) -> int:
        """Episodes that were trained."""
        return self.job.steps * self.job.episodes_per_step

    def granted(self, kind: str) -> list[Exchange]:
        """Return the requests of a kind that were not refused, as the client has them."""
        return [each for each in self.passed if each.kind == kind and each.status == 200]


async def play(server: ServerProcess, folder: Path, job: Job, shape: Shape) -> Played:
    """Train a job with episodes of a shape; the server must have no job, and has none afterwards."""
    async with AsyncSwarmClient(server.url, server.token) as admin:
        await admin.ensure_training(job)
        before = look(folder / DATABASE, server.pid)
        async with _through(server, folder, contained=shape.contained) as (outer, inner, token):
            played = Played(shape, job, before, before, outer.passed, inner.passed)
            async with AsyncSwarmClient(outer.url, token) as client:
                tasks = [NamedTask(f"task-{number}") for number in range(job.tasks_per_step)]
                agent = _agent(shape, played)
                await client.rollout(agent, tasks, concurrency=shape.concurrency)
        while not (await admin.status()).finished:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)
        await admin.stop()
    played.after = look(folder / DATABASE, server.pid)
    return played


@asynccontextmanager
async def _through(server: ServerProcess, folder: Path, *, contained: bool) -> AsyncIterator[tuple[Relay, Relay, str]]:
    """Stand between: yield the relay that the client meets, the one that the server meets, and the client's key."""
    async with AsyncExitStack() as stack:
        inner = await stack.enter_async_context(Relay(over_tcp(server.url)))
        if not contained:
            yield inner, inner, server.token
            return
        upstream = Upstream(inner.url, server.token, lambda _: None)
        exchange = folder / "exchange"
        await stack.enter_async_context(Gateway(exchange, upstream=upstream, log=folder / "egress.jsonl"))
        outer = await stack.enter_async_context(Relay(over_socket(str(exchange / PORTS[SERVER_PORT]))))
        yield outer, inner, PLACEHOLDER


def _agent(shape: Shape, played: Played) -> Callable[[Episode[Any]], Awaitable[float]]:
    async def agent(episode: Episode[Any]) -> float:
        async with _WAYS[shape.way](episode) as answer:
            said: list[dict[str, str]] = []
            for turn in range(shape.turns):
                said.append({"role": "user", "content": passage(turn, shape.asked)})
                text, prompt, sampled = await answer(said)
                said.append({"role": "assistant", "content": text})
                played.prompt_tokens += prompt
                played.sampled_tokens += sampled
                played.said += len(text.encode())
                await asyncio.sleep(shape.silent_s)
        return 1.0

    return agent


Answer = Callable[[list[Any]], Awaitable[tuple[str, int, int]]]
"""Returns the answer's text, the tokens of its prompt, and its own."""


@asynccontextmanager
async def _by_ajet(episode: Episode[Any]) -> AsyncIterator[Answer]:
    async def answer(said: list[Any]) -> tuple[str, int, int]:
        reply = await episode.chat(said)
        usage = reply.raw["usage"]
        return reply.content, usage["prompt_tokens"], usage["completion_tokens"]

    yield answer


@asynccontextmanager
async def _by_openai(episode: Episode[Any]) -> AsyncIterator[Answer]:
    async with episode.openai() as sdk:

        async def answer(said: list[Any]) -> tuple[str, int, int]:
            reply = await sdk.chat.completions.create(model=episode.model, messages=said)
            assert reply.usage is not None
            return reply.choices[0].message.content or "", reply.usage.prompt_tokens, reply.usage.completion_tokens

        yield answer


@asynccontextmanager
async def _by_openai_streamed(episode: Episode[Any]) -> AsyncIterator[Answer]:
    async with episode.openai() as sdk:

        async def answer(said: list[Any]) -> tuple[str, int, int]:
            text, usage = "", None
            stream = await sdk.chat.completions.create(
                model=episode.model, messages=said, stream=True, stream_options={"include_usage": True}
            )
            async for event in stream:
                text += "".join(choice.delta.content or "" for choice in event.choices)
                usage = event.usage or usage
            assert usage is not None
            return text, usage.prompt_tokens, usage.completion_tokens

        yield answer


_WAYS: dict[Way, Callable[[Episode[Any]], AbstractAsyncContextManager[Answer]]] = {
    "ajet": _by_ajet,
    "openai": _by_openai,
    "openai, streamed": _by_openai_streamed,
}
