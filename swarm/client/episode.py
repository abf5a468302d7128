"""Episodes, what an agent returns for one, and what rollouts and evaluations sum up."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from swarm.client.transport import Transport
from swarm.errors import to_invalid_request
from swarm.wire import AbortRequest, Ack, EndAck, EndRequest, Lease, PrepareRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Message = Mapping[str, Any]


class HasId(Protocol):
    """A task: anything with an id."""

    @property
    def id(self) -> str:
        """Unique name of the task."""


TaskT = TypeVar("TaskT", bound=HasId)
AckT = TypeVar("AckT", bound=Ack)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The policy's answer: its text, why it ended (`stop` or `length`), and the whole OpenAI object."""

    content: str
    finish_reason: str
    raw: Mapping[str, Any]


class Episode(Generic[TaskT]):
    """A lease on one play of a task. `base_url` and `api_key` are all that an agent written for OpenAI's API needs;
    `chat` is the cheap way for one that is not. Neither can set a reward: `end` does, with the lease's own token."""

    def __init__(self, transport: Transport, lease: Lease, task: TaskT) -> None:
        self._transport = transport
        self.task = task
        self.lease = lease
        """The lease as the server gave it."""
        self.id, self.kind = lease.episode_id, lease.kind
        self.base_url = f"{transport.url}/v1"
        """OpenAI-compatible address, ending in /v1, by the way of this client: a proxy may hide it from the server."""
        self.address = f"{transport.url}/episodes/{lease.episode_id}"
        """Where the episode's server knows it: `URL/episodes/ID`."""
        self.api_key, self.model = lease.api_key, lease.model
        """Key of this episode's model calls, and the model's name to send in them."""
        self.ttl_s = lease.ttl_s
        """Seconds without a call or heartbeat after which the episode may be lost."""
        self.last_call = time.monotonic()
        """When the server last heard of the episode (monotonic seconds)."""
        self.chats = 0
        """Answers that `chat` gave; those that an agent asks for by another way are not counted."""
        self.bundled = False
        """Send its calls together with those of others (`Transport.share`): where `chat` is cancelled alone, or its
        connection breaks, and the episode goes on, the server may train an answer that nobody read."""

    def key_of(self, agent: str) -> str:
        """Return the key with which one of the episode's agents makes its calls: its name says who made them. Also for
        code that cannot set the header `X-Ajet-Agent`. InvalidKey from a server of an earlier release."""
        return f"{self.api_key}/{quote(agent, safe='')}" if agent else self.api_key

    async def chat(self, /, messages: Sequence[Message], *, agent: str = "", **params: Any) -> ChatReply:
        """Ask the policy for its next message; `params` are those of OpenAI's chat completions. `agent` says which of
        the episode's agents asks. Raises InvalidRequest for what is not honoured, LeaseLost or EpisodeEnded once the
        episode is over."""
        body, path = json.dumps({"model": self.model, "messages": messages, **params}), "/v1/chat/completions"
        if self.bundled and not params.get("stream"):
            raw = await self._transport.share(path, self.key_of(agent), body)
        else:
            raw = await self._transport.call("POST", path, self.key_of(agent), body.encode())
        self.last_call = time.monotonic()
        self.chats += 1
        choice = raw["choices"][0]
        return ChatReply(choice["message"]["content"] or "", choice["finish_reason"], raw)

    def openai(self, agent: str = "") -> AsyncOpenAI:
        """Return OpenAI's own client, set to this episode and one of its agents (needs the package `openai`). It has
        connections of its own: use it in an `async with`, or close it."""
        from openai import AsyncOpenAI, DefaultAioHttpClient

        return AsyncOpenAI(base_url=self.base_url, api_key=self.key_of(agent), http_client=DefaultAioHttpClient())

    async def heartbeat(self, by: Transport | None = None) -> Ack:
        """Keep the lease alive while no call is made; from another event loop `by` connections of its own."""
        address = f"{self.address}/heartbeat"
        ack = await (by or self._transport).ask(Ack.model_validate, "POST", address, self.lease.lease_token, b"")
        self.last_call = time.monotonic()
        return ack

    async def end(
        self,
        reward: float,
        success: bool | None = None,
        weight: float = 1.0,
        *,
        by_call: Mapping[int, float] | None = None,
        by_agent: Mapping[str, float] | None = None,
    ) -> EndAck:
        """End the episode with its reward; the same end sent twice counts once. The answer tells the sampled tokens.

        `by_call` and `by_agent` say what single calls (by number, from 0 in the order they ended) and the calls of
        single agents (by the names they gave) are worth in place of `reward`; `weight` is how much the episode counts
        in the loss, beside others that count 1. Raises InvalidRequest, and leaves the episode open, for a reward that
        cannot be trained on (NaN, None, ...) or is for a call or agent that is not there; StoreUnavailable, with the
        episode still open to be ended again, where the server could not write it down.
        """
        ended = end_request(reward=reward, success=success, weight=weight, by_call=by_call, by_agent=by_agent)
        return await self._post(EndAck, "end", ended, own=True)

    async def prepare(
        self, /, reward: float, success: bool | None = None, *, decider: Episode[Any] | None = None, **worth: Any
    ) -> Ack:
        """End the episode, as `end` does, subject to its team's decision: what becomes of `decider` (None: of itself).
        `swarm.client.teams.Team` does this for all of a team."""
        link = {"decider": decider.address, "decider_token": decider.lease.lease_token} if decider is not None else {}
        ended = end_request(reward=reward, success=success, **worth)
        asked = PrepareRequest.model_validate({**ended.model_dump(), **link})
        return await self._post(Ack, "prepare", asked)

    async def commit(self) -> Ack:
        """End a prepared episode for good."""
        return await self._post(Ack, "commit")

    async def outcome(self) -> Ack:
        """Return what became of the episode; NotFound where its server does not know it."""
        path = f"/episodes/{self.id}/outcome"
        return await self._transport.ask(Ack.model_validate, "GET", path, self.lease.lease_token)

    async def abort(self, reason: str = "", *, failed: bool = False) -> Ack:
        """Give the episode up: nothing of it is trained. `failed`: its agent could not do the task; a task that fails
        again and again is skipped in this pass."""
        action = "abort?failed=true" if failed else "abort"
        return await self._post(Ack, action, AbortRequest(reason=reason[:2000]))

    async def _post(
        self, kind: type[AckT], action: str, asked: BaseModel | None = None, own: bool | None = None
    ) -> AckT:
        """Ask for an action; of its fields those are sent that say something, as older servers know fewer."""
        path = f"/episodes/{self.id}/{action}"
        body = b"" if asked is None else asked.model_dump_json(exclude_defaults=True).encode()
        return await self._transport.ask(kind.model_validate, "POST", path, self.lease.lease_token, body, own)


