"""A client killed at any point of an episode: its place is given away, and what it did not end is never trained."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from swarm.client.async_client import AsyncSwarmClient, NamedTask
from tests.faults.harness import SAID, Books, Client, Play, check, job, moments, play_to_the_end, running

pytestmark = pytest.mark.slow

WANTED = job(lease_ttl_s=0.8, drain_timeout_s=0.8)


async def doomed(url: str, token: str, point: str, told: Connection) -> None:
    async with AsyncSwarmClient(url, token, owner="doomed") as client:
        episode = await client.begin(NamedTask("task-0"), wait_s=10.0)
        told.send(episode.id)
        if point == "before_call":
            os.kill(os.getpid(), signal.SIGKILL)
        if point == "during_call":
            body = {"model": episode.model, "messages": SAID, "stream": True}
            _sent(url, "/v1/chat/completions", episode.api_key, body)
            os.kill(os.getpid(), signal.SIGKILL)
        await episode.chat(SAID)
        if point == "during_end":
            _sent(url, f"/episodes/{episode.id}/end", episode.lease.lease_token, {"reward": 1.0})
        os.kill(os.getpid(), signal.SIGKILL)


def _sent(url: str, path: str, key: str, body: object) -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as sock:
        sock.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)


def run_doomed(*arguments: Any) -> None:
    asyncio.run(doomed(*arguments))


@pytest.mark.parametrize("point", ["before_call", "during_call", "after_call", "during_end"])
async def test_a_client_killed_anywhere_holds_nobody_up_and_is_not_trained_unended(tmp_path: Path, point: str) -> None:
    books = Books()
    async with running(tmp_path) as server, Client(server, books) as client:
        await client.train(WANTED)
        context = multiprocessing.get_context("forkserver")
        told, tell = context.Pipe(duplex=False)
        process = context.Process(target=run_doomed, args=(server.url, server.token, point, tell), daemon=True)
        await asyncio.to_thread(process.start)
        async for _ in moments():
            if process.exitcode is not None:
                break
        assert process.exitcode == -signal.SIGKILL
        name = told.recv()
        books.plays[name] = Play(name, doubtful=True, end_sent=point == "during_end")
        await play_to_the_end(client)
        stored = await check(books, WANTED, server)
        if stored[name].state != "consumed" or point != "during_end":
            assert stored[name].state == "fenced"
            assert stored[name].reason in {"lease_expired", "held_up_batch", "owner_died"}
