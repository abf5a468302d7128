"""Admission: requests that find no room wait in a queue, first come first served, for as long as they asked.

One queue serves all tasks: a freed place goes to the first waiter it fits. `pump` must be called after every
change that may make room; a newcomer then finds room only if no waiter could use it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from swarm.errors import SwarmError, Throttled

T = TypeVar("T")
MOST_UNPAID, UNPAID_PER_S = 10_000, 10.0
"""Episodes that may begin though no call was made in them: at once, and more each second."""
PAID = 2
"""Episodes that its owner may begin for one in which the model was called."""
MOST_PAID, MOST_OWNERS = 1000, 4096


@dataclass(eq=False)
class _Waiter(Generic[T]):
    attempt: Callable[[], T | None]
    answer: asyncio.Future[T]
    since: float


class Allowance:
    """How many episodes may begin without a call of the model, which alone costs whoever begins them anything.

    Rows of episodes stay for ever: code in a container that begins and gives up in a loop would fill the disk. Owners
    whose agents call the model go on whatever another does.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left, self._at = float(MOST_UNPAID), clock()
        self._paid: dict[str, int] = {}

    def refusal(self, owner: str) -> Throttled | None:
        """Return why the owner may begin no episode now; None where it may."""
        now = self._clock()
        self._left = min(float(MOST_UNPAID), self._left + (now - self._at) * UNPAID_PER_S)
        self._at = now
        if self._paid.get(owner) or self._left >= 1:
            return None
        return Throttled(
            f"expected calls of the model in episodes, found {MOST_UNPAID} without; see why the agent ends before its "
            f"first call; others begin at {UNPAID_PER_S:g} a second",
            retry_after=1.0,
        )

    def spend(self, owner: str) -> None:
        """Count an episode that begins."""
        if self._paid.get(owner):
            self._paid[owner] -= 1
        else:
            self._left -= 1

    def earn(self, owner: str) -> None:
        """Count the first call in an episode."""
        self._paid[owner] = min(MOST_PAID, self._paid.pop(owner, 0) + PAID)
        if len(self._paid) > MOST_OWNERS:
            del self._paid[next(iter(self._paid))]


class Admission(Generic[T]):
    """A queue of attempts; an attempt returns what it was admitted to, None for no room yet, or raises a refusal.

    `give_back` takes what was admitted to a waiter that went away in the same instant.
    """

    def __init__(self, give_back: Callable[[T], None]) -> None:
        self._give_back = give_back
        self._line: list[_Waiter[T]] = []

    def __len__(self) -> int:
        return len(self._line)

    @property
    def age_s(self) -> float | None:
        """Seconds for which the one that came first has waited; None where nobody waits."""
        return time.monotonic() - self._line[0].since if self._line else None

    async def admit(self, attempt: Callable[[], T | None], wait_s: float) -> T | None:
        """Return what `attempt` gives, at once or when there is room; None if there is none within `wait_s`."""
        found = attempt()
        if found is not None or wait_s <= 0:
            return found
        waiter = _Waiter(attempt, asyncio.get_running_loop().create_future(), time.monotonic())
        self._line.append(waiter)
        try:
            await asyncio.wait({waiter.answer}, timeout=wait_s)
        except asyncio.CancelledError:
            if waiter.answer.done() and waiter.answer.exception() is None:
                self._give_back(waiter.answer.result())
            raise
        finally:
            if waiter in self._line:
                self._line.remove(waiter)
        return waiter.answer.result() if waiter.answer.done() else None

    def pump(self) -> None:
        """Try every waiter again, in order."""
        for waiter in list(self._line):
            try:
                found = waiter.attempt()
            except SwarmError as refusal:
                self._line.remove(waiter)
                waiter.answer.set_exception(refusal)
                continue
            if found is not None:
                self._line.remove(waiter)
                waiter.answer.set_result(found)
