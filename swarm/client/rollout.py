"""The loop around an agent that plays many episodes at once, to train or to evaluate.

Each of `concurrency` workers begins an episode, lets the agent play, ends it, and takes the next place. A failed play
is played again at once, so that no group waits for it, unless its task failed three times (the server skips it in this
pass). After an API's rate limit (HTTP 429), which says nothing of the agent, its worker pauses. In an evaluation an
agent's failure counts as not solved, else one that breaks on half of its answers would look as good as one that never
does; only what server or network lost is played again.

Leases of slow agents are kept alive up to `timeout_s`. A server that is away or has no room to write is waited for;
what was played meanwhile is lost with its lease, counted and played again, unless its end was written down.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from pydantic import ValidationError

from swarm.client.episode import (
    Agent,
    AgentFailed,
    Episode,
    EpisodeResult,
    Result,
    RolloutSummary,
    TaskT,
    UnusableReward,
    WrongResult,
    facts_of,
    parse_reward,
)
from swarm.client.threads import LoopThread
from swarm.client.transport import Transports
from swarm.errors import (
    EngineUnavailable,
    EpisodeEnded,
    InvalidRequest,
    JobFinished,
    LeaseLost,
    ServerFailed,
    StoreUnavailable,
    SwarmError,
    TeamAborted,
    Throttled,
    Unreachable,
    to_invalid_request,
)
from swarm.wire import EndAck, TaskList, tasks_digest

FIRST_WAIT_S: Final = 0.5
MOST_WAIT_S: Final = 30.0
"""After so long a limited API is asked again, whatever it asked for: its agent's place must not be held for ever."""
MOST_MISPLAYS: Final = 8
"""Plays without a usable reward, or a call that is trained, after which an agent that had no good play is refused. One
play may do so by chance: it divided by an empty list, it knew the answer from a cache. An agent that does so in
half of its plays would be refused wrongly once in 256 times; a wrong type is no chance, and refused at once."""
Misplay = Literal["wrong_result", "unusable_reward", "no_calls", "untrained_agents"]
_OF_HTTP: Final = {"openai", "anthropic", "httpx", "httpcore", "requests", "urllib3", "aiohttp", "litellm"}
_NO_ANSWER: Final = {
    "APIConnectionError", "APITimeoutError", "ConnectError", "ConnectTimeout", "ReadError", "ReadTimeout", "WriteError",
    "RemoteProtocolError", "ConnectionError", "Timeout", "ProtocolError", "ClientConnectionError", "ServerTimeoutError",
    "ClientPayloadError", "ServerDisconnectedError", "ClientConnectorError", "ClientOSError", "MaxRetryError",
}  # fmt: skip
_TOO_MANY_REQUESTS = 429
_MOST_CAUSES = 8


class AgentMisplays(AgentFailed):
    """What the agent does can never be trained, so that to play on is of no use; the message says what to mend."""


class Misplays:
    """Counts what is wrong with an agent in itself, until its first good play; after that it is no longer looked at."""

    def __init__(self) -> None:
        self._cleared = False
        self._counts: Counter[Misplay] = Counter()

    def clear(self) -> None:
        """A play was good."""
        self._cleared = True

    def count(self, kind: Misplay | None, found: str) -> None:
        """Count a misplay; None: it was none. Raises AgentMisplays once the agent is to be refused."""
        if kind is None or self._cleared:
            return
        self._counts[kind] += 1
        times = self._counts[kind]
        if kind == "wrong_result" or times >= MOST_MISPLAYS:
            raise AgentMisplays(f"{found} ({_times(times)}, and no play was good); mend the agent and run it again")


def describe_no_call(ended: EndAck) -> str:
    """Return what is wrong with a play that ended with a reward and no answer of the model."""
    if ended.refused:
        return (
            f"expected the model to answer the agent; found a play whose calls were all refused ({ended.refused}); the "
            f"last was told: {ended.refusal}"
        )
    return (
        "expected the agent to call the model, with episode.chat or an SDK at episode.base_url with episode.api_key; "
        "found plays that ended with a reward and no call, of which nothing can be trained"
    )


def classify_misplay(error: Exception) -> Misplay | None:
    """Return what an error says of the agent in itself, None for an error that may be of this play alone."""
    if isinstance(error, WrongResult):
        return "wrong_result"
    if isinstance(error, InvalidRequest) and error.param == "train_agents":
        return "untrained_agents"
    unusable = isinstance(error, UnusableReward) or (isinstance(error, InvalidRequest) and "reward" in error.message)
    return "unusable_reward" if unusable else None


