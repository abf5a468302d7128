"""The loop around an agent that plays many episodes at once, to train or to evaluate; and what failures say.

Each of `concurrency` workers begins an episode, lets the agent play, ends it, and takes the next place. A failed play
is played again at once, so that no group waits for it, unless its task failed three times (the server skips it in this
pass). After an API's rate limit (HTTP 429), which says nothing of the agent, its worker pauses. In an evaluation an
agent's failure counts as not solved, else one that breaks on half of its answers would look as good as one that never
does; only what server or network lost is played again.

Leases of slow agents are kept alive up to `timeout_s`. A server that is away or has no room to write is waited for;
what was played meanwhile is lost with its lease, counted and played again, unless its end was written down.
"""

import asyncio
import logging
import math
import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from pydantic import ValidationError

from swarm import errors
from swarm.client import episode as episodes
from swarm.client.episode import AgentFailed, Episode, EpisodeResult, Result, TaskT, UnusableReward, WrongResult
from swarm.client.threads import background
from swarm.client.transport import Transport
from swarm.wire import TaskList, tasks_digest

T = TypeVar("T")
log = logging.getLogger(__name__)
FIRST_WAIT_S: Final = 0.5
MOST_WAIT_S: Final = 30.0
"""After so long a limited API is asked again, whatever it asked for: its agent's place must not be held for ever."""
MOST_MISPLAYS: Final = 8
"""Plays without a usable reward, or a call that is trained, after which an agent that had no good play is refused. One
play may do so by chance: it divided by an empty list, it knew the answer from a cache. An agent that does so in
half of its plays would be refused wrongly once in 256 times; a wrong type is no chance, and refused at once."""
FAILURES_IN_A_ROW = 64
"""Failed plays without a good one between them, over all workers, after which the rollout gives up; at
least two for each place, as one restart of a server fails what is played at all of them."""
ENGINE_OFF_S = 120.0
"""How long a rollout waits for a server that does not answer, or whose engine is off or boots, before it raises
Unreachable or EngineUnavailable."""
WAIT_S = 10.0
"""How long the server may hold the request for an episode until there is room."""
CLEANUP_TIMEOUT_S = 2.0
"""How long a cancelled rollout tries to give an episode up; its lease runs out anyway. The server is told that an
episode may take so much longer than its agent: by then it was ended or given up."""
_RESEND_S = 0.2
_IDLE_LOOK_S = 0.6
"""Three times the pause between two looks for open episodes while there is none."""
_MOST_CAUSES: Final = 8
_OF_HTTP: Final = {"openai", "anthropic", "httpx", "httpcore", "requests", "urllib3", "aiohttp", "litellm"}
_NO_ANSWER: Final = re.compile("Connect|Timeout|^(Remote)?Protocol|^Read|^Write|Disconnected|Payload|OSError|MaxRetry")
"""In the names of their errors where there was no answer."""


class AgentMisplays(AgentFailed):
    """What the agent does can never be trained, so that to play on is of no use; the message says what to mend."""


def _causes(error: BaseException | None) -> Iterator[tuple[BaseException, int | None]]:
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        carriers = (error, getattr(error, "response", None))
        statuses = (getattr(carrier, name, None) for carrier in carriers for name in ("status_code", "status"))
        yield error, next((status for status in statuses if isinstance(status, int)), None)
        error = error.__cause__ or error.__context__


def find_retry_after_s(error: BaseException) -> float | None:
    """Return how long an API that answered 429 asked to wait, 0 where it did not say; None for any other error. The
    errors of openai, anthropic, httpx, requests, aiohttp and urllib are known by what they carry: a status (as
    `status_code` or `status`, their own or their response's), and a Retry-After header; an agent's own error may have
    `status_code` and `retry_after`."""
    limited = next((cause for cause, status in _causes(error) if status == 429), None)
    if limited is None:
        return None
    headers: Any = getattr(limited, "headers", None) or getattr(getattr(limited, "response", None), "headers", None)
    asked = getattr(limited, "retry_after", None)
    with suppress(AttributeError, TypeError, ValueError):  # a date, or nothing that is known
        asked = headers.get("Retry-After", headers.get("retry-after", 0)) if asked is None else asked
        return max(0.0, float(asked))
    return 0.0


