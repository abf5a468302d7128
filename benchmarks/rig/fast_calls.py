"""Model calls as fast as they are answered, by the standard library alone, so that it runs anywhere a client does.

    python calls.py ADDRESS ORDER       ADDRESS is http://HOST:PORT, or the path of a Unix socket

ORDER is a JSON file: {"keys": [...], "concurrency": N, "seconds": S, "body": [before, after]}. Each connection has
episodes of its own and begins a new conversation with each call, of one turn. It prints one line of JSON: calls,
seconds, and the latencies' median and 99th percentile in seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


async def connection(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to a port or to a Unix socket."""
    if address.startswith("/"):
        return await asyncio.open_unix_connection(address)
    host, _, port = address.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def work(address: str, keys: list[str], body: list[str], until: float, latencies: list[float]) -> None:
    """Call until the time is over."""
    reader, writer = await connection(address)
    number = 0
    while time.perf_counter() < until:
        number += 1
        data = f"{body[0]}conversation {time.time_ns()}: {body[1]}".encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {keys[number % len(keys)]}\r\n"
        began = time.perf_counter()
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(answer)
        if not answer.startswith(b"HTTP/1.1 200") or length is None:
            raise ConnectionError(f"expected 200 with a length, found {answer[:300]!r}")
        await reader.readexactly(int(length[1]))
        latencies.append(time.perf_counter() - began)
    writer.close()


async def main(order: dict[str, Any]) -> None:
    """Do what the order says."""
    concurrency, keys, latencies = order["concurrency"], order["keys"], list[float]()
    began = time.perf_counter()
    until = began + order["seconds"]
    await asyncio.gather(
        *[work(sys.argv[1], keys[place::concurrency], order["body"], until, latencies) for place in range(concurrency)]
    )
    seconds = time.perf_counter() - began
    latencies.sort()
    found = {"calls": len(latencies), "seconds": seconds, "p50": latencies[len(latencies) // 2]}
    print("CALLS", json.dumps({**found, "p99": latencies[int(0.99 * (len(latencies) - 1))]}), flush=True)


if __name__ == "__main__":
    with open(sys.argv[2]) as file:
        asyncio.run(main(json.load(file)))
