"""A front before a server with a fake backend, in this process or in one of its own, and ways to talk to both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

import swarm.passive.__main__ as front_process
from swarm.passive.identity import kept_secrets
from swarm.wire import EpisodeRecord
from tests.swarm.server.support import DEADLINE_S, MODEL, Answer, Served, eventually

BY_NUMBER = "def score(request, answers):\n    return [float(answer) for answer in answers]\n"
"""Likes large numbers, which is what the fake backend answers with."""
QUESTION = [{"role": "user", "content": "a number from 100 to 999"}]


@dataclass
class Fronted:
    """A running front, with the key of an application."""

    served: Served
    folder: Path
    running: asyncio.subprocess.Process | asyncio.Task[None]
    url: str
    key: str = ""

    @property
    def admin(self) -> str:
        return str(json.loads((self.folder / "secrets.json").read_text())["admin"])

    async def call(self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Answer:
        sent = {"authorization": f"Bearer {self.key if key is None else key}", **headers}
        async with self.served.http.request(method, self.url + path, headers=sent, json=body) as reply:
            found = {name.lower(): value for name, value in reply.headers.items()}
            return Answer(reply.status, await reply.json(content_type=None), found)

    async def application(self, name: str) -> str:
        answer = await self.call("POST", "/admin/applications", {"name": name}, key=self.admin)
        assert answer.status == 200, answer
        return str(answer.body["key"])

    async def consent(self, user: str, *, given: bool = True) -> None:
        answer = await self.call("POST", f"/v1/users/{user}/consent", {"given": given, "version": "2026-01"})
        assert answer.status == 200, answer

    async def chat(self, user: str | None = None, messages: Any = None, **fields: Any) -> Answer:
        body = {"model": MODEL, "messages": messages or QUESTION, **fields, **({"user": user} if user else {})}
        return await self.call("POST", "/v1/chat/completions", body)

    async def counts(self) -> Mapping[str, int]:
        return dict((await self.status())["counts"])

    async def status(self) -> dict[str, Any]:
        return dict((await self.call("GET", "/admin/status", key=self.admin)).body)

    async def until_counted(self, name: str, count: int = 1) -> None:
        await eventually(self.counts, lambda counts: counts.get(name, 0) >= count)

    async def until_erased(self) -> None:
        await eventually(self.status, lambda status: status["episodes_to_erase"] == 0)

    def openai(self, key: str | None = None) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key or self.key, max_retries=0)

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert not isinstance(self.running, asyncio.Task), "it runs in this process: ask for one of its own"
        return self.running

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def fronted(
    served: Served, folder: Path, *options: str, score: str | None = BY_NUMBER, apart: bool = False
) -> AsyncIterator[Fronted]:
    """Run a front with an operator's scoring file; `options` are its own. `apart`: as a process that can be killed."""
    token = _written(folder / "token", served.server.keys.role("client"))
    if score is not None:
        _written(folder / "score.py", score)
        options = ("--score", str(folder / "score.py"), *options)
    given = ("--directory", str(folder / "front"), "--server", served.url, "--token-file", str(token), *options)
    async with (_process if apart else _task)(folder, *given) as front:
        yield Fronted(served, folder / "front", front, await _address(folder, front))


@contextlib.asynccontextmanager
async def _process(folder: Path, *given: str) -> AsyncIterator[asyncio.subprocess.Process]:
    with (folder / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "swarm.passive", *given, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


@contextlib.asynccontextmanager
async def _task(folder: Path, *given: str) -> AsyncIterator[asyncio.Task[None]]:
    """Serve as the process does, but here, and end as by a signal."""
    options = front_process._parser().parse_args(given)
    options.directory.mkdir(mode=0o700, exist_ok=True)
    before = {caught: signal.getsignal(caught) for caught in (signal.SIGTERM, signal.SIGINT)}
    with front_process._bound(options) as sock:
        serving = front_process._serve(options, options.directory, kept_secrets(options.directory), sock)
        task = asyncio.create_task(serving)
        try:
            yield task
        finally:
            if not task.done():
                signal.raise_signal(signal.SIGTERM)
            try:
                await task
            finally:
                for caught, handler in before.items():
                    signal.signal(caught, handler)


@contextlib.asynccontextmanager
async def chatting(
    served: Served, folder: Path, *options: str, score: str | None = BY_NUMBER, apart: bool = False
) -> AsyncIterator[Fronted]:
    """Run a front that has let one application in."""
    async with fronted(served, folder, *options, score=score, apart=apart) as front:
        front.key = await front.application("chat")
        yield front


async def episodes(served: Served) -> list[EpisodeRecord]:
    """Return all episodes that the server's store knows, with their tokens, the oldest first."""
    store = served.server.training.store
    await store.write()
    found = [await store.episode(episode.id) for episode in (await store.episodes(1000)).episodes[::-1]]
    return [episode for episode in found if episode is not None]


def balance(served: Served) -> None:
    """See that every episode begun is accounted for (`swarm.server.episodes.ledger`)."""
    rollout = served.server.training.rollout
    counts = rollout.counts
    fences = ("lease_expired", "held_up_batch", "outdated", "owner_died")
    dropped = sum(n for name, n in counts.items() if name.startswith("drop_") and name[5:] not in fences)
    waiting = len(rollout.leases) + rollout.groups.collected
    over = sum(counts[name] for name in ("trained", "evaluated", "aborted", "fenced"))
    assert counts["begun"] == waiting + over + dropped, counts


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


async def _address(folder: Path, front: asyncio.subprocess.Process | asyncio.Task[None]) -> str:
    here = isinstance(front, asyncio.Task)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(OSError, ValueError):
                found = json.loads((folder / "front" / "front.json").read_text())
                if found["pid"] == (os.getpid() if here else front.pid):
                    return str(found["url"])
            assert not front.done() if here else front.returncode is None, (folder / "log").read_text()
            await asyncio.sleep(0.02)
