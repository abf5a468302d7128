"""Games that are played by an agent elsewhere: the evaluator keeps game and judge, a player runs the agent's file.

Both speak to a door between them (`research.runs.door`), and not to one another. What passes: a game's opening and
tools with the key of the episode's model calls, the policy's answers, the messages that follow them, and the word that
a play is over. No task, reward, success or fact does, and nothing that the player says is told of a play but that it
failed: its words may be what it read in hidden tasks.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from swarm.client.episode import Episode, PlayFailed
from swarm.client.transport import Transport
from swarm.environments.base import Game, Message, Outcome, PlainGame, Task
from swarm.environments.play import chat_messages, play
from swarm.environments.user_code import call
from swarm.errors import SwarmError
from swarm.wire import Lease

MOST_LATE: Final = 16
"""Plays out of time after which no game is offered any more: an agent that hangs ends no evaluation, it fails plays."""
MOST_ANSWERS: Final = 1000
LEASE_TTL_S: Final = 60.0
"""Which nobody reads: the evaluator holds the lease, and keeps it alive."""


class RemoteAgent:
    """Plays games by the agent behind a door; `most` answers end a play."""

    def __init__(self, door: str, key: str, most: int) -> None:
        self._door, self._key, self._most, self._late = Transport(door), key, most or MOST_ANSWERS, 0

    async def __call__(self, episode: Episode[Any], game: Game) -> list[Message]:
        """Return the conversation of a play as it passed through the door."""
        if self._late >= MOST_LATE:
            raise PlayFailed(f"the arm's agent was out of time in {MOST_LATE} plays before")
        try:
            return await self._play(episode, game)
        except asyncio.CancelledError:  # by whoever counts its seconds
            self._late += 1
            raise

    async def _play(self, episode: Episode[Any], game: Game) -> list[Message]:
        messages = chat_messages(await call(game.opening), "opening")
        offer = {"opening": messages, "tools": list(game.tools), "api_key": episode.api_key, "model": episode.model}
        event = await self._post("/offer", offer)
        for left in reversed(range(self._most)):
            if "answer" not in event:
                break
            following: list[Message] | None = None
            with suppress(Exception):  # which may quote the answer
                answer = chat_messages([event["answer"]], "answer")[0] | {"role": "assistant"}
                following = chat_messages(await call(game.answer, dict(answer)) or [], "answer")
            if following is None:
                await self._post(f"/plays/{event['id']}", {"messages": [], "over": True})  # it waits for a reply
                raise PlayFailed("the arm's agent gave the game what it cannot take")
            messages += [answer, *following]
            over = not following or not left
            event = await self._post(f"/plays/{event['id']}", {"messages": [] if over else following, "over": over})
        if event.get("failed"):
            raise PlayFailed("the arm's agent failed the play")
        return messages

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        event: dict[str, Any] = await self._door.call("POST", path, self._key, json.dumps(body).encode())
        return event


class RemoteGame(PlainGame):
    """A game behind a door. Its `answer` waits in place, as that of a game at hand does."""

    def __init__(self, door: str, key: str, offer: dict[str, Any]) -> None:
        self._host, self._key, self._offer = urlsplit(door).netloc, key, offer
        self.tools = offer["tools"]

    def opening(self) -> list[Message]:
        return list(self._offer["opening"])

    def answer(self, message: Message) -> list[Message]:
        connection = http.client.HTTPConnection(self._host)
        try:
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request("POST", f"/plays/{self._offer['id']}/answer", json.dumps(message), headers)
            reply = connection.getresponse()
            body = reply.read()
        finally:
            connection.close()
        if reply.status != 200:
            raise RuntimeError("expected a play that goes on; this one is over")
        return list(json.loads(body)["messages"])

    def outcome(self) -> Outcome:
        """Return nothing of what the play was worth: who evaluates alone knows that."""
        return Outcome(0.0)


async def serve_plays(door: str, server: str, key: str, code: dict[str, Callable[..., Any]]) -> None:
    """Play what is offered, by the `agent` among the code of slots or the built-in one with its `prompt`, until
    cancelled or the door is gone."""

    async def play_one(offer: dict[str, Any]) -> None:
        lease = Lease(
            episode_id=offer["id"], epoch=0, task_id="", kind="eval", api_key=offer["api_key"], lease_token="none",
            base_url=f"{server}/v1", model=offer["model"], ttl_s=LEASE_TTL_S, policy_version=0,
        )  # fmt: skip
        episode, game, failed = Episode(policy, lease, Task("")), RemoteGame(door, key, offer), False
        try:
            if "agent" in code:
                await call(code["agent"], episode, game)
            else:
                await play(game, episode, code.get("prompt"))
        except Exception:  # noqa: BLE001  -- of whatever kind, it is the play's
            failed = True
        with suppress(SwarmError):
            await plays.call("POST", f"/plays/{offer['id']}/end", key, json.dumps({"failed": failed}).encode())

    async with Transport(door) as plays, Transport(server) as policy, asyncio.TaskGroup() as group:
        while True:
            group.create_task(play_one(await plays.call("POST", "/next", key, b"{}")))
