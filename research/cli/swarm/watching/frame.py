"""What one look at a server brings: its snapshot, and the curves of its last steps.

The steps are asked for again only once there may be others. A server that does not answer is shown as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from research.errors import ResearchError
from swarm.client import SwarmClient
from swarm.errors import NotFound, Unreachable
from swarm.snapshot import Snapshot, StepRecord

REWARD: Final = "critic/rewards/mean"
SUCCESS: Final = "critic/success/mean"
CURVES: Final = {
    "reward": REWARD,
    "success": SUCCESS,
    "loss": "actor/pg_loss",
    "entropy": "actor/entropy",
    "KL": "actor/ppo_kl",
    "clipped": "actor/pg_clipfrac",
    "evaluated": "eval/success/mean",
}
"""The curves that are shown, by what a person calls them."""
_KEYS: Final = (*CURVES.values(), "eval/reward/mean")
PLOTTED = 240
"""Last steps that are plotted."""
ANSWER_S = 5.0


class OlderServer(ResearchError):
    """The server is of a release that tells no snapshot."""


@dataclass(frozen=True, slots=True)
class TopFrame:
    """One look."""

    url: str
    snapshot: Snapshot
    first: StepRecord | None
    """The first step that is known."""
    steps: tuple[StepRecord, ...]
    silent_s: float = 0.0
    """Seconds since the server answered last; 0 where it just did."""

    def to_json(self) -> dict[str, Any]:
        """Return it as a script reads it."""
        steps = [record.model_dump(mode="json") for record in self.steps]
        first = None if self.first is None else self.first.model_dump(mode="json")
        return {"url": self.url, "snapshot": self.snapshot.model_dump(mode="json"), "first": first, "steps": steps}


class Watcher:
    """Looks at one server, again and again; `now` counts seconds."""

    def __init__(self, url: str, client: SwarmClient, now: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._client = client
        self._now = now
        self._seen: object = None
        self._frame: TopFrame | None = None
        self._heard = now()

    def look(self) -> TopFrame:
        """Return what there is now; Unreachable where it never answered, OlderServer where it cannot tell."""
        try:
            snapshot = self._client.snapshot(within_s=ANSWER_S)
            first, steps = self._curves(snapshot)
        except NotFound as error:
            raise OlderServer(
                f"expected a server that tells a snapshot, found one of an earlier release at {self._url}: see `ajet "
                "swarm status`, or start it again with this release"
            ) from error
        except Unreachable:
            if self._frame is None:
                raise
            return _silent(self._frame, self._now() - self._heard)
        self._heard = self._now()
        self._frame = TopFrame(self._url, snapshot, first, steps)
        return self._frame

    def _curves(self, snapshot: Snapshot) -> tuple[StepRecord | None, tuple[StepRecord, ...]]:
        status = snapshot.status
        seen = (status.job_digest, status.state, status.step, status.evaluation)
        if self._frame is not None and seen == self._seen:
            return self._frame.first, self._frame.steps
        first = self._client.history(0, _KEYS, 1).steps
        steps = self._client.history(0, _KEYS, PLOTTED, newest=True).steps
        self._seen = seen if steps and steps[-1].step >= status.step else None  # the store may be a moment behind
        return first[0] if first else None, steps


def _silent(frame: TopFrame, seconds: float) -> TopFrame:
    return TopFrame(frame.url, frame.snapshot, frame.first, frame.steps, max(seconds, 0.1))
