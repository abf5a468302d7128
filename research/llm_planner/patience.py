"""An endpoint that is waited for: what passes is asked again with growing pauses, as long as patience lasts.

An endpoint that was never reached is not waited for: nobody knows that it is there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from research.errors import PlannerFailed
from research.llm_planner.endpoint import Endpoint, EndpointError, failure

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 600.0
_MOST_DOUBLINGS = 10


class PatientEndpoint:
    """The endpoint, with patience for what passes."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_s: float,
        patience_s: float,
        sleep: Callable[[float], None],
        note: Callable[[str], None],
        *,
        reached: bool,
    ) -> None:
        self.reached = reached
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._left_s = patience_s
        self._sleep = sleep
        self._tell = note
        self._failed = 0
        self._last = ""

    def complete(self, request: Mapping[str, Any]) -> str:
        """Return the reply's body; raise EndpointError once patience is at its end, or waiting would not help."""
        while True:
            began = time.monotonic()
            try:
                reply = self._endpoint.complete(request, self._timeout_s)
            except EndpointError as error:
                self.reached = self.reached or error.kind != "unreachable"
                pause = max(_pause(self._failed), error.retry_after or 0.0)
                self._left_s -= time.monotonic() - began + pause
                if not (error.passing and self.reached) or self._left_s < 0:
                    raise
                self._failed += 1
                self._last = str(error.status or error.kind)
                self._tell(f"{self._endpoint.where} gives no answer ({self._last}); asked again in {pause:.0f} s")
                self._sleep(pause)
            else:
                self.reached = True
                return reply

    def failed(self, error: EndpointError, model: str) -> PlannerFailed:
        """Return the failure as one line for a person."""
        told = failure(error, self._endpoint.where, model, self._timeout_s)
        again = f" (after {self._failed + 1} tries with pauses)" if self._failed else ""
        return PlannerFailed(told + again)

    def redacted(self, text: str) -> str:
        """Return a text in short, without the key."""
        return self._endpoint.redacted(text)

    @property
    def note(self) -> str:
        """What the turn waited for, in a sentence; empty for nothing."""
        times = "once" if self._failed == 1 else f"{self._failed} times"
        return f"The endpoint was waited for {times} ({self._last})." if self._failed else ""


def _pause(failed: int) -> float:
    """Return the seconds to wait after so many failures: doubling, up to half less at random."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failed, _MOST_DOUBLINGS)) * random.uniform(0.5, 1.0)