def is_server_error(error: BaseException) -> bool:
    """Return whether an agent's error is one of the server or network that it called: a status of 500 or more, or none.
    A play that one ended says nothing of its agent."""
    return any(
        isinstance(cause, ConnectionError | errors.EngineUnavailable | errors.Unreachable | errors.Throttled)
        or (type(cause).__module__.partition(".")[0] in _OF_HTTP and _NO_ANSWER.search(type(cause).__name__))
        or (status or 0) >= 500
        for cause, status in _causes(error)
    )


def away_code(error: BaseException) -> str | None:
    """Return the code by which a swarm server said that it cannot serve now, or is not reached; None for other errors.
    SDKs raise errors of their own for what it answers, which quote its code."""
    for cause, status in _causes(error):
        if isinstance(cause, errors.EngineUnavailable | errors.Unreachable):
            return cause.code
        if status == 503:
            kinds = (errors.StoreUnavailable, errors.EngineUnavailable)
            return next((kind.code for kind in kinds if kind.code in str(cause)), None)
    return None


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


class _Playable(Protocol):
    """What one play takes place in: an episode, or the episodes of a team."""

    @property
    def ttl_s(self) -> float: ...

    @property
    def last_call(self) -> float: ...

    @property
    def task(self) -> Any: ...

    async def heartbeat(self, by: Transport | None = None) -> object: ...

    def abort(self, reason: str = "", *, failed: bool = False) -> Coroutine[Any, Any, object]: ...


