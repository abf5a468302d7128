"""The front: answers each request, of a user who consents from a group of training episodes, else from one untrained.

It promises that an answer never waits for training: where the server has no room for a group, or the group breaks, the
request is answered untrained, and counted with the reason. Nothing of an untrained answer is kept: its one evaluation
episode is aborted and erased.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.errors import (
    EngineUnavailable,
    InvalidRequest,
    NotFound,
    SwarmError,
    Throttled,
    Unreachable,
)
from swarm.passive.chat import ChatAsk, FrontReply, gathered, text_of
from swarm.passive.erasing import Eraser
from swarm.passive.group import RequestGroup, give_up
from swarm.passive.records import Consent, Records
from swarm.passive.scoring import Scorer

log = logging.getLogger(__name__)
STREAM = "passive"
_KNOWN_S = 5.0
"""Seconds for which what the server said of itself is taken for true."""
_MARGIN_S = 60.0


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """How far a front goes.

    feedback_s: seconds for which a group waits for its user's feedback; 0: it is scored at once. most_groups: groups
    being answered or waiting at the same time; of those that wait, the oldest is scored early to make room. answer_s:
    seconds a model's answer may take. patience_s: seconds an untrained answer waits for a server that updates its
    weights.
    """

    feedback_s: float = 0.0
    most_groups: int = 64
    answer_s: float = 120.0
    patience_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Server:
    group_size: int
    model: str
    at: float


class Front:
    """Lives on one event loop; `close` settles what is open."""

    def __init__(self, client: AsyncSwarmClient, records: Records, eraser: Eraser, limits: FrontLimits) -> None:
        self._client = client
        self._records = records
        self._eraser = eraser
        self.scorer: Scorer | None = None
        """None: feedback alone makes rewards."""
        self._limits = limits
        self._live: dict[str, RequestGroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: _Server | None = None

    async def close(self) -> None:
        """Settle all groups, with what is known of them now."""
        for group in self._live.values():
            group.due.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def model(self) -> str:
        """Return the name of the model that answers; raises as the server does."""
        return (await self._server()).model

    async def answer(self, ask: ChatAsk, user: str | None) -> FrontReply:
        """Answer a request; `user` is a pseudonym, None for nobody."""
        server = await self._server()
        if ask.model != server.model:
            raise NotFound(f"expected model {server.model!r}, found {ask.model!r}", param="model")
        if ask.n > server.group_size:
            raise InvalidRequest(f"expected n of at most {server.group_size}, found {ask.n}", param="n")
        why = self._forbids(user)
        if why is None and user is not None:
            group = await self._begin(user, server.group_size)
            if isinstance(group, RequestGroup):
                reply = await self._from_group(group, ask, server)
                if reply is not None:
                    return reply
                why = "group_lost"
            else:
                why = group
        return await self._untrained(ask, server, why or "no_user")

    async def consent(self, user: str, application: str, given: bool, version: str | None) -> Consent:
        """Write down what a user says; a withdrawal also deletes what was sampled for them, but not the consents."""
        said = self._records.say_consent(user, application, given, version)
        if not given:
            await self._forget(user, "withdrawn", everything=False)
        return said

    async def delete(self, user: str) -> Mapping[str, Any]:
        """Delete what is kept of a user, here and on the server; return how far that came."""
        return await self._forget(user, "deleted", everything=True)

    def feedback(self, reply: str, rating: str, choice: int) -> bool:
        """Take a user's word of an answer; return whether it came in time to make the rewards."""
        group = self._live.get(reply)
        in_time = group is not None and bool(group.shown) and not group.settled and not group.due.is_set()
        if group is not None and in_time:
            if choice >= len(group.shown):
                raise InvalidRequest(f"expected a choice below {len(group.shown)}, found {choice}", param="choice")
            group.word = (choice, rating)
            group.due.set()
        self._records.say_feedback(reply, rating, choice, counted=in_time)
        self._records.count("feedback_counted" if in_time else "feedback_late")
        return in_time

    @property
    def groups(self) -> int:
        """How many are being answered or wait for feedback."""
        return len(self._live)

    def _forbids(self, user: str | None) -> str | None:
        """Return why nothing of this request may be trained, or None."""
        if user is None:
            return "no_user"
        if not self._records.consents(user):
            return "no_consent"
        if len(self._live) >= self._limits.most_groups:
            waiting = [group for group in self._live.values() if group.shown and not group.due.is_set()]
            if not waiting:
                return "too_many_groups"
            waiting[0].due.set()
        return None

    async def _server(self) -> _Server:
        if self._known is None or time.monotonic() - self._known.at > _KNOWN_S:
            status, model = await asyncio.gather(self._client.status(), self._client.model())
            self._known = _Server(status.group_size or 1, model, time.monotonic())
        return self._known

    async def _begin(self, user: str, size: int) -> RequestGroup | str:
        """Begin a group; return why there is none."""
        reply = _name("chatcmpl")
        task = NamedTask(_name(STREAM))
        timeout_s = self._limits.answer_s + self._limits.feedback_s + _MARGIN_S
        episodes: list[Episode[NamedTask]] = []
        try:
            for _ in range(size):
                episodes.append(await self._client.begin(task, stream=STREAM, timeout_s=timeout_s))
        except Unreachable:
            self._known = None
            raise
        except SwarmError as error:
            await give_up(episodes, "no room for the whole group")
            if not isinstance(error, Throttled | EngineUnavailable):
                log.info("event=not_trained reason=%r", error.message)
            return error.code
        if not self._records.consents(user):  # withdrawn meanwhile
            await give_up(episodes, "withdrawn")
            return "no_consent"
        group = RequestGroup(reply, user, episodes, self._records, self._eraser.wake)
        self._records.began(group.names, user, reply)
        self._live[reply] = group
        self._later(group.keep_alive())
        return group

    async def _from_group(self, group: RequestGroup, ask: ChatAsk, server: _Server) -> FrontReply | None:
        """Answer from a group; None where it broke, or asks for what no training does, and was given up."""
        try:
            raws = await self._sampled(group, ask)
        except (SwarmError, TimeoutError) as error:
            log.warning("event=group_lost reply=%s reason=%r", group.reply, str(error))
            await self._abandon(group, "lost")
            return None
        except BaseException:
            await self._abandon(group, "interrupted")
            raise
        return await self._ordered(group, ask, server, raws)

    async def _ordered(
        self, group: RequestGroup, ask: ChatAsk, server: _Server, raws: Sequence[Mapping[str, Any]]
    ) -> FrontReply:
        order, failed = list(range(len(raws))), False
        if self.scorer is not None:
            request = {"messages": ask.messages, **ask.params(trained=True)}
            try:
                group.scores = scores = await self.scorer.score(request, [text_of(raw) for raw in raws])
                order.sort(key=lambda place: -scores[place])
            except SwarmError as error:
                log.warning("event=scorer_failed reply=%s reason=%r", group.reply, error.message)
                failed = True
            except BaseException:
                await self._abandon(group, "interrupted")
                raise
        if failed:
            await self._abandon(group, "scorer_failed")
        trained = not group.settled and self._records.consents(group.user)
        group.shown = order[: ask.n]
        choices, usage = gathered(raws, group.shown)
        self._later(self._settle(group))
        self._records.count("trained" if trained else "untrained_scorer_failed" if failed else "untrained_withdrawn")
        why = "scorer_failed" if failed else "withdrawn"
        return FrontReply(group.reply, server.model, choices, usage, trained, "" if trained else why)

    async def _sampled(self, group: RequestGroup, ask: ChatAsk) -> list[Mapping[str, Any]]:
        params = ask.params(trained=True)
        async with asyncio.timeout(self._limits.answer_s), asyncio.TaskGroup() as calls:
            asked = [calls.create_task(_asked(episode, ask, params)) for episode in group.episodes]
        results = [task.result() for task in asked]
        for result in results:
            if isinstance(result, SwarmError):
                raise result
        return [result for result in results if not isinstance(result, SwarmError)]

    async def _abandon(self, group: RequestGroup, reason: str) -> None:
        self._live.pop(group.reply, None)
        await group.give_up(reason)

    async def _settle(self, group: RequestGroup) -> None:
        try:
            if not group.settled:
                await group.wait(self._limits.feedback_s)
            await group.finish()
        finally:
            self._live.pop(group.reply, None)

    async def _untrained(self, ask: ChatAsk, server: _Server, why: str) -> FrontReply:
        self._records.count(f"untrained_{why}")
        params = {**ask.params(trained=False), "n": ask.n}
        reply, raw = await self._evaluated(ask.messages, params)
        return FrontReply(reply, server.model, raw["choices"], raw.get("usage") or {}, False, why)

    async def ask_model(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the served model's own answer to a judge's question; nothing of it is kept."""
        return text_of((await self._evaluated(messages, {"temperature": 0}))[1])

    async def _evaluated(
        self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, Any]]:
        limits, task = self._limits, NamedTask(_name(STREAM))
        try:
            episode = await self._client.begin(
                task, kind="eval", stream=STREAM, wait_s=min(60.0, limits.patience_s), timeout_s=limits.answer_s
            )
        except Throttled as error:
            raise EngineUnavailable(
                "the model updates its weights; try again", retry_after=error.retry_after
            ) from error
        self._records.began([episode.id])
        try:
            async with asyncio.timeout(limits.answer_s):
                return _name("chatcmpl"), (await episode.chat(messages, **params)).raw
        except TimeoutError:
            raise EngineUnavailable(f"no answer within {limits.answer_s:g} s; try again", retry_after=1.0) from None
        finally:
            self._records.erase([episode.id])
            self._eraser.wake()

    async def _forget(self, user: str, reason: str, *, everything: bool) -> Mapping[str, Any]:
        episodes = self._records.episodes_of(user)
        for group in [group for group in self._live.values() if group.user == user]:
            await group.give_up(reason)
        self._records.forget(user, "all" if everything else "replies")
        try:
            await self._eraser.erase(episodes)
        except SwarmError as error:
            log.warning("event=not_erased_yet episodes=%d reason=%r", len(episodes), error.message)
            self._eraser.wake()
        left = self._records.remaining(episodes)
        pending = {"pending_because": self._eraser.waits_for} if left else {}
        return {"deleted": True, "episodes_erased": len(episodes) - left, "episodes_pending": left, **pending}

    @property
    def erasing_waits_for(self) -> str | None:
        """Why what is to be erased is not yet; None where nothing is known to stand in its way."""
        return self._eraser.waits_for

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _asked(
    episode: Episode[NamedTask], ask: ChatAsk, params: Mapping[str, Any]
) -> Mapping[str, Any] | SwarmError:
    """Return the answer, or why there is none."""
    try:
        return (await episode.chat(ask.messages, **params)).raw
    except SwarmError as error:
        return error


def _name(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"
