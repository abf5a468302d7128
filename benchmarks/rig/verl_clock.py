"""The backend `verl` with a clock at each of its parts, in the driver and in its processes; nothing else is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rig.spans import CALL, DEALT, MEASURED, ROWS, Span, Spans
from rig.timed_rank import TimedRank
from swarm.backends.verl.backend import VerlBackend
from swarm.job import Job

_LOOK_S = 60.0


class ClockedVerl:
    """A backend whose learner and replica are timed; made before Ray is loaded."""

    def __init__(self, job: Job, models: Path) -> None:
        self.backend = VerlBackend(job, models)
        self.spans = Spans()

    async def start(self) -> None:
        """Start it with ranks and replicas that have a clock."""
        from swarm.backends.verl.cluster import set_ray_environment

        set_ray_environment(None)  # before anything imports Ray
        from rig.timed_replica import TimedHandle, TimedReplica
        from swarm.backends.verl import engine, replica
        from swarm.backends.verl.learner import VerlLearner

        TimedHandle.made.clear()
        with (
            _replaced(VerlLearner, "RANK", TimedRank),
            _replaced(replica, "Replica", TimedReplica),
            _replaced(engine, "RayReplica", TimedHandle),
        ):
            await self.backend.start()
        learner = self.backend.learner
        learner.group.call = _by_method(self.spans, learner.group.call)  # type: ignore[method-assign]
        learner._begin = self.spans.timed(ROWS, learner._begin)  # type: ignore[method-assign]

    @property
    def handle(self) -> Any:
        """The replica's `TimedHandle`."""
        from rig.timed_replica import TimedHandle

        return TimedHandle.made[0]

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Time what the learner's module calls by name, as long as this lasts."""
        from swarm.algorithms import learner as steps
        from swarm.algorithms.objective import batch_metrics
        from swarm.backends.verl import learner
        from swarm.backends.verl.learner import RowPartition

        deal = _timed_deal(self.spans, RowPartition)
        metrics = self.spans.timed(MEASURED, batch_metrics)
        with _replaced(learner, "RowPartition", deal), _replaced(steps, "batch_metrics", metrics):
            yield

    def dealt(self, rows: Sequence[Any], advantages: Sequence[float], weights: Sequence[float]) -> list[Any]:
        """Return the arguments of each rank for rows, timed as in an update."""
        from swarm.backends.verl.learner import RowPartition

        deal = _timed_deal(self.spans, RowPartition)(rows, self.backend.learner.group.world)
        return [(batch, deal.longest) for batch in deal.batches(advantages, weights)]

    def taken(self) -> tuple[list[Span], list[Span]]:
        """Return the spans of the driver and of the rank since the last time."""
        found = self.spans.taken()
        (own,) = self.backend.learner.group.call_all("spans", timeout_s=_LOOK_S)
        self.spans.taken()
        return found, own


def _by_method(spans: Spans, call: Any) -> Any:
    def called(method: str, *arguments: Any, **named: Any) -> Any:
        with spans.measured(f"{CALL}{method}"):
            return call(method, *arguments, **named)

    return called


def _timed_deal(spans: Spans, deal: type[Any]) -> type[Any]:
    class TimedDeal(deal):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            with spans.measured(DEALT):
                super().__init__(*arguments)

        def batches(self, *arguments: Any) -> Any:
            with spans.measured(DEALT):
                return super().batches(*arguments)

    return TimedDeal


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)
