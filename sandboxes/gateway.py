"""The gateway: what a container reaches through the sockets of its exchange folder, decided outside of it.

    folder/server.sock    the swarm server, as far as `Upstream.admits` lets a request pass
    folder/egress.sock    the Internet, as far as an allow-list names it (`sandboxes.egress`)

It promises that

- no secret is needed inside: a client shows the PLACEHOLDER, and the run's token takes its place on the way; any
  other key passes as it is;
- what is judged is what is sent: only plain paths pass, and a judged body is written anew from what was judged;
- bodies stream both ways as they come, and a side that goes away takes the other with it;
- heads, bodies, connections and the time to send a head are bounded;
- every refusal is an error object a client understands, and is counted by its reason.

It does not know what the routes of the server mean: that is for `admits` to say.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from sandboxes.destinations import Destination
from sandboxes.forwarding import CONNECT_TIMEOUT_S, PLACEHOLDER, Admits, Forwarder, Refused, Request, Upstream, answer
from sandboxes.listening import listening, prepare

__all__ = ["EGRESS_PORT", "PLACEHOLDER", "PORTS", "SERVER_PORT", "Admits", "Gateway", "Request", "Upstream"]

SERVER_PORT = 8000
EGRESS_PORT = 3128
PORTS: Mapping[int, str] = {SERVER_PORT: "server.sock", EGRESS_PORT: "egress.sock"}
"""The ports of a container's loopback, and the sockets they lead to."""
MOST_HEAD_BYTES = 64 * 1024
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Gateway:
    """Serves the sockets of one exchange folder while its context is entered.

    `upstream` None: no swarm server may be reached. `allow` empty: nothing of the Internet. `log` takes a line of
    JSON for each connection to the Internet that was asked for.
    """

    def __init__(
        self, folder: Path, *, upstream: Upstream | None, allow: Sequence[Destination] = (), log: Path
    ) -> None:
        self._folder = folder
        self._upstream = upstream
        self._counts: Counter[str] = Counter()
        self._stack = AsyncExitStack()

    @property
    def counts(self) -> Mapping[str, int]:
        """How many requests were `forwarded`, and how many were not, by reason."""
        return self._counts

    async def __aenter__(self) -> Self:
        prepare(self._folder)
        async with AsyncExitStack() as stack:
            handle: Handler = _nowhere
            if self._upstream is not None:
                session = await stack.enter_async_context(_session())
                handle = Forwarder(self._upstream, session, self._counts).handle
            sock = stack.enter_context(listening(self._folder / PORTS[SERVER_PORT]))
            server = web.Server(
                handle,
                handler_cancellation=True,
                access_log=None,
                auto_decompress=False,
                max_line_size=MOST_HEAD_BYTES,
                max_field_size=MOST_HEAD_BYTES,
                keepalive_timeout=75.0,
            )
            listener = await asyncio.get_running_loop().create_unix_server(server, sock=sock)
            stack.push_async_callback(server.shutdown, 0.0)
            stack.callback(listener.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
    return aiohttp.ClientSession(
        timeout=timeout,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def _nowhere(_: web.BaseRequest) -> web.StreamResponse:
    return answer(Refused(403, "no_server", "no swarm server is given to this sandbox"))
