"""The history of finished steps, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from swarm.server.service.core import SwarmServer
from swarm.server.training.metrics import finite
from swarm.snapshot import HistoryPage, StepRecord

STEPS_TOLD = 100
"""Steps in a page that does not say how many."""
MOST_STEPS = 500


class HistoryQuery(BaseModel):
    """Which steps and metrics are asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: int = Field(default=0, ge=0, le=2**31 - 1)
    limit: int = Field(default=STEPS_TOLD, ge=1, le=MOST_STEPS)
    newest: bool = False
    keys: str | None = Field(default=None, min_length=1, max_length=4000)

    @property
    def wanted(self) -> Callable[[str], bool]:
        """Whether a metric is asked for: all are where no keys are named; `stream/*` names all that begin so."""
        if self.keys is None:
            return lambda name: True
        named = [key.strip() for key in self.keys.split(",")]
        exact = {key for key in named if not key.endswith("*")}
        beginnings = tuple(key[:-1] for key in named if key.endswith("*"))
        return lambda name: name in exact or name.startswith(beginnings)


async def history(server: SwarmServer, query: HistoryQuery) -> HistoryPage:
    """Return a page of the finished steps: of the loaded job's training, else of the newest; engine on or off."""
    found = await server.written.history(query.after, query.limit + 1, newest=query.newest)
    wanted, more = query.wanted, len(found) > query.limit and not query.newest
    page = found[-query.limit :] if query.newest else found[: query.limit]
    steps = tuple(StepRecord(step=step, metrics=_chosen(metrics, wanted)) for step, metrics in page)
    return HistoryPage(job_digest=await server.digest(), steps=steps, next=steps[-1].step if more else None)


def _chosen(metrics: Mapping[str, float], wanted: Callable[[str], bool]) -> dict[str, float]:
    return finite({name: value for name, value in metrics.items() if wanted(name)})