PlayT = TypeVar("PlayT", bound=_Playable)
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
        self.allowed_s = timeout_s + CLEANUP_TIMEOUT_S
        """What the server is told that an episode may take."""
        self._open: dict[PlayT, float] = {}
        """What is played, and until when its lease is kept: a play that never comes to its end is lost at last."""
        self._most_failures = FAILURES_IN_A_ROW
        self._failures_in_a_row = 0
        self._had_good_play = False
        self._misplays = 0
        self._over = False
        self.dropped: Counter[str] = Counter()

    @abstractmethod
    async def _finish(self, episode: PlayT, sample: int, answer: AnswerT, failed: Exception | None = None) -> bool:
        """End what was played with what its agent answered, or is worth as it `failed`, and note the result. Returns
        whether it counts."""

    @abstractmethod
    def _worst_answer(self, episode: PlayT, error: Exception) -> AnswerT | None:
        """Return what an evaluation's play is worth that its agent failed; None: it is given up and played again."""

    async def play(self, places: Iterator[Place[PlayT]], concurrency: int) -> None:
        """Play all places, or until the job is finished. Raises AgentFailed, ServerFailed, and Unreachable or
        EngineUnavailable once the server has been away, or its engine off, for ENGINE_OFF_S."""
        self._most_failures = max(FAILURES_IN_A_ROW, 2 * concurrency)
        own = asyncio.get_running_loop()  # which agents may block
        beating = asyncio.run_coroutine_threadsafe(self._keep_alive(own), background().loop)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._work(places))
        except BaseExceptionGroup as failures:
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from failures
        finally:
            beating.cancel()

    async def _work(self, places: Iterator[Place[PlayT]]) -> None:
        limits = LimitPauses()
        for place in places:
            done = False
            while not done and not self._over:
                try:
                    done = await self._attempt(place, limits)
                except errors.JobFinished:
                    self._over = True
                except (errors.LeaseLost, errors.EpisodeEnded, errors.TeamAborted) as error:
                    self._drop(error.code, error)
                await limits.pause()
            if self._over:
                return

    async def _attempt(self, place: Place[PlayT], limits: LimitPauses) -> bool:
        episode = await self._begin(place)
        self._open[episode] = time.monotonic() + self._timeout_s + ENGINE_OFF_S
        try:
            try:
                counts = await self._finish(episode, place.sample, await self._run_agent(episode))
            except (errors.LeaseLost, errors.EpisodeEnded, errors.ServerFailed, AgentFailed, errors.TeamAborted):
                raise
            except Exception as error:  # noqa: BLE001 - whatever foreign code raises: its play is given up, or failed
                return await self._handle_failure(episode, place.sample, error, limits)
            limits.reset()
            if counts:
                self._failures_in_a_row, self._had_good_play = 0, True
            return counts
        except asyncio.CancelledError:
            await run_shielded(episode.abort("the rollout was cancelled"))
            raise
        except (errors.LeaseLost, errors.EpisodeEnded, errors.ServerFailed, AgentFailed) as error:
            # what one member lost, none keeps
            await run_shielded(episode.abort(f"{type(error).__name__}: {error}"))
            raise
        finally:
            del self._open[episode]

    async def _begin(self, place: Place[PlayT]) -> PlayT:
        delay, off_since = 0.05, math.inf
        while True:
            try:
                return await place.begin()
            except (errors.Throttled, errors.EngineUnavailable, errors.Unreachable) as error:
                now = time.monotonic()
                serves = isinstance(error, errors.Throttled | errors.StoreUnavailable)
                off_since = math.inf if serves else min(off_since, now)
                if now - off_since > ENGINE_OFF_S:
                    raise
                await asyncio.sleep(error.retry_after or delay)
                delay = min(2.0, 2 * delay)

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
        """Count what an agent failed, or give it up; return whether its place is filled all the same. It says nothing
        of the agent if the server is away or cannot write, or an API's rate limit failed it."""
        reason = f"{type(error).__name__}: {error}"
        limit_s = None if isinstance(error, WrongResult | UnusableReward) else find_retry_after_s(error)
        if limit_s is None and not is_server_error(error) and (worst := self._worst_answer(episode, error)) is not None:
            limits.reset()
            log.info("event=play_failed task=%s error=%s", episode.task.id, reason)
            return await self._finish(episode, sample, worst, error)
        away = away_code(error)
        try:
            await episode.abort(reason, failed=away is None and limit_s is None)
        except errors.SwarmError as refusal:  # nothing depends on it: the lease runs out
            away = away or away_code(refusal)
        if away is not None:
            self.dropped[away] += 1
            if away == errors.StoreUnavailable.code:  # an episode begins all the same
                log.info("event=store_unavailable pause_s=%.1f", limits.extend(0.0))
        elif limit_s is not None:
            self.dropped["rate_limited"] += 1
            log.info("event=rate_limited pause_s=%.1f", limits.extend(limit_s))
        else:
            limits.reset()
            misplay = isinstance(error, WrongResult | UnusableReward)  # the agent in itself, and not this play alone
            if isinstance(error, errors.InvalidRequest):
                misplay = error.param == "train_agents" or "reward" in error.message
            self._drop(f"agent: {type(error).__name__}", error, misplay=misplay)
        return False

    def _drop(self, reason: str, error: BaseException, *, misplay: bool = False) -> None:
        self.dropped[reason] += 1
        self._fail(error)
        if misplay and not self._had_good_play:
            self._misplays += 1
            if isinstance(error, WrongResult) or self._misplays >= MOST_MISPLAYS:
                often = "once" if self._misplays == 1 else f"{self._misplays} times"
                raise AgentMisplays(f"{error} ({often}, and no play was good); mend the agent and run it again")

    def _fail(self, error: BaseException) -> None:
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._most_failures:
            last = f"{type(error).__name__}: {error}"
            raise AgentFailed(f"{self._failures_in_a_row} plays in a row failed; the last one with {last}") from error

    async def _keep_alive(self, agents: asyncio.AbstractEventLoop) -> None:
        async def beat(episode: PlayT) -> None:
            with suppress(errors.SwarmError):  # whoever plays it meets the same error, and counts it
                await episode.heartbeat(connections)

        async with Transport("") as connections:
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
                await asyncio.gather(*map(beat, quiet))


