"""Fault isolation: after a step that failed, each generation in it is stepped alone, so that only the culprit is lost.

Promises: a generation that fails its step alone too ends with a RequestLost, and nobody else does; what the others
sample is what they would have sampled; no key or value of a failed step is used again. Where a trial of one token
fails as well, or joint steps fail again and again though everybody succeeds alone, the engine itself is broken and the
error is raised.
Knows nothing of requests, threads or models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from swarm.backends.local.generating.generation import Generation
from swarm.backends.protocols import RequestLost, Sampling

_log = logging.getLogger(__name__)

_MAX_FAILURES = 3
"""Failed joint steps in a row after which the engine counts as broken, though nobody fails alone."""


class Stepper(Protocol):
    """What advances generations, a token at a time; one thread uses it."""

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        ...

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        ...

    def step(self) -> Sequence[Generation]:
        """Advance; return the generations that got a token or ended (`finish` set on the finished)."""
        ...

    def empty(self) -> tuple[Sequence[Generation], Sequence[Generation]]:
        """Remove all generations and what was computed for them; return those that ran, and those that waited."""
        ...


class FaultIsolation:
    """Implements `busy`, `add` and `step` over a `Stepper` whose steps may fail; `progress` is called meanwhile."""

    def __init__(self, stepper: Stepper, progress: Callable[[], None]) -> None:
        self._stepper = stepper
        self._progress = progress
        self._failures = 0

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        return self._stepper.busy

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        self._stepper.add(generation)

    def step(self) -> Sequence[Generation]:
        """Advance; return the generations that got a token or ended; raise the error if the engine itself is broken."""
        try:
            advanced = self._stepper.step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the culprit is looked for
            _log.warning("a step broke, and everybody in it goes on alone: %s", _described(error))
            return self._isolate(error)
        self._failures = 0
        return advanced

    def _isolate(self, error: Exception) -> list[Generation]:
        running, waiting = self._stepper.empty()
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
                self._stepper.add(generation)
        return [generation for generation in running if generation.fresh or generation.error is not None]

    def _step_alone(self, generation: Generation) -> None:
        """Give a generation its next token in steps of its own, or end it with a RequestLost."""
        self._stepper.add(generation)
        try:
            while self._stepper.busy and not self._stepper.step():
                self._progress()
        except Exception as error:  # noqa: BLE001 - whatever it is, this one is to blame
            _log.warning("a request is lost, for it breaks its step alone: %s", _described(error))
            generation.fail(RequestLost(f"the engine lost this answer ({_described(error)}); make the request again"))
        self._stepper.empty()
        self._progress()

    def _require_working_engine(self, error: Exception) -> None:
        """Raise `error` if not even a trial gets a token."""
        trial = Generation([0], Sampling(max_tokens=1))
        self._step_alone(trial)
        if trial.error is not None:
            raise error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
