"""Agents under development: `ajet client run --reload` and `ajet client debug`.

Reload: at each save a warm standby imports the new code; what the old code has open is fenced (`code_changed`), its
process ended, and fenced again. Nothing of the old code is trained after that unless it had ended before. An edit that
cannot be loaded plays nothing until the next save.

Debug: one play in the main thread, whose terminal a debugger can use; connections and heartbeats are on another thread,
so the lease lives however long the agent stands still. It is an evaluation episode that is given up at its end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from research.agents.launch import ProcessAgent, run_in_process
from research.agents.request import ServerAccess
from research.agents.run import (
    OWNED_BY,
    AgentResult,
    AgentRun,
    Restart,
    RestartPolicy,
    TimeLimit,
    cancel_on_signals,
    count_finished,
    decide_restart,
    follow,
    read_status,
    write_output,
)
from sandboxes import Exit
from swarm.client import Agent, AsyncSwarmClient, ChatReply, Episode, Result, SyncEpisode
from swarm.client.threads import Bridge
from swarm.environments import Task
from swarm.environments.processes import BEGIN, LOAD, OWNER
from swarm.environments.user_code import code_hash, code_times
from swarm.errors import SwarmError
from swarm.wire import EVALUATION_STREAM, EpisodeRecord

T = TypeVar("T")
ROOM_S = 30.0
"""How long the server may take to begin the episode: it may just be updating its weights."""
Say = Callable[[str], None]


@dataclass(slots=True)
class DebugResult:
    """What one play came to."""

    episode: str
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
        self._show_messages(messages, {**params, "agent": agent} if agent else params)
        began = time.monotonic()
        reply = await self._run_in_loop(super().chat(messages, agent=agent, **params))
        self._show_reply(reply, time.monotonic() - began)
        return reply

    def _show_messages(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> None:
        self.calls += 1
        self._say(f"call {self.calls}" + (f"   {dict(params)!r:.200}" if params else ""))
        fresh = messages[self._shown :] if len(messages) > self._shown else messages
        if len(fresh) < len(messages):
            self._say(f"  ({len(messages) - len(fresh)} messages as before)")
        for message in fresh:
            self._say(f"  {message.get('role', '?')}: {_content(message)}")
        self._shown = len(messages)

    def _show_reply(self, reply: ChatReply, seconds: float) -> None:
        self._say(f"  -> {_content(reply.raw['choices'][0]['message'])}   [{reply.finish_reason}, {seconds:.2f} s]")

    async def _run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class Debugger:
    """Plays on one server; used in the main thread, with a bridge to the event loop of another one."""

    def __init__(self, server: ServerAccess, bridge: Bridge, say: Say) -> None:
        self._server = server
        self._bridge = bridge
        self._say = say

    def play(self, function: Callable[..., Any] | Agent, task: Task, *, plain: bool) -> DebugResult:
        """Play one task; what the agent raises comes through, and the episode is given up."""
        client = AsyncSwarmClient(self._server.url, self._server.token, owner="ajet client debug")
        try:
            return self._play(client, function, task, plain)
        finally:
            self._bridge.run(client.close())

    def _play(self, client: AsyncSwarmClient, function: Callable[..., Any], task: Task, plain: bool) -> DebugResult:
        begun = self._bridge.run(client.begin(task, kind="eval", stream=EVALUATION_STREAM, wait_s=ROOM_S))
        episode, began = VerboseEpisode(begun, self._bridge.loop, self._say), time.monotonic()
        keeper = asyncio.run_coroutine_threadsafe(_keep_alive(begun), self._bridge.loop)
        try:
            result = (
                function(SyncEpisode(self._bridge, episode)) if plain else asyncio.run(_call_agent(function, episode))
            )
            seconds = time.monotonic() - began
            return DebugResult(episode.id, result, seconds, episode.calls, self._record(client, episode.id))
        finally:
            keeper.cancel()
            with suppress(concurrent.futures.CancelledError):
                keeper.exception()
            with suppress(SwarmError):  # it was fenced: then it is over anyway
                self._bridge.run(begun.abort("debugged"))

    def _record(self, client: AsyncSwarmClient, episode: str) -> EpisodeRecord | None:
        with suppress(SwarmError):
            return self._bridge.run(client.episode(episode))
        return None


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


LOOK_S: Final = 0.1
"""Seconds between two looks at the files; more where a look takes long."""
SETTLED_S: Final = 0.05
"""Files that do not change for so long were saved whole."""
GRACE_S: Final = 0.5
"""How long the old code's process may take to end by itself: what it has open is fenced already."""
WARM_AFTER_S: Final = 1.0
"""A standby is started so long after the new code began, so that it does not take its processor."""
LOST: Final = 3
"""Exit code of a client whose server is lost or refuses, or whose agent failed again and again."""
JOB_LOOK_S: Final = 2.0
_NOTHING_LEFT_S: Final = 0.001
"""What a time limit that is over has left."""


