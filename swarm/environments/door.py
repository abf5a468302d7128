"""Games that are played by an agent elsewhere: the evaluator keeps game and judge, a player runs the agent's file.

Both speak to a door, which the attempt serves outside of their containers, each with a key of its own. It holds one
message of a play at a time and believes the player nothing: a play whose player is gone has failed.

    evaluator   POST /offer {opening, tools, api_key, model}   an event: {id, answer}, {over} or {failed}
                POST /ID {messages, over}                      the next event
    player      POST /next                                     an offer, with an id
                POST /ID {answer}                              {messages}
                POST /ID {failed}                              {}: it plays this no further

No task, reward, success or fact passes, and nothing that the player says is told: it may be read in hidden tasks.
"""

import asyncio
import json
import secrets
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from aiohttp import web

from swarm.client.episode import Episode, PlayFailed, Result
from swarm.client.transport import Transport
from swarm.environments.base import Environment, Game, Message, Outcome, PlainGame, Task
from swarm.environments.play import MOST_CHARACTERS, OnPlay, agent_of, chat_messages, format_message, play
from swarm.environments.user_code import call
from swarm.errors import SwarmError
from swarm.wire import Lease

Body = dict[str, Any]
MOST_BYTES: Final = 1 << 24
MOST_SAID_BYTES: Final = 1 << 18
"""Of one answer: read from JSON it may take forty times as much, and 64 plays at once share a gigabyte."""
MOST_ANSWERS: Final = 1000


@dataclass(eq=False, slots=True)
class _Play:
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
        self._offers: asyncio.Queue[Body] = asyncio.Queue()
        self._shut = False
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/{id}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.shut()
        await self._runner.cleanup()

    def shut(self) -> None:
        """Fail the plays that are open, and all that are offered from now on: their player is gone."""
        self._shut = True
        for open_play in self._plays.values():
            open_play.events.put_nowait({"failed": True})
        self._plays.clear()

    async def _handle(self, request: web.Request) -> web.Response:
        sides = {f"Bearer {self.evaluator_key}": self._serve_evaluator, f"Bearer {self.player_key}": self._serve_player}
        if (serve := sides.get(request.headers.get("Authorization", ""))) is None:
            raise web.HTTPForbidden
        if serve == self._serve_player and (size := request.content_length or MOST_BYTES) > MOST_SAID_BYTES:
            raise web.HTTPRequestEntityTooLarge(MOST_SAID_BYTES, size)
        try:
            body = dict(json.loads(await request.read()))
        except (ValueError, TypeError, RecursionError) as error:
            raise web.HTTPBadRequest from error
        return web.json_response(await serve(request.match_info["id"], body))

    async def _serve_evaluator(self, name: str, body: Body) -> Body:
        if name == "offer" and not self._shut:
            name = secrets.token_hex(16)
            self._plays[name] = _Play()
            self._offers.put_nowait(body | {"id": name})
        elif name in self._plays:
            self._plays[name].waits = False
            self._plays[name].replies.put_nowait({"messages": body["messages"]})
            if body["over"]:
                del self._plays[name]
                return {"over": True}
        if (own := self._plays.get(name)) is None:
            return {"failed": True}
        try:
            return await own.events.get()
        except asyncio.CancelledError:  # the evaluator gave the play up
            self._plays.pop(name, None)
            own.replies.put_nowait({"messages": []})
            raise

    async def _serve_player(self, name: str, body: Body) -> Body:
        if name == "next":
            while (offer := await self._offers.get())["id"] not in self._plays:
                pass
            return offer
        if (own := self._plays.get(name)) is None or ("answer" in body and own.waits):
            raise web.HTTPGone(reason="this play is over")
        if "answer" in body:
            own.waits = True
            own.events.put_nowait({"id": name, "answer": body["answer"]})
            return await own.replies.get()
        del self._plays[name]
        own.events.put_nowait({"failed": True} if body.get("failed") or own.waits else {"over": True})
        return {}


