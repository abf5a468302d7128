"""A front between a chat application and a swarm server: what users ask, and the thumbs they give, trains the model.

    POST    /v1/chat/completions       {"messages", "n", "user"}, as OpenAI's
    POST    /v1/feedback               {"response_id", "rating": "up" | "down", "choice": 0}
    POST    /v1/users/{user}/consent   {"given": true, "version": "2026-01"}; false withdraws
    DELETE  /v1/users/{user}           erase a person

A request of a user who consents is played as a group of the job's `group_size` episodes, one answer in each. Rewards
compare these answers: by the user's thumb, else by `judge`. Every other request is answered untrained.
"""

import argparse
import asyncio
import hmac
import logging
import math
import os
import secrets
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError
from records import Records

from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.errors import InvalidRequest, SwarmError
from swarm.wire import MOST_ERASED, fingerprint

log = logging.getLogger("front")
MOST_GROUPS = 64  # open at the same time
ANSWER_S = 120.0  # for which an answer is waited for
ROOM_S = 30.0  # for which an untrained answer waits while the server updates its weights


def judge(messages, answers):
    """Return a number for each answer, the best highest; None: thumbs alone make rewards. Write your own here."""
    return


@dataclass(eq=False)
class Group:
    """The episodes that answer one request, and what is known of their answers."""

    reply: str
    user: str  # a pseudonym
    episodes: list[Episode]
    scores: list[float] | None = None  # the judge's
    shown: list[int] = field(default_factory=list)  # places of the answers that the user sees
    thumb: tuple[int, str] | None = None  # the place of an answer, and `up` or `down`
    dropped: str = ""  # why nothing of it may be trained
    decided: asyncio.Event = field(default_factory=asyncio.Event)  # nothing more is waited for
    settling: asyncio.Task | None = None

    @property
    def names(self):
        return [each.id for each in self.episodes]

    def drop(self, why):
        self.dropped = self.dropped or why
        self.decided.set()

    def rewards(self):
        """Return for each answer the share of the others that it beats; None where nobody compared them.

        A thumb goes before the judge: that answer is above all others, or below.
        """
        if self.scores is None and self.thumb is None:
            return None
        scores = list(self.scores or [0.0] * len(self.episodes))
        if self.thumb is not None:
            place, rating = self.thumb
            scores[place] = max(scores) + 1 if rating == "up" else min(scores) - 1
        beaten = [sum((score > other) + (score == other) / 2 for other in scores) - 0.5 for score in scores]
        return [count / max(1, len(scores) - 1) for count in beaten]


