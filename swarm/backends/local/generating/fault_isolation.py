"""Fault isolation: after a step that failed, each generation in it is stepped alone, so that only the culprit is lost.

Promises: a generation that fails its step alone too ends with a RequestLost, and nobody else does; what the others
sample is what they would have sampled; no key or value of a failed step is used again. Where a trial of one token
fails as well, or joint steps fail again and again though everybody succeeds alone, the engine itself is broken and the
error is raised.
Knows nothing of requests, threads or models, nor how a step works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from swarm.backends.local.generating.batcher import Batcher
from swarm.backends.local.generating.generation import Generation
from swarm.backends.protocols import RequestLost, Sampling

_log = logging.getLogger(__name__)

_MAX_FAILURES = 3
"""Failed joint steps in a row after which the engine counts as broken, though nobody fails alone."""


class FaultIsolation:
    """Implements `busy`, `add` and `step` over a batcher whose steps may fail; `progress` is called meanwhile."""

    def __init__(self, batcher: Batcher, progress: Callable[[], None]) -> None:
        self._batcher = batcher
        self._progress = progress
        self._failures = 0

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        return self._batcher.busy

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        self._batcher.add(generation)

    def step(self) -> Sequence[Generation]:
        """Advance; return the generations that got a token or ended; raise the error if the engine itself is broken."""
        try:
            advanced = self._batcher.step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the culprit is looked for
            _log.warning("a step broke, and everybody in it goes on alone: %s", _described(error))
            return self._isolate(error)
        self._failures = 0
        return advanced

    def _isolate(self, error: Exception) -> list[Generation]:
        running, waiting = self._batcher.empty()
        for generation in running:
            if generation.finish is None and not generation.cancelled:
                self._step_alone(generation)
        if any(isinstance(generation.error, RequestLost) for generation in running):
            self._require_working_engine(error)
        else:
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                raise error
        for generation in (*running, *waiting):
            if generation.finish is None:
                self._batcher.add(generation)
        return [generation for generation in running if generation.fresh or generation.error is not None]

    def _step_alone(self, generation: Generation) -> None:
        """Give a generation its next token in steps of its own, or end it with a RequestLost."""
        self._batcher.add(generation)
        try:
            while self._batcher.busy and not self._batcher.step():
                self._progress()
        except Exception as error:  # noqa: BLE001 - whatever it is, this one is to blame
            _log.warning("a request is lost, for it breaks its step alone: %s", _described(error))
            generation.fail(RequestLost(f"the engine lost this answer ({_described(error)}); make the request again"))
        self._batcher.empty()
        self._progress()

    def _require_working_engine(self, error: Exception) -> None:
        """Raise `error` if not even a trial gets a token."""
        trial = Generation([0], Sampling(max_tokens=1))
        self._step_alone(trial)
        if trial.error is not None:
            raise error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