class RemoteAgent:
    """Plays an environment by the agent behind a door, all plays within `most_s` of the first one."""

    def __init__(self, environment: Environment, door: Transport, key: str, most_s: float, on_play: OnPlay) -> None:
        self._agent = agent_of(environment, on_play=on_play, player=self._play)
        self._door, self._key, self._most_s, self._until = door, key, most_s, 0.0
        self._most = environment.knob("max_turns") or MOST_ANSWERS

    async def __call__(self, episode: Episode[Any]) -> Result:
        """Return what a play is worth; whatever failed it is the agent's failure, in words that others may quote."""
        clock = asyncio.get_running_loop().time
        self._until = self._until or clock() + self._most_s
        with suppress(Exception):
            async with asyncio.timeout_at(self._until):
                return await self._agent(episode)
        late = clock() >= self._until
        raise PlayFailed("the arm's agent was out of time" if late else "the arm's agent failed the play")

    async def _play(self, episode: Episode[Any], game: Game) -> list[Message]:
        messages = chat_messages(await call(game.opening), "opening")
        offer = {"opening": messages, "tools": list(game.tools), "api_key": episode.api_key, "model": episode.model}
        event, left = await self._post("offer", offer), self._most
        while "answer" in event:
            left -= 1
            following: list[Message] = []
            try:
                answer = chat_messages([event["answer"]], "answer")[0] | {"role": "assistant"}
                shown = {"role": "assistant", "content": format_message(answer, MOST_CHARACTERS)}
                heard = chat_messages(await call(game.answer, dict(answer)) or [], "answer")
                messages += [shown, *heard]
                following = heard if left else []
            finally:  # it waits for a reply
                event = await self._post(event["id"], {"messages": following, "over": not following})
        if event.get("failed"):
            raise PlayFailed
        return messages

    async def _post(self, name: str, body: Body) -> Body:
        event: Body = await self._door.call("POST", f"/{name}", self._key, json.dumps(body).encode())
        return event


class RemoteGame(PlainGame):
    """A game behind a door. Its `answer` waits in place, as that of a game at hand does."""

    def __init__(self, door: str, key: str, offer: Body) -> None:
        self._address, self._key, self._opening = f"{door}/{offer['id']}", key, offer["opening"]
        self.tools = offer["tools"]

    def opening(self) -> list[Message]:
        return list(self._opening)

    def answer(self, message: Message) -> list[Message]:
        headers = {"Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(self._address, json.dumps({"answer": message}).encode(), headers)
        with urllib.request.urlopen(request) as reply:
            return list(json.load(reply)["messages"])

    def outcome(self) -> Outcome:
        """Return nothing of what the play was worth: who evaluates alone knows that."""
        return Outcome(0.0)


async def serve_plays(door: str, server: str, key: str, code: dict[str, Callable[..., Any]]) -> None:
    """Play what is offered, by the code of slots or the built-in agent, until cancelled or the door is gone."""

    async def play_one(offer: Body) -> None:
        lease = Lease(  # which the evaluator holds, and keeps alive
            episode_id=offer["id"], epoch=0, task_id="", kind="eval", api_key=offer["api_key"], lease_token="none",
            base_url=f"{server}/v1", model=offer["model"], ttl_s=60.0, policy_version=0,
        )  # fmt: skip
        episode, game, failed = Episode(policy, lease, Task("")), RemoteGame(door, key, offer), True
        with suppress(Exception):  # of whatever kind, it is the play's
            await (call(code["agent"], episode, game) if "agent" in code else play(game, episode, code.get("prompt")))
            failed = False
        with suppress(SwarmError):
            await plays.call("POST", f"/{offer['id']}", key, json.dumps({"failed": failed}).encode())

    async with Transport(door) as plays, Transport(server) as policy, asyncio.TaskGroup() as group:
        while True:
            group.create_task(play_one(await plays.call("POST", "/next", key, b"{}")))
