"""The server's state machine: a typed table of transitions, and the only object that writes the state.

    OFFLINE -> BOOTING -> ROLLING -> ROLLING_POST -> WEIGHT_SYNCING -> ROLLING ...
    every state but OFFLINE and FAILED -> FAILED(reason)
    every state but OFFLINE -> OFFLINE (stop)

ROLLING admits training episodes until a batch has all it needs; ROLLING_POST waits for the open ones;
WEIGHT_SYNCING updates the policy. Where rollout and update overlap (`max_staleness` of 1 or more) the state is ROLLING
throughout. Knows nothing of what happens in a state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swarm.wire import ServerState

_S = ServerState
TRANSITIONS: Mapping[ServerState, frozenset[ServerState]] = {
    _S.OFFLINE: frozenset({_S.BOOTING}),
    _S.BOOTING: frozenset({_S.ROLLING, _S.FAILED, _S.OFFLINE}),
    _S.ROLLING: frozenset({_S.ROLLING_POST, _S.FAILED, _S.OFFLINE}),
    _S.ROLLING_POST: frozenset({_S.WEIGHT_SYNCING, _S.FAILED, _S.OFFLINE}),
    _S.WEIGHT_SYNCING: frozenset({_S.ROLLING, _S.FAILED, _S.OFFLINE}),
    _S.FAILED: frozenset({_S.OFFLINE}),
}
EVENTS_KEPT = 4096


class IllegalTransition(RuntimeError):
    """The table has no such transition; the state is unchanged."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state; `at` is Unix time in seconds, `reason` is set for FAILED alone."""

    source: ServerState
    target: ServerState
    at: float
    reason: str | None = None


class StateMachine:
    """Holds the state; `to` is the only way to change it, and tells `listener` after each change."""

    def __init__(
        self, listener: Callable[[Transition], None] = lambda change: None, clock: Callable[[], float] = time.time
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._state = ServerState.OFFLINE
        self._reason: str | None = None
        self.events: deque[Transition] = deque(maxlen=EVENTS_KEPT)
        """The latest transitions, oldest first."""

    @property
    def state(self) -> ServerState:
        """The present state."""
        return self._state

    @property
    def reason(self) -> str | None:
        """Why the server FAILED; None in every other state."""
        return self._reason

    def to(self, target: ServerState, reason: str | None = None) -> None:
        """Change the state; raise IllegalTransition if the table has no such change or FAILED lacks a reason."""
        if target not in TRANSITIONS[self._state]:
            allowed = ", ".join(sorted(TRANSITIONS[self._state]))
            raise IllegalTransition(f"{self._state} -> {target} is not a transition; from here: {allowed}")
        if (target is ServerState.FAILED) != bool(reason):
            raise IllegalTransition(f"expected a reason exactly for FAILED, found {reason!r} for {target}")
        if reason is not None:  # it may name a file whose name is no Unicode, and a status has to be sent
            reason = reason.encode("utf-8", "backslashreplace").decode()
        change = Transition(self._state, target, self._clock(), reason)
        self._state, self._reason = target, reason
        self.events.append(change)
        self._listener(change)