class LimitPauses:
    """The pauses of one place whose agent meets rate limits: longer each time in a row, and never all at once."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._due_s = 0.0

    def extend(self, asked_s: float) -> float:
        """A play met a limit whose API asked for so long a pause (0: it did not say); return the pause that is due."""
        grown = min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._in_a_row, 16))
        self._in_a_row += 1
        self._due_s = min(MOST_WAIT_S, max(asked_s, random.uniform(0.5, 1.0) * grown))
        return self._due_s

    def reset(self) -> None:
        """A play met none."""
        self._in_a_row = 0

    async def pause(self) -> None:
        """Wait for as long as is due."""
        due, self._due_s = self._due_s, 0.0
        if due:
            await asyncio.sleep(due)


def find_retry_after_s(error: BaseException) -> float | None:
    """Return how long an API that answered 429 asked to wait, 0 where it did not say; None for any other error.

    The errors of openai, anthropic, httpx, requests, aiohttp and urllib are known by what they carry: a status (as
    `status_code`, `status` or `code`, their own or their response's), and a Retry-After header; an agent's own error
    may have `status_code` and `retry_after`.
    """
    for each in _causes(error):
        for carrier in (each, getattr(each, "response", None)):
            if any(getattr(carrier, name, None) == _TOO_MANY_REQUESTS for name in ("status_code", "status", "code")):
                return _read_retry_after_s(each, carrier)
    return None


def is_server_error(error: BaseException) -> bool:
    """Return whether an agent's error is one of the server or network that it called: a status of 500 or more, or none.

    Those of openai, anthropic, httpx, requests and aiohttp are known by their names; a play that one ended says nothing
    of its agent.
    """
    for each in _causes(error):
        if isinstance(each, ConnectionError | EngineUnavailable | Unreachable | Throttled):
            return True
        if type(each).__module__.partition(".")[0] in _OF_HTTP and type(each).__name__ in _NO_ANSWER:
            return True
        for carrier in (each, getattr(each, "response", None)):
            status = getattr(carrier, "status_code", None) or getattr(carrier, "status", None)
            if isinstance(status, int) and status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                return True
    return False


def away_code(error: BaseException) -> str | None:
    """Return the code by which a swarm server said that it cannot serve now, or is not reached; None for other errors.

    SDKs raise errors of their own for what it answers, which quote its code.
    """
    for each in _causes(error):
        if isinstance(each, EngineUnavailable | Unreachable):
            return each.code
        if HTTPStatus.SERVICE_UNAVAILABLE in (getattr(each, "status_code", None), getattr(each, "status", None)):
            return next((kind.code for kind in (StoreUnavailable, EngineUnavailable) if kind.code in str(each)), None)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _read_retry_after_s(error: Any, carrier: Any) -> float:
    headers = getattr(carrier, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}
    said = getattr(error, "retry_after", None)
    try:
        return max(0.0, float(said if said is not None else headers.get("Retry-After", headers.get("retry-after", 0))))
    except (TypeError, ValueError, AttributeError):  # a date, or no headers at all
        return 0.0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


T = TypeVar("T")
log = logging.getLogger(__name__)
FAILURES_IN_A_ROW = 64
"""Failed plays without a good one between them, over all workers, after which the rollout gives up; at
least two for each place, as one restart of a server fails what is played at all of them."""
ENGINE_OFF_S = 120.0
"""How long a rollout waits for a server that does not answer, or whose engine is off or boots, before it raises
Unreachable or EngineUnavailable."""
WAIT_S = 10.0
"""How long the server may hold the request for an episode until there is room."""
_RESEND_S = 0.5
RATE_LIMITED = "rate_limited"
"""Under which plays are counted that an API's rate limit failed."""
_IDLE_LOOK_S = 0.6
"""Three times the pause between two looks for open episodes while there is none."""
CLEANUP_TIMEOUT_S = 2.0
"""How long a cancelled rollout tries to give an episode up; its lease runs out anyway. The server is told that an
episode may take so much longer than its agent: by then it was ended or given up."""


class Playable(Protocol):
    """What one play takes place in: an episode, or the episodes of a team."""

    @property
    def ttl_s(self) -> float:
        """Seconds without a call or heartbeat after which it may be lost."""
        ...

    @property
    def last_call(self) -> float:
        """When its servers last heard of it (monotonic seconds)."""
        ...

    async def heartbeat(self, by: Transports | None = None) -> object:
        """Keep it alive while no call is made; from another event loop `by` connections of its own."""
        ...

    def abort(self, reason: str = "", *, failed: bool = False) -> Coroutine[Any, Any, object]:
        """Give it up, as its agent `failed` or for another reason."""
        ...


PlayT = TypeVar("PlayT", bound=Playable)
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Place(Generic[PlayT]):
    """What one play fills: `begin` begins an episode of it, again where a play failed."""

    sample: int
    """0 for the first play of an evaluation's task, 1 for the second, ..."""
    begin: Callable[[], Awaitable[PlayT]]


class PlayLoop(ABC, Generic[PlayT, AnswerT]):
    """One run of the loop, whatever it is that is played."""

    def __init__(self, agent: Callable[[PlayT], Awaitable[AnswerT]], timeout_s: float) -> None:
        self._agent = agent
        self._timeout_s = timeout_s
        self._open: dict[PlayT, float] = {}
        """What is played, and until when its lease is kept: a play that never comes to its end is lost at last."""
        self._most_failures = FAILURES_IN_A_ROW
        self._failures_in_a_row = 0
        self._over = False
        self._misplays = Misplays()
        self.dropped: Counter[str] = Counter()

    @abstractmethod
    async def _finish(self, episode: PlayT, sample: int, answer: AnswerT) -> bool:
        """End what was played with what its agent answered, and note the result; return whether it counts."""

    async def play(self, places: Iterator[Place[PlayT]], concurrency: int) -> None:
        """Play all places, or until the job is finished. Raises AgentFailed, ServerFailed, and Unreachable or
        EngineUnavailable once the server has been away, or its engine off, for ENGINE_OFF_S."""
        self._most_failures = max(FAILURES_IN_A_ROW, 2 * concurrency)
        heart = LoopThread("heartbeats")  # agents may block this loop
        beating = asyncio.run_coroutine_threadsafe(self._keep_alive(asyncio.get_running_loop()), heart.loop)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._work(places))
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        finally:
            beating.cancel()
            heart.close(wait=False)

    async def _work(self, places: Iterator[Place[PlayT]]) -> None:
        limits = LimitPauses()
        for place in places:
            done = False
            while not done and not self._over:
                done = await self._attempt(place, limits)
                await limits.pause()
            if self._over:
                return

    async def _attempt(self, place: Place[PlayT], limits: LimitPauses) -> bool:
        """Play once; return whether the place is filled."""
        try:
            episode = await self._begin(place)
        except JobFinished:
            self._over = True
            return False
        except (LeaseLost, EpisodeEnded, TeamAborted) as error:
            self._drop(error.code, error)
            return False
        self._open[episode] = time.monotonic() + self._timeout_s + ENGINE_OFF_S
        try:
            return await self._carry(episode, place.sample, limits)
        except (LeaseLost, EpisodeEnded, TeamAborted) as error:
            self._drop(error.code, error)
        except JobFinished:
            self._over = True
        finally:
            del self._open[episode]
        return False

    async def _begin(self, place: Place[PlayT]) -> PlayT:
        delay, off_since = 0.05, math.inf
        while True:
            try:
                return await place.begin()
            except (Throttled, EngineUnavailable, Unreachable) as error:
                now = time.monotonic()
                off_since = math.inf if isinstance(error, Throttled | StoreUnavailable) else min(off_since, now)
                if now - off_since > ENGINE_OFF_S:
                    raise
                await asyncio.sleep(error.retry_after or delay)
                delay = min(2.0, 2 * delay)

    async def _carry(self, episode: PlayT, sample: int, limits: LimitPauses) -> bool:
        try:
            counts = await self._finish(episode, sample, await self._run_agent(episode))
        except asyncio.CancelledError:
            await run_shielded(episode.abort("the rollout was cancelled"))
            raise
        except (LeaseLost, EpisodeEnded, ServerFailed, AgentFailed, TeamAborted):
            raise
        except Exception as error:  # noqa: BLE001 - whatever foreign code raises: its episode is given up and counted
            return await self._handle_failure(episode, sample, error, limits)
        limits.reset()
        if not counts:
            return False
        self._failures_in_a_row = 0
        self._misplays.clear()
        return True

    async def _run_agent(self, episode: PlayT) -> AnswerT:
        """Return the agent's answer; TimeoutError says how long it may take. What heeds no cancel is left behind."""
        playing = asyncio.ensure_future(self._agent(episode))
        playing.add_done_callback(lambda play: play.cancelled() or play.exception())  # somebody looked
        try:
            late = not (await asyncio.wait({playing}, timeout=self._timeout_s))[0]
        finally:
            if not playing.done():
                playing.cancel()
                await asyncio.wait({playing}, timeout=CLEANUP_TIMEOUT_S)
        if late or playing.cancelled():
            raise TimeoutError(f"the play was not over after {self._timeout_s:g} s" if late else "it cancelled itself")
        return playing.result()

    async def _handle_failure(self, episode: PlayT, sample: int, error: Exception, limits: LimitPauses) -> bool:
        """Abort the episode of a failed play, and count it; return whether its place is filled all the same.

        It says nothing of the agent if the server is away or cannot write, or an API's rate limit failed it.
        """
        limit_s = None if isinstance(error, WrongResult | UnusableReward) else find_retry_after_s(error)
        away = away_code(error)
        reason = f"{type(error).__name__}: {error}"
        try:
            await episode.abort(reason, failed=away is None and limit_s is None)
        except asyncio.CancelledError:
            await run_shielded(episode.abort(reason))
            raise
        except SwarmError as refusal:  # nothing depends on it: the lease runs out
            away = away or away_code(refusal)
        if away is not None:
            self.dropped[away] += 1
            if away == StoreUnavailable.code:  # an episode begins all the same
                log.info("event=store_unavailable pause_s=%.1f", limits.extend(0.0))
        elif limit_s is not None:
            self.dropped[RATE_LIMITED] += 1
            log.info("event=rate_limited pause_s=%.1f", limits.extend(limit_s))
        else:
            limits.reset()
            self._drop(f"agent: {type(error).__name__}", error)
            self._misplays.count(classify_misplay(error), str(error))
        return False

    def _drop(self, reason: str, error: BaseException) -> None:
        self.dropped[reason] += 1
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._most_failures:
            last = f"{type(error).__name__}: {error}"
            raise AgentFailed(f"{self._failures_in_a_row} plays in a row failed; the last one with {last}") from error

    async def _keep_alive(self, agents: asyncio.AbstractEventLoop) -> None:
        """Renew the leases of quiet plays, in another event loop than that of the agents, and say if these block it."""
        async with aclosing(Transports()) as connections:
            while True:
                free = threading.Event()
                agents.call_soon_threadsafe(free.set)
                ttl = min((episode.ttl_s for episode in self._open.copy()), default=_IDLE_LOOK_S)
                await asyncio.sleep(ttl / 3)
                if not free.is_set() and self._open:
                    log.warning("event=blocked seconds=%.1f: an agent blocks the event loop of all others", ttl / 3)
                now = time.monotonic()
                played = self._open.copy().items()
                quiet = [episode for episode, until in played if now < until and now - episode.last_call > ttl / 3]
                await asyncio.gather(*(_beat(episode, connections) for episode in quiet))