class Front:
    """`wait_s`: seconds for which a thumb is waited for, once the answers are shown."""

    def __init__(self, client, records, *, judge=judge, wait_s=60.0):
        self.client, self.records, self.judge, self.wait_s = client, records, judge, wait_s
        self.groups = {}  # those that are not settled, by their reply

    async def answer(self, ask):
        """Return a chat completion, and why it is not trained: an empty text where it is."""
        size = (await self.client.status()).group_size or 1
        if ask.n > size:
            raise web.HTTPBadRequest(text=f"n: expected at most {size}, the job's group_size; found {ask.n}")
        task = NamedTask(f"chatcmpl-{secrets.token_hex(12)}")
        begun = await self.begin(task, ask.user, size)
        if isinstance(begun, Group):
            try:
                return await self.sample(begun, ask), begun.dropped
            except Exception as error:  # noqa: BLE001 - what the judge does too; it costs the group, and not the answer
                log.warning("%s is lost: %s", begun.reply, error)
                begun = begun.dropped
        return await self.untrained(task, ask), begun

    async def begin(self, task, name, size):
        """Return a group for a user's request, or why there is none."""
        user = None if name is None else self.records.pseudonym(name)
        if user is None or not self.records.consents(user):
            return "no_consent"
        if len(self.groups) >= MOST_GROUPS:
            return "too_many_groups"
        episodes, why, open_s = [], "no_consent", ANSWER_S + self.wait_s + 60.0
        try:
            for _ in range(size):
                episodes.append(await self.client.begin(task, stream="chat", timeout_s=open_s))
        except SwarmError as error:  # no room, the last step is done, ...
            why = error.code
        if len(episodes) < size or not self.records.consents(user):  # withdrawn meanwhile
            await all_of(each.abort(why) for each in episodes)
            return why
        group = Group(task.id, user, episodes)
        self.records.began(group.names, user, group.reply)
        self.groups[group.reply] = group
        group.settling = asyncio.create_task(self.settle(group))
        return group

    async def sample(self, group, ask):
        """Return `n` answers, in the judge's order where there is one; from now on a thumb is waited for."""
        try:
            async with asyncio.timeout(ANSWER_S):
                replies = await asyncio.gather(*(each.chat(ask.messages) for each in group.episodes))
                scores = await asyncio.to_thread(self.judge, ask.messages, [reply.content for reply in replies])
            if scores is not None:
                group.scores = [float(score) for score, _ in zip(scores, replies, strict=True)]
                if not all(map(math.isfinite, group.scores)):
                    raise ValueError(f"expected finite numbers of the judge, found {scores}")
            order = sorted(range(len(replies)), key=lambda place: -group.scores[place] if group.scores else 0)[: ask.n]
            choices = [{**replies[place].raw["choices"][0], "index": at} for at, place in enumerate(order)]
            group.shown = order
        finally:
            if not group.shown:
                group.drop("no_answer")
        asyncio.get_running_loop().call_later(self.wait_s, group.decided.set)
        return {**replies[0].raw, "id": group.reply, "choices": choices}

    async def settle(self, group):
        """Keep the leases alive until all is decided; then end the episodes with their rewards, or abort them.

        Only this task does either, so that each episode has one end.
        """
        while not group.decided.is_set():
            await all_of(each.heartbeat() for each in group.episodes)
            with suppress(TimeoutError):
                await asyncio.wait_for(group.decided.wait(), min(each.ttl_s for each in group.episodes) / 3)
        allowed = not group.dropped and self.records.consents(group.user)
        rewards = group.rewards() if allowed else None
        if rewards is None:
            self.records.erase(group.names)
            await all_of(each.abort(group.dropped or "no_feedback") for each in group.episodes)
        else:
            ends = await all_of(each.end(reward) for each, reward in zip(group.episodes, rewards, strict=True))
            lost = [name for name, end in zip(group.names, ends, strict=True) if isinstance(end, BaseException)]
            self.records.erase(lost)
            self.records.ended(group.names)
        del self.groups[group.reply]

    async def untrained(self, task, ask):
        """Return the answers of an evaluation episode, of which nothing is kept."""
        episode = await self.client.begin(task, kind="eval", stream="chat", wait_s=ROOM_S, timeout_s=ANSWER_S)
        self.records.began([episode.id])
        try:
            async with asyncio.timeout(ANSWER_S):
                return {**(await episode.chat(ask.messages, n=ask.n)).raw, "id": task.id}
        finally:
            self.records.erase([episode.id])

    def feedback(self, said):
        """Take a user's thumb; return whether it came in time."""
        group = self.groups.get(said.response_id)
        if group is None or not group.shown or group.decided.is_set():
            return False
        if said.choice >= len(group.shown):
            raise web.HTTPBadRequest(text=f"choice: expected one below {len(group.shown)}, found {said.choice}")
        group.thumb = (group.shown[said.choice], said.rating)
        group.decided.set()
        return True

    async def forget(self, user, *, consents):
        """Give up what is open of a user and erase the rest; return how many episodes are left to be erased."""
        self.records.forget(user, consents=consents)
        groups = [group for group in self.groups.values() if group.user == user]
        for group in groups:
            group.drop("withdrawn")
        await asyncio.gather(*(group.settling for group in groups))
        return await self.erase()

    async def erase(self):
        """Erase on the server what the records say; return how many it cannot erase yet: they are tried again."""
        names = self.records.to_erase()
        with suppress(SwarmError, sqlite3.Error):
            for start in range(0, len(names), MOST_ERASED):
                done = await self.client.erase(self.records.owner, names[start : start + MOST_ERASED])
                self.records.erased(done.erased)
        return len(self.records.to_erase())

    async def erase_again(self):
        while True:
            await asyncio.sleep(2.0)
            await self.erase()

    async def running(self, _):
        """Live as long as the HTTP application; at its end settle what is open by what is known."""
        async with self.client:
            erasing = asyncio.create_task(self.erase_again())
            yield
            erasing.cancel()
            for group in self.groups.values():
                group.decided.set()
            await asyncio.gather(*(group.settling for group in self.groups.values()))
            await self.erase()


