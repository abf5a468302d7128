"""Which side moved, where learner and engine disagree: both are held to a third opinion on some of those tokens.

Promises: a side moved if it is farther from the third opinion than the job's `mismatch_limit`, in the measure that the
guard stopped by; both, or neither, is said as such. Whatever happens while that is found out is a part of the sentence,
never an error, and takes no longer than `OPINION_S`.
Knows nothing of models: who has one says what a plain forward of it finds (`local/model/plain.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from swarm.backends.algorithms.losses import LOG_RATIO_BOUND
from swarm.backends.algorithms.rows import Row

_log = logging.getLogger(__name__)

OPINION_S: Final = 300.0
"""Seconds after which a third opinion is given up."""
MOST_ROWS: Final = 4
"""Rows that are scored once more."""
MOST_TOKENS: Final = 256
"""Sampled tokens of each that are."""

Third = Callable[[Tensor, float], Tensor]
"""From ids (T,) and a temperature to the log-prob (T - 1,) of each id but the first, the ones before it given."""


@dataclass(frozen=True, slots=True, eq=False)
class Disputed:
    """A row of ids (T,) and, of the K sampled ones behind `places` (K,), the log-probs that both sides gave them."""

    ids: Tensor
    places: Tensor
    engine: Tensor
    learner: Tensor


@dataclass(frozen=True, slots=True)
class ReplicaSaid:
    """What a replica says now of disputed rows: their log-probs (K,) at temperature 1, or why it cannot.

    Those of a row's last tokens are missing where it has no room for them.
    """

    version: int = -1
    logprobs: Sequence[Tensor] = ()
    refused: str = ""


Replicas = Callable[[Sequence[Disputed]], Mapping[int, ReplicaSaid]]
"""Asks every replica, by number."""


def disputed(scored: Iterable[tuple[Row, Tensor]], version: int) -> list[Disputed]:
    """Return the rows that learner and engine differ about most, of rows and their log-probs (K,) under the learner.

    As for the guard, only tokens that were sampled by `version` count.
    """
    found = [each for row, logprobs in scored if (each := _of(row, logprobs, version)) is not None]
    return sorted(found, key=lambda each: distance([each.engine], [each.learner]), reverse=True)[:MOST_ROWS]


def _of(row: Row, logprobs: Tensor, version: int) -> Disputed | None:
    fresh = (row.versions == version).nonzero()[:MOST_TOKENS, 0]
    if not len(fresh):
        return None
    ids, last = torch.cat([row.ids, row.targets[-1:]]), int(row.places[fresh[-1]])
    return Disputed(ids[: last + 2], row.places[fresh], row.rollout[fresh], logprobs.float().cpu()[fresh])


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the guard's measure: the mean of exp |difference of log-probs|; what is not finite is as far as can be."""
    gaps = (torch.cat(list(one)).double() - torch.cat(list(other)).double()).abs()
    return gaps.nan_to_num(nan=LOG_RATIO_BOUND).clamp(max=LOG_RATIO_BOUND).exp().mean().item()


def side(
    rows: Sequence[Disputed],
    third: Third,
    temperature: float,
    limit: float,
    dtype: str,
    replicas: Replicas | None = None,
    version: int = 0,
) -> str:
    """Return, in a sentence or two, which side moved, and of the engine which of the `replicas` it is now.

    `version` is that which was published last.
    """
    opinion = [third(row.ids, temperature)[row.places] for row in rows]
    engine, learner = [row.engine for row in rows], [row.learner for row in rows]
    far = {"engine": distance(engine, opinion), "learner": distance(learner, opinion)}
    measured = (
        f"of {sum(len(row.places) for row in rows)} of these tokens, scored by a plain forward in float32 over the "
        f"weights as they are published, the engine is {far['engine']:.4g} away and the learner {far['learner']:.4g}"
    )
    moved = [name for name, value in far.items() if value > limit]
    if len(moved) == 1:
        said = f"The {moved[0]} moved: {measured}."
    elif moved:
        said = f"Both moved: {measured}."
    elif (again := distance(engine, learner)) <= limit:
        said = (
            f"The learner moved: {measured}, and scored again without gradients the two are only {again:.4g} apart: "
            "its forward of the update is not the one that it scores by."
        )
    else:
        said = f"Neither moved: {measured}. That is what {dtype} rounds: mismatch_limit is too small for it."
    if "engine" in moved and replicas is not None:
        at_one = opinion if temperature == 1 else [third(row.ids, 1.0)[row.places] for row in rows]
        said += " " + _which(replicas(rows), at_one, limit, version)
    return said


def _which(found: Mapping[int, ReplicaSaid], opinion: Sequence[Tensor], limit: float, version: int) -> str:
    """Return which replicas are off now, and how each is known."""
    said, moved = [], []
    for number, each in sorted(found.items()):
        if each.refused:
            said.append(f"replica {number} could not be asked ({each.refused})")
            continue
        away = distance(each.logprobs, [own[: len(theirs)] for own, theirs in zip(opinion, each.logprobs, strict=True)])
        if away > limit or each.version != version:
            moved.append(number)
        older = "" if each.version == version else f", and serves version {each.version} in place of {version}"
        said.append(f"replica {number} is {away:.4g} away now{older}")
    if not said:
        return "No replica serves that could be asked."
    which = ", ".join(map(str, moved))
    word = f"It is replica {which}" if moved else "No replica that was asked is off now: one that was is made anew"
    return f"{word}: {'; '.join(said)}."


def told(find: Callable[[], str], seconds: float = OPINION_S) -> str:
    """Return what `find` says, or in its place why nobody can say; it runs in a thread that nobody waits for longer."""
    said: list[str] = []

    def found() -> None:
        try:
            said.append(find())
        except Exception as error:  # noqa: BLE001 - the error that is told already must not be hidden by this one
            _log.warning("event=no_third_opinion", exc_info=True)
            said.append(f"Which side moved is not known: {type(error).__name__}: {' '.join(str(error).split())[:300]}.")

    thread = threading.Thread(target=found, name="third-opinion", daemon=True)
    thread.start()
    thread.join(seconds)
    return said[0] if said else f"Which side moved is not known: no third opinion came within {seconds:g} s."