class RolloutLoop(PlayLoop[Episode[Any], Result]):
    """The loop around an agent that plays single episodes."""

    def __init__(self, agent: episodes.Agent, timeout_s: float, worst: Result = 0.0) -> None:
        super().__init__(agent, timeout_s)
        self._worst = worst
        self.results: list[EpisodeResult] = []

    def summary(self) -> episodes.RolloutSummary:
        """Return what was done."""
        results = self.results
        return episodes.RolloutSummary(
            episodes=len(results),
            reward_mean=mean_of([result.reward for result in results]) or 0.0,
            success_mean=mean_of([float(result.success) for result in results if result.success is not None]),
            dropped=dict(self.dropped),
        )

    def _worst_answer(self, episode: Episode[Any], error: Exception) -> Result | None:
        return None if episode.kind != "eval" or isinstance(error, WrongResult) else self._worst

    async def _finish(
        self, episode: Episode[Any], sample: int, answer: Result, failed: Exception | None = None
    ) -> bool:
        """End the episode; send it again while the server cannot write it down, boots, or is away."""
        reward, success = episodes.parse_reward(answer)
        by_call, by_agent = (None if failed else getattr(answer, name, None) for name in ("by_call", "by_agent"))
        success = False if failed else success
        ended = await retry_until_ready(
            lambda: episode.end(reward, success, by_call=by_call, by_agent=by_agent),
            (errors.EngineUnavailable, errors.Unreachable),
        )
        if ended.tokens == 0 and episode.kind == "train":  # the server has dropped it
            wrong = (
                f"expected the model to answer the agent; found a play whose calls were all refused ({ended.refused}); "
                f"the last was told: {ended.refusal}"
                if ended.refused
                else "expected the agent to call the model, with episode.chat or an SDK at episode.base_url with "
                "episode.api_key; found plays that ended with a reward and no call, of which nothing can be trained"
            )
            self._drop("no_calls", AgentFailed(wrong), misplay=True)
            return False
        if ended.state == "dropped" and not failed:
            self.dropped[ended.reason or ended.state] += 1
            return False
        version, reason = episode.lease.policy_version, f"{type(failed).__name__}: {failed}" if failed else ""
        facts = dict(getattr(answer, "facts", None) or {})
        self.results.append(
            EpisodeResult(episode.task.id, sample, reward, success, version, facts, ended.tokens, reason)
        )
        # One that broke before it called the model may do so each time.
        if failed and ended.tokens == 0 and not isinstance(failed, episodes.PlayFailed):
            self._fail(failed)
        elif failed:
            self._failures_in_a_row = 0
        return True


async def retry_until_ready(
    call: Callable[[], Awaitable[T]],
    away: tuple[type[errors.SwarmError], ...] = (errors.EngineUnavailable,),
    patience_s: float | None = None,
) -> T:
    """Return what a call gives once the server is ready; raise what says that it is `away` after `patience_s` of that.
    By default after ENGINE_OFF_S."""
    deadline = time.monotonic() + (ENGINE_OFF_S if patience_s is None else patience_s)
    while True:
        try:
            return await call()
        except away as error:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(error.retry_after or _RESEND_S)


async def run_shielded(*works: Coroutine[Any, Any, object]) -> None:
    """Do what cleans up, all at once, also where the caller is cancelled meanwhile, before it is begun even; each has
    CLEANUP_TIMEOUT_S, and its errors are let go: nothing depends on it, as leases run out."""

    async def run_bounded(work: Coroutine[Any, Any, object]) -> None:
        with suppress(errors.SwarmError, TimeoutError):
            async with asyncio.timeout(CLEANUP_TIMEOUT_S):
                await work

    doing = [asyncio.create_task(run_bounded(work)) for work in works]
    try:
        await asyncio.shield(asyncio.gather(*doing))
    except asyncio.CancelledError:
        await asyncio.wait(doing)
        raise


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean of numbers, None of none."""
    return sum(values) / len(values) if values else None


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
            raise errors.InvalidRequest(
                f"expected one of the {len(self._of)} tasks of stream {self.stream!r}, found {task_id!r}"
            )
        return self._of[task_id]

    def request(self, *, with_ids: bool) -> TaskList:
        """Return what names the list to the server; without the ids it asks whether they are known there. Raises
        InvalidRequest for a stream or ids that no server can know."""
        ids = self._ids if with_ids else None
        try:
            return TaskList(stream=self.stream, digest=self.digest, count=len(self._ids), ids=ids)
        except ValidationError as error:
            raise errors.to_invalid_request(error) from None