class Ask(BaseModel, extra="forbid"):
    messages: list[dict[str, Any]] = Field(min_length=1)
    n: int = Field(default=1, ge=1)
    user: str | None = Field(default=None, min_length=1, max_length=256)
    model: str = ""  # OpenAI's clients send one; the server has but one


class Thumb(BaseModel, extra="forbid"):
    response_id: str
    rating: Literal["up", "down"]
    choice: int = Field(default=0, ge=0)


class Consent(BaseModel, extra="forbid"):
    given: bool
    version: str = Field(min_length=1, max_length=128)  # of the text that says what is kept, and how to end it


def application(front, key):
    """Return the HTTP application of a front."""

    async def chat(request):
        completion, why = await front.answer(Ask.model_validate_json(await request.read()))
        return web.json_response(completion, headers={"x-trained": f"no; {why}" if why else "yes"})

    async def feedback(request):
        return web.json_response({"counted": front.feedback(Thumb.model_validate_json(await request.read()))})

    async def consent(request):
        said = Consent.model_validate_json(await request.read())
        user = front.records.pseudonym(request.match_info["user"])
        front.records.say_consent(user, said.given, said.version)
        left = 0 if said.given else await front.forget(user, consents=False)
        return web.json_response({"given": said.given, "episodes_left": left})

    async def delete(request):
        user = front.records.pseudonym(request.match_info["user"])
        return web.json_response({"episodes_left": await front.forget(user, consents=True)})

    @web.middleware
    async def guard(request, handler):
        """Let in who has the key, and say in one line what is wrong."""
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            return error(401, "expected a header `Authorization: Bearer KEY` with the front's key")
        try:
            return await handler(request)
        except ValidationError as wrong:
            first = wrong.errors()[0]
            return error(400, f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}")
        except web.HTTPException as refused:
            return error(refused.status, refused.text)
        except (SwarmError, TimeoutError) as failed:
            return error(400 if isinstance(failed, InvalidRequest) else 503, f"the model does not answer: {failed}")

    app = web.Application(middlewares=[guard], client_max_size=1 << 20)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/feedback", feedback)
    app.router.add_post("/v1/users/{user}/consent", consent)
    app.router.add_delete("/v1/users/{user}", delete)
    app.cleanup_ctx.append(front.running)
    return app


def error(status, message):
    return web.json_response({"error": {"message": message}}, status=status)


async def all_of(calls):
    """Make calls at once; return what each returns or raises."""
    return await asyncio.gather(*calls, return_exceptions=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=8750)
    parser.add_argument("--wait-s", type=float, default=60.0, help="seconds for which a thumb is waited for")
    options = parser.parse_args()
    key = os.environ.get("FRONT_KEY") or parser.error("expected a key for the application in FRONT_KEY, found none")
    try:
        records = Records("chat_feedback.sqlite3")
        client = AsyncSwarmClient.from_home(role="client", owner=f"chat:{fingerprint(records.owner)}")
        app = application(Front(client, records, wait_s=options.wait_s), key)
        web.run_app(app, host="127.0.0.1", port=options.port)  # loopback: nothing here speaks TLS
    except (OSError, sqlite3.Error, SwarmError) as failed:
        parser.error(str(failed))


if __name__ == "__main__":
    main()