class CodeWatch:
    """The files of an agent's code."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times = code_times(folder)
        self.code = code_hash(folder)
        """The sha256 of what was saved last."""

    async def wait_for_save(self) -> None:
        """Wait until other code than the last lies there, whole."""
        while True:
            began = time.monotonic()
            times = await asyncio.to_thread(code_times, self._folder)
            if times != self._times:
                await asyncio.sleep(SETTLED_S)
                if times != await asyncio.to_thread(code_times, self._folder):
                    continue
                self._times = times
                before, self.code = self.code, await asyncio.to_thread(code_hash, self._folder)
                if self.code != before:
                    return
            await asyncio.sleep(max(LOOK_S, 5 * (time.monotonic() - began)))


@dataclass(frozen=True, slots=True)
class CodeGeneration:
    """One process of an agent's code, with the name under which its episodes are begun."""

    run: AgentRun
    client: AsyncSwarmClient
    agent: ProcessAgent
    stack: AsyncExitStack

    @classmethod
    async def prewarm(cls, run: AgentRun) -> CodeGeneration:
        async with AsyncExitStack() as stack:
            stack.callback(run.clear)
            client = await stack.enter_async_context(AsyncSwarmClient(run.server.url, run.server.token, owner=OWNED_BY))
            await client.take_over()
            environment = {**run.place.environment, OWNER: client.owner}
            agent = await stack.enter_async_context(
                run_in_process(run.request, run.server, run.place.folder, environment)
            )
            return cls(run, client, agent, stack.pop_all())
        raise AssertionError  # the stack swallows nothing

    async def retire(self) -> int:
        """Fence what its code has open, and end it; return how many episodes that were."""
        fenced = 0
        with suppress(SwarmError):  # a server that is away: its leases run out
            fenced += await self.client.give_up_open("code_changed")
        await self.agent.end(GRACE_S)
        with suppress(SwarmError):
            fenced += await self.client.give_up_open("code_changed")
        return fenced

    async def give_up(self) -> int:
        """Give up what its process left open; return how many episodes it had finished."""
        with suppress(SwarmError):
            await self.client.give_up_open("owner_died")
            return await count_finished(self.client, "train")
        return 0


