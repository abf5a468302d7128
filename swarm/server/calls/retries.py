"""Which call a request belongs to that was sent again.

SDKs send a request again when its answer did not come, and say so by a header. Such a request is answered by the
call it was first made for, if that can still be had: one that waits for its client to come back, else one that
generates, else one that was served a short while ago. Requests with equal bodies that were not sent again are
calls of their own. Knows calls by a key alone, which holds whatever must be equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from swarm.server.calls.call import Call

KEPT_S = 10.0
"""Seconds for which a call can be found after it was over: SDKs wait up to eight before they ask again."""


class Retries:
    """The calls of one route. `clock` is the event loop's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls: dict[Hashable, list[Call]] = {}
        self._due: deque[tuple[float, Hashable, Call]] = deque()

    def __len__(self) -> int:
        return len(self._due)

    def find(self, key: Hashable) -> Call | None:
        """Return the call a request that was sent again is answered by, if there is one."""
        calls = [call for call in self._calls.get(key, ()) if call.alive]
        return min(calls, key=_rank, default=None)

    def add(self, key: Hashable, call: Call) -> None:
        """Let the call be found, and forget those whose time is over."""
        now = self._clock()
        self._calls.setdefault(key, []).append(call)
        self._due.append((now + KEPT_S, key, call))
        while self._due[0][0] <= now:
            self._judge(now, *self._due.popleft()[1:])

    def _judge(self, now: float, key: Hashable, call: Call) -> None:
        """Forget a call that was over long enough ago."""
        due = (now if call.over_at is None else call.over_at) + KEPT_S
        if due > now:
            self._due.append((due, key, call))
            return
        calls = self._calls[key]
        calls.remove(call)
        if not calls:
            del self._calls[key]


def _rank(call: Call) -> int:
    return 0 if call.waiting else 2 if call.served else 1