class RolloutLoop(PlayLoop[Episode[Any], Result]):
    """The loop around an agent that plays single episodes."""

    def __init__(self, agent: Agent, timeout_s: float, worst: Result = 0.0) -> None:
        super().__init__(agent, timeout_s)
        self._worst = worst
        self.results: list[EpisodeResult] = []

    async def _handle_failure(self, episode: Episode[Any], sample: int, error: Exception, limits: LimitPauses) -> bool:
        """An evaluation's play that its agent failed counts, as not solved."""
        lost = is_server_error(error) or find_retry_after_s(error) is not None
        if episode.kind != "eval" or isinstance(error, WrongResult) or lost:
            return await super()._handle_failure(episode, sample, error, limits)
        limits.reset()
        reward, _ = parse_reward(self._worst)
        try:
            ended = await self._end(episode, (reward, False))
        except asyncio.CancelledError:
            await run_shielded(episode.abort("the rollout was cancelled"))
            raise
        said = f"{type(error).__name__}: {error}"
        log.info("event=play_failed task=%s error=%s", episode.task.id, said)
        version, facts = episode.lease.policy_version, facts_of(self._worst)
        self.results.append(EpisodeResult(episode.task.id, sample, reward, False, version, facts, ended.tokens, said))
        if ended.tokens == 0:  # it broke before it called the model: so it may each time
            self._fail(error)
        else:
            self._failures_in_a_row = 0
        return True

    def summary(self) -> RolloutSummary:
        """Return what was done."""
        results = self.results
        judged = [result.success for result in results if result.success is not None]
        return RolloutSummary(
            episodes=len(results),
            reward_mean=mean_of([result.reward for result in results]) or 0.0,
            success_mean=mean_of([float(success) for success in judged]),
            dropped=dict(self.dropped),
        )

    async def _finish(self, episode: Episode[Any], sample: int, answer: Result) -> bool:
        reward, success = parse_reward(answer)
        ended = await self._end(episode, answer)
        if ended.tokens == 0 and episode.kind == "train":  # the server has dropped it
            said = describe_no_call(ended)
            self._drop("no_calls", AgentFailed(said))
            self._misplays.count("no_calls", said)
            return False
        if ended.state == "dropped":
            self.dropped[ended.reason or ended.state] += 1
            return False
        version = episode.lease.policy_version
        self.results.append(
            EpisodeResult(episode.task.id, sample, reward, success, version, facts_of(answer), ended.tokens)
        )
        return True

    async def _end(self, episode: Episode[Any], result: Result) -> EndAck:
        """End the episode; send it again while the server cannot write it down, boots, or is away."""
        reward, success = parse_reward(result)
        by_call, by_agent = (getattr(result, name, None) for name in ("by_call", "by_agent"))
        return await retry_until_ready(
            lambda: episode.end(reward, success, by_call=by_call, by_agent=by_agent), (EngineUnavailable, Unreachable)
        )


