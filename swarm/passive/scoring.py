"""Scoring: how the answers to one request compare, and the rewards that follow.

Only the order of the answers counts: the reward of each is the share of the others that it beats, a tie counting half,
so that the rewards of a group always have the mean 0.5, whatever scale a scorer has and however hard the request was.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from swarm.client.threads import in_thread
from swarm.errors import InvalidRequest, SwarmError

Request = Mapping[str, Any]
"""A chat request as the application sent it, without the field `user`."""


class ScorerFailed(SwarmError):
    """The answers of a group could not be compared; nothing of it is trained."""

    code = "scorer_failed"


class Scorer(Protocol):
    """Compares answers."""

    async def score(self, request: Request, answers: Sequence[str]) -> Sequence[float]:
        """Return a number for each answer, the best highest; ScorerFailed where there is none."""
        ...


class FileScorer:
    """The function `score(request, answers) -> list[float]` of an operator's file. It runs in this process, with all
    rights of it: it is trusted as an agent's own reward is."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._score = _loaded(path)
        self._timeout_s = timeout_s

    async def score(self, request: Request, answers: Sequence[str]) -> Sequence[float]:
        """Return what the function does; ScorerFailed where it raises, takes too long or returns something else."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await in_thread(self._score, dict(request), list(answers))
        except TimeoutError:
            raise ScorerFailed(f"the scorer took longer than {self._timeout_s:g} s") from None
        except Exception as error:
            raise ScorerFailed(f"the scorer raised {type(error).__name__}") from error
        return checked(found, len(answers))


def checked(found: Any, answers: int) -> list[float]:
    """Return scores as numbers; ScorerFailed unless there is a finite one for each answer."""
    try:
        scores = [float(score) for score in found]
    except (TypeError, ValueError, OverflowError):
        raise ScorerFailed(f"expected a list of {answers} numbers, found {type(found).__name__}") from None
    if len(scores) != answers or not all(map(math.isfinite, scores)):
        raise ScorerFailed(f"expected {answers} finite numbers, found {len(scores)} ({scores[:8]})")
    return scores


def relative(scores: Sequence[float]) -> list[float]:
    """Return the rewards of answers with these scores: in [0, 1], their mean 0.5."""
    others = len(scores) - 1
    if others < 1:
        return [0.5] * len(scores)
    beaten = [sum((score > other) + (score == other) / 2 for other in scores) - 0.5 for score in scores]
    return [count / others for count in beaten]


def preferred(scores: Sequence[float], choice: int, rating: str) -> list[float]:
    """Return scores in whose order a person's word of one answer goes before all others: `up`, or `down`."""
    moved = max(scores) + 1 if rating == "up" else min(scores) - 1
    return [moved if place == choice else score for place, score in enumerate(scores)]


def _loaded(path: Path) -> Callable[[Any, Any], Any]:
    """Return a file's function `score`; InvalidRequest where there is none."""
    spec = importlib.util.spec_from_file_location("ajet_passive_score", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InvalidRequest(f"expected a Python file with `score(request, answers)` at {path}, found none")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidRequest(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, "score", None)
    if not callable(found):
        raise InvalidRequest(f"expected a function `score(request, answers)` in {path}, found none")
    scoring: Callable[[Any, Any], Any] = found
    return scoring
