"""The server's state machine, the gates of admission and of generation, and the clock of leases.

    OFFLINE -> BOOTING -> ROLLING -> ROLLING_POST -> WEIGHT_SYNCING -> ROLLING ...
    every state but OFFLINE and FAILED -> FAILED(reason);  every state but OFFLINE -> OFFLINE (stop)

ROLLING admits training episodes until a batch has all it needs, ROLLING_POST waits for open ones, WEIGHT_SYNCING
updates. With `max_staleness` of 1 or more the state is ROLLING throughout. Only this object writes the state.

The gate lets calls pass while open, wait while shut, and fail once broken; with `max_staleness` 0 the step loop shuts
it and waits until nothing is in flight before it updates. The clock counts only the seconds in which the server could
answer: between two beats of the loop MOST_S at most, so that a stopped process, a blocked loop or a sleeping machine
lets no lease expire before waiting heartbeats are read. Admission is first come first served.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from swarm.errors import SwarmError, Throttled
from swarm.wire import ServerState

T = TypeVar("T")
log = logging.getLogger(__name__)
MOST_UNPAID, UNPAID_PER_S = 10_000, 10.0
"""Episodes that may begin though no call was made in them: at once, and more each second."""
PAID = 2
"""Episodes that its owner may begin for one in which the model was called."""
MOST_PAID, MOST_OWNERS = 1000, 4096


class BeginQuota:
    """How many episodes may begin without a call of the model, which alone costs whoever begins them anything. Rows of
    episodes stay for ever: code in a container that begins and gives up in a loop would fill the disk. Owners whose
    agents call the model go on whatever another does."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left, self._at = float(MOST_UNPAID), clock()
        self._paid: dict[str, int] = {}

    def find_refusal(self, owner: str) -> Throttled | None:
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
        if self._paid.get(owner):
            self._paid[owner] -= 1
        else:
            self._left -= 1

    def earn(self, owner: str) -> None:
        self._paid[owner] = min(MOST_PAID, self._paid.pop(owner, 0) + PAID)
        if len(self._paid) > MOST_OWNERS:
            del self._paid[next(iter(self._paid))]


class Admission(Generic[T]):
    """A queue of attempts; an attempt returns what it was admitted to, None for no room yet, or raises a refusal.
    `give_back` takes what was admitted to a waiter that went away in the same instant."""

    def __init__(self, give_back: Callable[[T], None]) -> None:
        self._give_back = give_back
        self._line: dict[asyncio.Future[T], tuple[Callable[[], T | None], float, Hashable]] = {}

    def __len__(self) -> int:
        return len(self._line)

    @property
    def age_s(self) -> float | None:
        """Seconds for which the one that came first has waited; None where nobody waits."""
        return next((time.monotonic() - since for _, since, _ in self._line.values()), None)

    async def admit(self, attempt: Callable[[], T | None], wait_s: float, what: Hashable = None) -> T | None:
        """Return what `attempt` gives, at once or when there is room; None if there is none within `wait_s`. Where
        there is no room for `what` it asks, there is none for others who ask the same; None: it is tried by itself."""
        admitted = attempt()
        if admitted is not None or wait_s <= 0:
            return admitted
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._line[answer] = attempt, time.monotonic(), what or answer
        try:
            await asyncio.wait({answer}, timeout=wait_s)
        except asyncio.CancelledError:
            if answer.done() and answer.exception() is None:
                self._give_back(answer.result())
            raise
        finally:
            self._line.pop(answer, None)
        return answer.result() if answer.done() else None

    def admit_waiting(self) -> None:
        full = set[Hashable]()
        for answer, (attempt, _, what) in list(self._line.items()):
            if what in full:
                continue
            try:
                if (admitted := attempt()) is None:
                    full.add(what)
                    continue
                answer.set_result(admitted)
            except SwarmError as refusal:
                answer.set_exception(refusal)
            del self._line[answer]


class GenerationGate:
    """Counts the calls inside. Starts shut."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._busy_s = 0.0
        self._busy_since = 0.0
        self._open = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._error: SwarmError | None = None
        self.in_flight = 0

    @property
    def busy_s(self) -> float:
        """Seconds for which calls were inside, all together."""
        return self._busy_s + (self._now() - self._busy_since if self.in_flight else 0.0)

    async def enter(self) -> None:
        """Wait until the gate is open, then count in; raise the error it was broken with."""
        while self._error is None and not self._open.is_set():
            await self._open.wait()
        if self._error is not None:
            raise self._error
        if self.in_flight == 0:
            self._busy_since = self._now()
        self.in_flight += 1
        self._empty.clear()

    def leave(self) -> None:
        self.in_flight -= 1
        if self.in_flight == 0:
            self._busy_s += self._now() - self._busy_since
            self._empty.set()

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def fail(self, error: SwarmError) -> None:
        self._error = error
        self._open.set()

    async def wait_until_empty(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


BEAT_S = 0.05
MOST_S = 0.25
"""Most that passes between two beats: five times what it should be, which a busy loop keeps."""


class LeaseClock:
    """Seconds that were served, from an arbitrary beginning; `clock` is the one below."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten = clock()
        self._served = 0.0

    def __call__(self) -> float:
        return self._served + min(self._clock() - self._beaten, MOST_S)

    def beat(self) -> None:
        self._served, self._beaten = self(), self._clock()

    async def run(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(BEAT_S)


_S = ServerState
TRANSITIONS: Mapping[ServerState, frozenset[ServerState]] = {
    _S.OFFLINE: frozenset({_S.BOOTING}),
    _S.BOOTING: frozenset({_S.ROLLING, _S.FAILED, _S.OFFLINE}),
    _S.ROLLING: frozenset({_S.ROLLING_POST, _S.FAILED, _S.OFFLINE}),
    _S.ROLLING_POST: frozenset({_S.WEIGHT_SYNCING, _S.FAILED, _S.OFFLINE}),
    _S.WEIGHT_SYNCING: frozenset({_S.ROLLING, _S.FAILED, _S.OFFLINE}),
    _S.FAILED: frozenset({_S.OFFLINE}),
}


class StateMachine:
    """Holds the state; `transition_to` is the only way to change it, and logs each change."""

    def __init__(self) -> None:
        self.state = ServerState.OFFLINE
        self.reason: str | None = None
        """Why the server FAILED; None in every other state."""

    def transition_to(self, target: ServerState, reason: str | None = None) -> None:
        """Change the state. Raises RuntimeError, with the state unchanged, if the table has no such change or FAILED
        lacks a reason."""
        if target not in TRANSITIONS[self.state]:
            allowed = ", ".join(sorted(TRANSITIONS[self.state]))
            raise RuntimeError(f"{self.state} -> {target} is not a transition; from here: {allowed}")
        if (target is ServerState.FAILED) != bool(reason):
            raise RuntimeError(f"expected a reason exactly for FAILED, found {reason!r} for {target}")
        if reason is not None:  # it may name a file whose name is no Unicode, and a status has to be sent
            reason = reason.encode("utf-8", "backslashreplace").decode()
        log.info("event=state from=%s to=%s%s", self.state, target, f" reason={reason!r}" if reason else "")
        self.state, self.reason = target, reason
