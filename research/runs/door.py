"""The door between an evaluator and the player that runs an arm's agent: neither reaches the other.

It is served by the attempt, outside of both containers, which reach it through their gateways, each with a key of its
own. It holds one message of a play at a time, knows nothing of tasks, and believes the player nothing: a play whose
player is gone has failed. `swarm.environments.door` has both its users.

    evaluator   POST /offer {opening, tools, api_key, model}     an event: {id, answer}, {over} or {failed}
                POST /plays/ID {messages, over}                  the next event
    player      POST /next                                       an offer, with an id
                POST /plays/ID/answer {...}                      {messages}
                POST /plays/ID/end {failed}                      {}
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from aiohttp import web

MOST_BYTES: Final = 1 << 20
Body = dict[str, Any]
Handler = Callable[[str, Body], Awaitable[Body]]
"""Takes the play's id, empty where there is none, and what was posted."""


@dataclass(eq=False, slots=True)
class _Play:
    offer: Body
    events: asyncio.Queue[Body] = field(default_factory=asyncio.Queue)
    """For the evaluator."""
    replies: asyncio.Queue[Body] = field(default_factory=asyncio.Queue)
    """For the player."""
    waits: bool = False
    """Whether the player waits for a reply."""


class Door:
    """Serves the door on a loopback port while its context is entered."""

    def __init__(self) -> None:
        self.evaluator_key, self.player_key = secrets.token_urlsafe(), secrets.token_urlsafe()
        self.url = ""
        self._plays: dict[str, _Play] = {}
        self._offers: asyncio.Queue[str] = asyncio.Queue()
        self._shut = False
        app = web.Application(client_max_size=MOST_BYTES)
        evaluator, player = self.evaluator_key, self.player_key
        app.add_routes([
            web.post("/offer", _route(evaluator, self._offer)),
            web.post("/plays/{id}", _route(evaluator, self._follow)),
            web.post("/next", _route(player, self._next)),
            web.post("/plays/{id}/answer", _route(player, self._answer)),
            web.post("/plays/{id}/end", _route(player, self._end)),
        ])  # fmt: skip
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.shut()
        await self._runner.cleanup()

    def shut(self) -> None:
        """Fail the plays that are open, and all that are offered from now on: their player is gone."""
        self._shut = True
        for play in self._plays.values():
            play.events.put_nowait({"failed": True})
        self._plays.clear()

    async def _offer(self, _: str, offer: Body) -> Body:
        if self._shut:
            return {"failed": True}
        key = secrets.token_hex(16)
        self._plays[key] = play = _Play(offer | {"id": key})
        self._offers.put_nowait(key)
        return await self._event(key, play)

    async def _follow(self, key: str, body: Body) -> Body:
        if (play := self._plays.get(key)) is None:
            return {"failed": True}
        play.waits = False
        play.replies.put_nowait({"messages": body["messages"]})
        if body["over"]:
            del self._plays[key]
            return {"over": True}
        return await self._event(key, play)

    async def _event(self, key: str, play: _Play) -> Body:
        try:
            return await play.events.get()
        except asyncio.CancelledError:  # the evaluator gave the play up
            self._plays.pop(key, None)
            play.replies.put_nowait({"messages": []})
            raise

    async def _next(self, _: str, body: Body) -> Body:
        while (play := self._plays.get(await self._offers.get())) is None:
            pass
        return play.offer

    async def _answer(self, key: str, message: Body) -> Body:
        if (play := self._plays.get(key)) is None or play.waits:
            raise web.HTTPGone
        play.waits = True
        play.events.put_nowait({"id": key, "answer": message})
        return await play.replies.get()

    async def _end(self, key: str, body: Body) -> Body:
        if (play := self._plays.pop(key, None)) is not None:
            play.events.put_nowait({"failed": True} if body.get("failed") or play.waits else {"over": True})
        return {}


def _route(key: str, handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {key}".encode()):
            raise web.HTTPForbidden
        try:
            body = await request.json()
        except (ValueError, RecursionError) as error:
            raise web.HTTPBadRequest from error
        if not isinstance(body, dict):
            raise web.HTTPBadRequest
        return web.json_response(await handler(request.match_info.get("id", ""), body))

    return handle