class Reloader:
    """One run whose code is loaded again at each save."""

    def __init__(self, run: AgentRun) -> None:
        assert run.request.code is not None
        self._run = run
        self._limit = TimeLimit(run.request.time_limit_s)
        self._watch = CodeWatch(run.request.code.folder)
        self._saved = asyncio.create_task(self._watch.wait_for_save())
        self._policy = RestartPolicy()
        self._restarts: list[Restart] = []
        self._reloads = 0
        self._made = 0
        self._loading: CodeGeneration | None = None
        self._warm: asyncio.Task[CodeGeneration] = self._prewarm(0.0)

    async def play(self) -> AgentResult:
        try:
            while True:
                ended = await self._run_generation()
                if ended is not None:
                    return replace(ended, restarts=tuple(self._restarts), reloads=self._reloads)
        finally:
            await self._close()

    async def _run_generation(self) -> AgentResult | None:
        """Play with the code that lies there until it was replaced, or must be waited for; return the run's end."""
        generation = await self._load_next()
        self._loading = None
        try:
            await generation.agent.send(BEGIN)
            self._warm = self._prewarm(WARM_AFTER_S)
            began = time.monotonic()
            playing = asyncio.create_task(follow(generation.run, generation.agent))
            try:
                await asyncio.wait({playing, self._saved}, return_when=asyncio.FIRST_COMPLETED)
                if playing.done():
                    return await self._handle_end(generation, playing.result(), time.monotonic() - began)
                playing.cancel()  # its last words, of being interrupted, are no news
                await self._switch(generation)
                return None
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
        finally:
            await generation.stack.aclose()

    async def _load_next(self) -> CodeGeneration:
        """Return the process that loads what lies there now: the warm one, unless it does so already."""
        if self._loading is None:
            self._loading = await self._warm
            await self._loading.agent.send(LOAD)
        return self._loading

    async def _switch(self, old: CodeGeneration) -> None:
        self._watch_next_save()
        await self._load_next()
        fenced = await old.retire()
        self._reloads += 1
        write_output(
            f"ajet: code {self._watch.code[:12]} from here on; {fenced} open episodes of the last were fenced\n"
        )

    async def _handle_end(self, generation: CodeGeneration, ended: AgentResult, lived_s: float) -> AgentResult | None:
        """Decide on the end of a process: the run's end, or None to go on, once there is reason to."""
        ended = replace(ended, restarts=tuple(self._restarts))
        if ended.exit.reason != "finished":
            ended = replace(ended, finished=await generation.give_up())
        if ended.exit.reason == "timeout":
            return ended
        if self._run.restart and not (ended.exit.reason == "error" and ended.exit.code == 2):
            ended, restart = await decide_restart(self._run, ended, self._policy, lived_s)
            if restart is not None:
                self._restarts.append(restart)
                await asyncio.wait({self._saved}, timeout=restart.pause_s)
                if self._saved.done():
                    self._watch_next_save()
                return None
            return ended
        if ended.exit.reason == "finished" or ended.exit.code == LOST:
            return ended
        return await self._wait_for_save(ended)

    async def _wait_for_save(self, ended: AgentResult) -> AgentResult | None:
        """Wait for the next save; return the end where the job is finished meanwhile, by others."""
        write_output("ajet: nothing is played by this client until the next save\n")
        while not self._saved.done():
            status = await read_status(self._run)
            if status is not None and status.finished:
                return replace(ended, exit=Exit("finished", 0))
            left = self._limit.left_s()
            if left is not None and left <= _NOTHING_LEFT_S:
                return replace(ended, exit=Exit("timeout", None))
            await asyncio.wait({self._saved}, timeout=JOB_LOOK_S if left is None else min(left, JOB_LOOK_S))
        self._watch_next_save()
        self._reloads += 1
        write_output(f"ajet: code {self._watch.code[:12]}\n")
        return None

    def _watch_next_save(self) -> None:
        self._saved.result()
        self._saved = asyncio.create_task(self._watch.wait_for_save())

    def _prewarm(self, after_s: float) -> asyncio.Task[CodeGeneration]:
        async def start() -> CodeGeneration:
            await asyncio.sleep(after_s)
            self._made += 1
            return await CodeGeneration.prewarm(self._run.next_client(self._made, self._limit.left_s()))

        return asyncio.create_task(start())

    async def _close(self) -> None:
        for task in (self._saved, self._warm):
            task.cancel()
        await asyncio.gather(self._saved, self._warm, return_exceptions=True)
        if self._loading is not None:
            await self._loading.stack.aclose()
        elif not self._warm.cancelled() and self._warm.exception() is None:
            await self._warm.result().stack.aclose()


async def reload(run: AgentRun) -> AgentResult:
    try:
        async with cancel_on_signals():
            ended = await Reloader(run).play()
    finally:
        run.clear()
    return replace(ended, status=await read_status(run))
