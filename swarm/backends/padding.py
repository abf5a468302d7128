"""Batches filled up to a size that divides, so that a learner whose parts must be equal drops nothing.

What fills up weighs nothing and changes nothing: no sampled token, a group of its own, weight 0. A learner that
heeds any one of these three trains a padded batch as it trains the batch.
"""

from __future__ import annotations

from dataclasses import replace

from swarm.backends.protocols import Batch, TrainEpisode, TrainRow

_LENGTH = 2
"""Ids of a filling row: one to see and one to predict, the least that any learner takes."""


def padded(batch: Batch, multiple: int) -> Batch:
    """Return the batch, its own episodes first, with the fewest more that make their number divide by `multiple`."""
    if multiple < 1:
        raise ValueError(f"expected a multiple of 1 or more, found {multiple}")
    missing = -len(batch.episodes) % multiple
    if not missing:
        return batch
    filler = _filler(batch.episodes[0].rows[0])
    more = (replace(filler, episode_id=f"padding/{number}", group=f"padding/{number}") for number in range(missing))
    return replace(batch, episodes=(*batch.episodes, *more))


def _filler(row: TrainRow) -> TrainEpisode:
    """Return an episode without weight, of ids the model knows."""
    ids = (row.ids * _LENGTH)[:_LENGTH]
    empty = TrainRow(ids, (0,) * _LENGTH, (0.0,) * _LENGTH, (-1,) * _LENGTH)
    return TrainEpisode("", "", 0.0, (empty,), weight=0.0)
