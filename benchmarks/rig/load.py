"""HTTP load from a process of its own: ready-made requests over a few connections, as fast as answered or at a pace.

It speaks just enough HTTP/1.1 to be a small part of the cost beside the server under test: requests are bytes that
were made before, of an answer only status and length are read. aiohttp's client, on the same core, costs more per
call than a bare route does, and would be what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
PROSE = " ".join((Path(__file__).parents[2] / "LICENSE").read_text().split())
"""What is said in these conversations: prose of some thousands of words that stays the same from version to version."""
ANSWER = "I looked at the rows and go on with the next of them."


@dataclass(frozen=True, slots=True)
class Conversation:
    """The shape of all conversations: turns, and the characters of each user message (a passage of the prose)."""

    turns: int
    characters: int = 180

    def tail(self, turn: int) -> bytes:
        """Return the body's end for a turn (from 1), after the first user message's own words."""
        said = [_quoted(passage(1, self.characters)) + "}"]
        for number in range(2, turn + 1):
            said.append(f'{{"role":"assistant","content":"{ANSWER}"}}')
            said.append(f'{{"role":"user","content":"{_quoted(passage(number, self.characters))}}}')
        return (",".join(said) + "]}").encode()


def passage(number: int, characters: int) -> str:
    """Return a passage of the prose, another one for each number."""
    whole = PROSE * (1 + characters // len(PROSE))
    start = number * 997 % len(PROSE)
    return (whole + whole)[start : start + characters]


def _quoted(text: str) -> str:
    return json.dumps(text)[1:]


HEAD = f'{{"model":"fake","messages":[{{"role":"system","content":"{_quoted(passage(0, 400))}}},'.encode()
ASKED = b'{"role":"user","content":"'


def request(key: str, name: str, tail: bytes) -> bytes:
    """Return one call of the conversation `name`."""
    body = HEAD + ASKED + name.encode() + tail
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@dataclass(slots=True)
class Tally:
    """What one stretch of load saw: calls answered, seconds, and the seconds each call took."""

    calls: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class _Wire(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._data = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        found = _LENGTH.search(self._data, 0, end) if end >= 0 else None
        if found is not None and len(self._data) >= end + 4 + int(found[1]) and self._answer is not None:
            whole, self._data = self._data, b""
            self._answer.set_result(whole)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed a connection under a request"))

    async def ask(self, data: bytes) -> bytes:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        answer = await self._answer
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"expected 200, found {answer[:600]!r}")
        return answer

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


class Load:
    """Plays conversations with the episodes of `keys`, round robin; a finished one begins anew under another name."""

    def __init__(self, port: int, keys: list[str], shape: Conversation) -> None:
        self._port = port
        self._keys = keys
        self._tails = [shape.tail(turn) for turn in range(1, shape.turns + 1)]
        self._began = [0] * len(keys)
        self._turns = [0] * len(keys)
        self._free = list(range(len(keys)))

    async def saturate(self, connections: int, seconds: float) -> Tally:
        """Keep every connection busy for `seconds`."""
        tally = Tally()
        until = time.perf_counter() + seconds

        async def work(wire: _Wire) -> None:
            while time.perf_counter() < until:
                await self._call(wire)
                tally.calls += 1

        began = time.perf_counter()
        async with _wires(self._port, connections) as wires:
            await asyncio.gather(*map(work, wires))
        tally.seconds = time.perf_counter() - began
        return tally

    async def pace(self, connections: int, seconds: float, rate: float) -> Tally:
        """Send `rate` calls a second for `seconds`; a latency counts from when its call was due."""
        tally = Tally()
        due = iter([number / rate for number in range(int(rate * seconds))])
        async with _wires(self._port, connections) as wires:
            began = time.perf_counter()

            async def work(wire: _Wire) -> None:
                for moment in due:
                    await asyncio.sleep(max(0.0, began + moment - time.perf_counter()))
                    await self._call(wire)
                    tally.latencies.append(time.perf_counter() - began - moment)

            await asyncio.gather(*map(work, wires))
        tally.calls, tally.seconds = len(tally.latencies), time.perf_counter() - began
        return tally

    async def turn(self, turn: int, name: str, connections: int) -> int:
        """Make turn `turn` (from 1) of the conversation `name` once in every episode; return its prompt tokens."""
        waiting = iter(self._keys)
        tail = self._tails[turn - 1]
        answers: list[bytes] = []

        async def work(wire: _Wire) -> None:
            for key in waiting:
                answers[:] = [await wire.ask(request(key, name, tail))]

        async with _wires(self._port, connections) as wires:
            await asyncio.gather(*map(work, wires))
        return int(json.loads(answers[0].partition(b"\r\n\r\n")[2])["usage"]["prompt_tokens"])

    async def _call(self, wire: _Wire) -> None:
        """Make the next call of the episode that waited longest; an episode has one call in flight."""
        number = self._free.pop(0)
        turn = self._turns[number]
        await wire.ask(request(self._keys[number], f"conversation {self._began[number]}: ", self._tails[turn]))
        self._turns[number] = (turn + 1) % len(self._tails)
        self._began[number] += self._turns[number] == 0
        self._free.append(number)


async def connected(port: int) -> _Wire:
    """Open a connection."""
    return (await asyncio.get_running_loop().create_connection(_Wire, "127.0.0.1", port))[1]


@contextlib.asynccontextmanager
async def _wires(port: int, connections: int) -> AsyncIterator[list[_Wire]]:
    made = [await connected(port) for _ in range(connections)]
    try:
        yield made
    finally:
        for wire in made:
            wire.close()


class LoadProcess:
    """A `Load` in a process of its own: `do("saturate", 32, 2.0)` runs one of its methods there."""

    def __init__(self, port: int, keys: list[str], shape: Conversation) -> None:
        here, there = multiprocessing.get_context("spawn").Pipe()
        self._pipe = here
        self._process = multiprocessing.get_context("spawn").Process(
            target=_work, args=(there, port, keys, shape), daemon=True
        )
        self._process.start()

    def do(self, verb: str, *arguments: Any) -> Any:
        """Run a method of `Load` and return its result; raise what it raised."""
        self._pipe.send((verb, arguments))
        result = self._pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join()


def _work(pipe: Connection, port: int, keys: list[str], shape: Conversation) -> None:
    load = Load(port, keys, shape)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while (order := pipe.recv()) is not None:
            verb, arguments = order
            try:
                pipe.send(runner.run(getattr(load, verb)(*arguments)))
            except Exception as error:  # noqa: BLE001 - told to the parent, which raises it
                pipe.send(error)
