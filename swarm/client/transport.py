"""HTTP to one swarm server over aiohttp: keys in, JSON out, every refusal as an error of `swarm.errors`.

aiohttp because of calls: on one core it carries an order of magnitude more of them than httpx with many
connections open.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from swarm.errors import Unreachable, from_wire

_SILENCE_S = 300.0
"""A server that sends nothing for so long is taken for gone."""


class Transport:
    """A pool of connections to `url`; made and closed on one event loop (use as an async context manager)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def open(self) -> aiohttp.ClientSession:
        """Return the open session, opening it at the first call."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=_SILENCE_S)
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self._session

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, path: str, key: str, body: bytes | None = None) -> Any:
        """Send one request to `path` (or to an absolute address) and return the answer's JSON.

        Raises the server's error (`swarm.errors`), or Unreachable when nothing answers.
        """
        address = path if path.startswith("http") else self.url + path
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        try:
            async with self.open().request(method, address, data=body, headers=headers) as reply:
                data = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            what = type(error).__name__
            raise Unreachable(f"no swarm server answers at {self.url} ({what}); is it running?") from error
        if reply.status >= 400:
            raise from_wire(reply.status, _parsed(data), _seconds(reply.headers.get("Retry-After")))
        return _parsed(data)

    async def download(self, path: str, key: str, to: Path) -> int:
        """Write the answer's body to a file, which appears once it is whole; return its bytes. Raises as `call`."""
        part = to.with_name(to.name + ".part")
        size = 0
        try:
            async with self.open().get(self.url + path, headers={"Authorization": f"Bearer {key}"}) as reply:
                if reply.status >= 400:
                    raise from_wire(
                        reply.status, _parsed(await reply.read()), _seconds(reply.headers.get("Retry-After"))
                    )
                with part.open("wb") as file:
                    async for piece in reply.content.iter_chunked(1 << 18):
                        size += file.write(piece)
            os.replace(part, to)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(
                f"the swarm server at {self.url} did not send all of it ({type(error).__name__})"
            ) from error
        finally:
            part.unlink(missing_ok=True)
        return size


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data[:200].decode(errors="replace")


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else float(header)
    except ValueError:
        return None
