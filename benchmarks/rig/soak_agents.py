"""One client process of the soak: agents that play, dawdle, give up, hang up and come back, and log what they know.

    python -m rig.soak_agents SERVER_DIRECTORY LOG SEED

The log is one line of JSON for each thing the process knows for certain: an episode begun, a reply read, an end sent,
an end acknowledged, a refusal. Lines are whole writes to a file opened for appending: a killed process loses none.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from swarm.client import AsyncSwarmClient
from swarm.client.async_client import NamedTask
from swarm.client.episode import Episode
from swarm.errors import EngineUnavailable, EpisodeEnded, InvalidKey, LeaseLost, SwarmError, Throttled, Unreachable

AGENTS = 6
TASKS = 4
GROUP_SIZE = 4
ABORTS, VANISHES, HANGS_UP = 0.04, 0.02, 0.05
THINKS_S = 0.03
_LOST = (LeaseLost, EpisodeEnded, InvalidKey)
T = TypeVar("T")


class Agents:
    """All agents of one process."""

    def __init__(self, directory: Path, log: Path, seed: int) -> None:
        self._directory = directory
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._random = random.Random(seed)
        self._clients: dict[tuple[str, str], AsyncSwarmClient] = {}
        self.stopping = False

    async def run(self) -> None:
        """Play until told to stop; then finish what is open."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AGENTS):
                group.create_task(self._work())
        for client in self._clients.values():
            await client.close()

    async def _work(self) -> None:
        while not self.stopping:
            task = NamedTask(f"task-{self._random.randrange(TASKS)}")
            for _ in range(GROUP_SIZE):
                episode = await self._until_answered(partial(self._begin, task), begins=True)
                if episode is None:
                    return
                self._note(episode, "begun")
                try:
                    await self._play(episode)
                except _LOST as error:
                    self._note(episode, "told", code=error.code)

    async def _begin(self, task: NamedTask) -> Episode[NamedTask]:
        return await self._client().begin(task, wait_s=1.0)

    async def _play(self, episode: Episode[NamedTask]) -> None:
        said: list[dict[str, str]] = [{"role": "user", "content": f"{episode.task.id}: from 1 to 99"}]
        for _ in range(self._random.randint(1, 4)):
            fate = self._random.random()
            if fate < VANISHES:
                self._note(episode, "vanished")
                return
            if fate < VANISHES + ABORTS:
                await self._until_answered(lambda: episode.abort("the agent gave up"))
                self._note(episode, "aborted")
                return
            reply = await self._until_answered(partial(self._said, episode, said), episode)
            assert reply is not None
            self._note(episode, "served", tokens=reply.raw["usage"]["completion_tokens"])
            said += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "another one"}]
            await asyncio.sleep(self._random.uniform(0.0, THINKS_S))
        self._note(episode, "end")
        await self._until_answered(lambda: episode.end(self._random.choice([0.0, 1.0])))
        self._note(episode, "ended")

    async def _said(self, episode: Episode[NamedTask], said: list[dict[str, str]]) -> Any:
        """Make a call; now and then hang up before its reply came, and ask again."""
        if self._random.random() >= HANGS_UP:
            return await episode.chat(said)
        self._note(episode, "cut")
        call = asyncio.ensure_future(episode.chat(said))
        await asyncio.wait({call}, timeout=self._random.uniform(0.0, 0.004))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return await episode.chat(said)

    async def _until_answered(
        self, work: Callable[[], Awaitable[T]], episode: Episode[Any] | None = None, *, begins: bool = False
    ) -> T | None:
        """Ask again while the server is away or has no room; None for a begin that is not wanted any more."""
        while not (begins and self.stopping):
            try:
                return await work()
            except (Unreachable, EngineUnavailable, Throttled) as error:
                if episode is not None and not isinstance(error, Throttled):
                    self._note(episode, "cut")
                self._tell(error)
                await asyncio.sleep(0.1)
            except InvalidKey as error:
                if not begins:
                    raise
                self._tell(error)
                await asyncio.sleep(0.1)
        return None

    def _client(self) -> AsyncSwarmClient:
        token = json.loads((self._directory / "tokens.json").read_text())["client"]
        url = (self._directory / "url").read_text()
        if (url, token) not in self._clients:
            self._clients[url, token] = AsyncSwarmClient(url, token)
        return self._clients[url, token]

    def _note(self, episode: Episode[Any], what: str, **details: Any) -> None:
        self._write({"episode": episode.id, "what": what, **details})

    def _tell(self, error: SwarmError) -> None:
        self._write({"what": "told", "code": error.code, "at": round(time.time(), 3)})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._log, (json.dumps(line) + "\n").encode())


async def main() -> None:
    """Play until SIGTERM."""
    directory, log, seed = sys.argv[1:]
    agents = Agents(Path(directory), Path(log), int(seed))

    def stop() -> None:
        agents.stopping = True

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await agents.run()


if __name__ == "__main__":
    asyncio.run(main())
