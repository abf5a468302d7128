"""verl's rank with a clock: the same class, whose parts are timed where they run."""

from __future__ import annotations

from typing import Any

from rig.spans import METHOD, Span, Spans
from swarm.algorithms.objective import UpdateSums
from swarm.backends.verl.losses import WholeMinibatch
from swarm.backends.verl.worker import Loss, Rank, RankShare


class _TimedLoss:
    """A loss whose calls are timed."""

    def __init__(self, loss: Loss, spans: Spans) -> None:
        self._loss, self._spans = loss, spans

    @property
    def sums(self) -> UpdateSums:
        return self._loss.sums

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._spans.measured("loss"):
            return self._loss(*arguments, **named)


class TimedRank(Rank):
    """A Ray actor's class."""

    def start(self, rank: int, world: int, address: str, port: int) -> float:
        """Start as `Rank` does, and have a clock at verl's engine."""
        import torch

        found = super().start(rank, world, address, port)
        self._spans = Spans()
        engine = self._engine
        engine.prepare_model_outputs = self._spans.timed("log-probs", engine.prepare_model_outputs)
        engine.optimizer_step = self._spans.timed("optimiser", engine.optimizer_step)
        engine.module.forward = self._spans.timed("model forward", engine.module.forward)
        backward = self._spans.timed("backward", torch.Tensor.backward)
        torch.Tensor.backward = backward  # type: ignore[method-assign]  # verl's engine calls the tensor's own
        return found

    def begin(self, loss: Loss, *, undoable: bool) -> None:
        """See `Rank`."""
        with self._spans.measured(f"{METHOD}begin"):
            super().begin(loss, undoable=undoable)
            self._loss = _TimedLoss(loss, self._spans)

    def gradient(self, batch: Any, longest: int, whole: WholeMinibatch | None = None) -> RankShare:
        """See `Rank`."""
        with self._spans.measured(f"{METHOD}gradient"):
            return super().gradient(batch, longest, whole)

    def step(self, size: float) -> float:
        """See `Rank`."""
        with self._spans.measured(f"{METHOD}step"):
            return super().step(size)

    def export_weights(self) -> list[Any]:
        """See `Rank`."""
        with self._spans.measured(f"{METHOD}export_weights"):
            return super().export_weights()

    def spans(self) -> list[Span]:
        """Return what was measured since the last time."""
        return self._spans.taken()
