"""Steps that outlive a sequence that breaks them: whoever took part in a step that broke goes on alone, one by one.

Promises: who breaks its step alone too is lost, by a RequestLost, and nobody else is; what the others sample is what
they would have sampled; no key or value of a step that broke is used again. Where a trial of one token breaks as well,
or steps in company break again and again though everybody goes on alone, the engine is broken and the error is raised.
Knows nothing of requests, threads or models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from swarm.backends.local.generation import Generation
from swarm.backends.protocols import RequestLost, Sampling

_log = logging.getLogger(__name__)

_STRIKES = 3
"""Steps in company in a row that may break though nobody breaks alone."""


class Steps(Protocol):
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
        """Let go of all generations and what was computed for them; return those that ran, and those that waited."""
        ...


class Outliving:
    """Implements what an engine needs of `Steps` over others that may break; `alive` is told of progress meanwhile."""

    def __init__(self, steps: Steps, alive: Callable[[], None]) -> None:
        self._steps = steps
        self._alive = alive
        self._strikes = 0

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        return self._steps.busy

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        self._steps.add(generation)

    def step(self) -> Sequence[Generation]:
        """Advance; return the generations that got a token or ended; raise what broke the engine."""
        try:
            advanced = self._steps.step()
        except Exception as error:  # noqa: BLE001 - whoever is to blame, whatever it is
            _log.warning("a step broke, and everybody in it goes on alone: %s", _said(error))
            return self._apart(error)
        self._strikes = 0
        return advanced

    def _apart(self, broke: Exception) -> list[Generation]:
        running, waiting = self._steps.empty()
        for generation in running:
            if generation.finish is None and not generation.cancelled:
                self._alone(generation)
        if any(isinstance(generation.error, RequestLost) for generation in running):
            self._require_life(broke)
        else:
            self._strikes += 1
            if self._strikes >= _STRIKES:
                raise broke
        for generation in (*running, *waiting):
            if generation.finish is None:
                self._steps.add(generation)
        return [generation for generation in running if generation.fresh or generation.error is not None]

    def _alone(self, generation: Generation) -> None:
        """Give a generation its next token, nobody beside it, or lose it."""
        self._steps.add(generation)
        try:
            while self._steps.busy and not self._steps.step():
                self._alive()
        except Exception as error:  # noqa: BLE001 - whatever it is, this one is to blame
            _log.warning("a request is lost, for it breaks its step alone: %s", _said(error))
            generation.fail(RequestLost(f"the engine lost this answer ({_said(error)}); make the request again"))
        self._steps.empty()
        self._alive()

    def _require_life(self, broke: Exception) -> None:
        """Raise `broke` if not even a trial gets a token."""
        trial = Generation([0], Sampling(max_tokens=1))
        self._alone(trial)
        if trial.error is not None:
            raise broke


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
