"""What a failed play says of its agent: an API it uses is rate-limited, it can never be trained as it is, or neither.

Knows no episode: the loop around an agent (`swarm.client.rollout`) asks, and gives up, waits or ends.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final, Literal

from swarm.client.agents import AgentFailed, UnusableReward, WrongResult
from swarm.errors import EngineUnavailable, InvalidRequest, StoreUnavailable, Throttled, Unreachable
from swarm.wire import EndAck

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


def no_call(ended: EndAck) -> str:
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


def misplay_of(error: Exception) -> Misplay | None:
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

    def met(self, asked_s: float) -> float:
        """A play met a limit whose API asked for so long a pause (0: it did not say); return the pause that is due."""
        grown = min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._in_a_row, 16))
        self._in_a_row += 1
        self._due_s = min(MOST_WAIT_S, max(asked_s, random.uniform(0.5, 1.0) * grown))
        return self._due_s

    def over(self) -> None:
        """A play met none."""
        self._in_a_row = 0

    async def pause(self) -> None:
        """Wait for as long as is due."""
        due, self._due_s = self._due_s, 0.0
        if due:
            await asyncio.sleep(due)


def limited_s(error: BaseException) -> float | None:
    """Return how long an API that answered 429 asked to wait, 0 where it did not say; None for any other error.

    The errors of openai, anthropic, httpx, requests, aiohttp and urllib are known by what they carry: a status (as
    `status_code`, `status` or `code`, their own or their response's), and a Retry-After header; an agent's own error
    may have `status_code` and `retry_after`.
    """
    for each in _causes(error):
        for carrier in (each, getattr(each, "response", None)):
            if any(getattr(carrier, name, None) == _TOO_MANY_REQUESTS for name in ("status_code", "status", "code")):
                return _asked_s(each, carrier)
    return None


def is_servers(error: BaseException) -> bool:
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


def _asked_s(error: Any, carrier: Any) -> float:
    headers = getattr(carrier, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}
    said = getattr(error, "retry_after", None)
    try:
        return max(0.0, float(said if said is not None else headers.get("Retry-After", headers.get("retry-after", 0))))
    except (TypeError, ValueError, AttributeError):  # a date, or no headers at all
        return 0.0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