async def retry_until_ready(
    call: Callable[[], Awaitable[T]], away: tuple[type[SwarmError], ...] = (EngineUnavailable,)
) -> T:
    """Return what a call gives once the engine serves; raise what says it is `away` after ENGINE_OFF_S of that."""
    deadline = time.monotonic() + ENGINE_OFF_S
    while True:
        try:
            return await call()
        except away as error:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(error.retry_after or _RESEND_S)


async def run_shielded(*works: Coroutine[Any, Any, object]) -> None:
    """Do what cleans up, all at once, also where the caller is cancelled meanwhile, before it is begun even; each has
    GOODBYE_S, and its errors are let go: nothing depends on it, as leases run out."""

    async def run_bounded(work: Coroutine[Any, Any, object]) -> None:
        with suppress(SwarmError, TimeoutError):
            async with asyncio.timeout(CLEANUP_TIMEOUT_S):
                await work

    doing = [asyncio.create_task(run_bounded(work)) for work in works]
    try:
        await asyncio.shield(asyncio.gather(*doing))
    except asyncio.CancelledError:
        await asyncio.wait(doing)
        raise


async def _beat(episode: Playable, by: Transports) -> None:
    with suppress(SwarmError):  # whoever plays it meets the same error, and counts it
        await episode.heartbeat(by)


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean of numbers, None of none."""
    return sum(values) / len(values) if values else None


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


class StreamTasks(Generic[TaskT]):
    """Tasks in the order in which they are to be played; raises ValueError for none."""

    def __init__(self, stream: str, tasks: Iterable[TaskT]) -> None:
        known = list(tasks)
        if not known:
            raise ValueError("expected at least one task to play, found none")
        self.stream = stream
        self._ids = tuple(task.id for task in known)
        self._of = {task.id: task for task in known}
        self.digest = tasks_digest(self._ids)

    def __getitem__(self, task_id: str) -> TaskT:
        """Return the task of an id; raise InvalidRequest for one that is not among them."""
        if task_id not in self._of:
            raise InvalidRequest(
                f"expected one of the {len(self._of)} tasks of stream {self.stream!r}, found {task_id!r}"
            )
        return self._of[task_id]

    def request(self, *, with_ids: bool) -> TaskList:
        """Return what names the list to the server; without the ids it asks whether they are known there.

        Raises InvalidRequest for a stream or ids that no server can know.
        """
        ids = self._ids if with_ids else None
        try:
            return TaskList(stream=self.stream, digest=self.digest, count=len(self._ids), ids=ids)
        except ValidationError as error:
            raise to_invalid_request(error) from None