def end_request(**fields: Any) -> EndRequest:
    """Return the request that ends an episode; raise InvalidRequest for what cannot be trained on."""
    try:
        empty: dict[str, Any] = {name: {} for name in ("by_call", "by_agent") if fields.get(name, 0) is None}
        return EndRequest(**{**fields, **empty})
    except ValidationError as error:
        raise to_invalid_request(error) from None


class HasReward(Protocol):
    """A reward with the answer to whether the task was solved."""

    @property
    def reward(self) -> float:
        """What is trained on."""

    @property
    def success(self) -> bool | None:
        """Whether the task was solved, None where nobody says; logged only."""


@dataclass(frozen=True, slots=True)
class Earned:
    """A reward with what single calls and single agents of the episode earned of it (`Episode.end`)."""

    reward: float
    success: bool | None = None
    by_call: Mapping[int, float] = field(default_factory=dict)
    by_agent: Mapping[str, float] = field(default_factory=dict)


Result = float | tuple[float, bool] | HasReward
Agent = Callable[[Episode[Any]], Awaitable[Result]]


class AgentFailed(Exception):
    """The agent failed too often in a row; the message quotes the last failure."""


class PlayFailed(Exception):
    """An agent elsewhere failed a play; the message says no more than that. However often, an evaluation goes on."""


class WrongResult(TypeError):
    """An agent returned what is no result; the message says what was expected, and what was found."""


class UnusableReward(ValueError):
    """An agent returned a reward that cannot be trained on, such as NaN."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What one finished evaluation episode was worth."""

    task_id: str
    sample: int
    """0 for the first play of a task, 1 for the second, ..."""
    reward: float
    success: bool | None
    policy_version: int
    facts: Mapping[str, float] = field(default_factory=dict)
    """Named numbers that the agent's answer has beside its reward (`facts`); empty for one without."""
    tokens: int | None = None
    """Tokens that the policy sampled in it, as the server counted; None where it does not tell."""
    failed: str = ""
    """The error by which its agent failed it; it is worth what `evaluate` was told, and not solved."""


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """What a rollout did: episodes ended, mean reward and success of them, and what was dropped by reason."""

    episodes: int
    reward_mean: float
    success_mean: float | None
    dropped: dict[str, int]


def parse_reward(result: Result) -> tuple[float, bool | None]:
    """Return reward and success of an agent's answer; raise WrongResult for anything that is not a result."""
    try:
        if isinstance(result, bool):
            return float(result), result
        if isinstance(result, int | float):
            return float(result), None
        if isinstance(result, tuple):
            reward, success = result
            return float(reward), bool(success)
        if hasattr(result, "reward") and hasattr(result, "success"):
            return float(result.reward), None if result.success is None else bool(result.success)
        raise TypeError(type(result).__name__)
    except (TypeError, ValueError) as error:
        found = "nothing (None)" if result is None else f"{type(result).__name__}: {result!r:.60}"
        raise WrongResult(
            f"expected an agent to return a reward, (reward, solved) or an Outcome; found {found}"
        ) from error
