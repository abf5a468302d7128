"""`ajet client debug`: one play in the main thread, whose terminal a debugger can use.

Connections and heartbeats are on another thread, so the lease lives however long the agent stands still. It is an
evaluation episode that is given up at its end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from research.installation.servers import ServerConnection
from swarm.client import AsyncSwarmClient, ChatReply, Episode, Result, SyncEpisode
from swarm.client.threads import Bridge
from swarm.environments import Task
from swarm.errors import SwarmError
from swarm.wire import EVALUATION_STREAM, EpisodeRecord

ROOM_S = 30.0
"""How long the server may take to begin the episode: it may just be updating its weights."""
Say = Callable[[str], None]


@dataclass(slots=True)
class DebugResult:
    """What one play came to."""

    result: Result
    seconds: float
    """With the time at breakpoints."""
    calls: int
    """Made with `episode.chat`; those of an SDK are in the record alone."""
    record: EpisodeRecord | None = None
    """What the server captured; None where it could not be read."""


class VerboseEpisode(Episode[Task]):
    """An episode whose calls go through another thread's event loop, and are shown."""

    def __init__(self, episode: Episode[Task], loop: asyncio.AbstractEventLoop, say: Say) -> None:
        super().__init__(episode._transport, episode.lease, episode.task)
        self._loop = loop
        self._say = say
        self._shown = 0
        self.calls = 0

    async def chat(self, messages: Sequence[Mapping[str, Any]], *, agent: str = "", **params: Any) -> ChatReply:
        shown = {**params, "agent": agent} if agent else params
        self.calls += 1
        self._say(f"call {self.calls}" + (f"   {shown!r:.200}" if shown else ""))
        fresh = messages[self._shown :] if len(messages) > self._shown else messages
        if len(fresh) < len(messages):
            self._say(f"  ({len(messages) - len(fresh)} messages as before)")
        for message in fresh:
            self._say(f"  {message.get('role', '?')}: {_content(message)}")
        self._shown = len(messages)
        began, call = time.monotonic(), super().chat(messages, agent=agent, **params)
        if asyncio.get_running_loop() is self._loop:
            reply = await call
        else:
            reply = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))
        answer = _content(reply.raw["choices"][0]["message"])
        self._say(f"  -> {answer}   [{reply.finish_reason}, {time.monotonic() - began:.2f} s]")
        return reply


class Debugger:
    """Plays on one server; used in the main thread, with a bridge to the event loop of another one."""

    def __init__(self, server: ServerConnection, bridge: Bridge, say: Say) -> None:
        self._server = server
        self._bridge = bridge
        self._say = say

    def play(self, function: Callable[..., Any], task: Task, *, plain: bool) -> DebugResult:
        """Play one task; what the agent raises comes through, and the episode is given up."""
        run = self._bridge.run
        client = AsyncSwarmClient(self._server.url, self._server.token, owner="ajet client debug")
        try:
            begun = run(client.begin(task, kind="eval", stream=EVALUATION_STREAM, wait_s=ROOM_S))
            episode, began = VerboseEpisode(begun, self._bridge.loop, self._say), time.monotonic()
            keeper = asyncio.run_coroutine_threadsafe(_keep_alive(begun), self._bridge.loop)
            try:
                if plain:
                    result = function(SyncEpisode(self._bridge, episode))
                else:
                    result = asyncio.run(_call_agent(function, episode))
                played = DebugResult(result, time.monotonic() - began, episode.calls)
                with suppress(SwarmError):
                    played.record = run(client.episode(episode.id))
                return played
            finally:
                keeper.cancel()
                with suppress(concurrent.futures.CancelledError):
                    keeper.exception()
                with suppress(SwarmError):  # it was fenced: then it is over anyway
                    run(begun.abort("debugged"))
        finally:
            run(client.close())


async def _call_agent(function: Callable[..., Any], episode: VerboseEpisode) -> Any:
    found = function(episode)
    return await found if inspect.isawaitable(found) else found


async def _keep_alive(episode: Episode[Any]) -> None:
    while True:
        with suppress(SwarmError):  # the next one may reach it; a lost lease is told to the agent's next call
            await episode.heartbeat()
        await asyncio.sleep(episode.lease.ttl_s / 3)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    said = content if isinstance(content, str) else "" if content is None else repr(content)
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    return said + "".join(f" [calls {call.get('name')}({call.get('arguments', '')})]" for call in calls)
