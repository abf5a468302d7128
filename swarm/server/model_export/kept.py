"""Which kept checkpoint is meant: the latest, the best, or that of a step. Refusals name those that there are."""

from __future__ import annotations

from swarm.errors import NotFound
from swarm.wire import CheckpointList, CheckpointSummary

LATEST, BEST = "latest", "best"


def chosen(step: str, kept: CheckpointList) -> CheckpointSummary:
    """Return the checkpoint of `step`: a number, `latest` or `best`; raise NotFound with what is kept instead."""
    if not kept.checkpoints:
        why = "nothing was trained there yet" if kept.job_digest is None else "its training has not saved one yet"
        raise NotFound(f"expected a checkpoint, found none: {why}; let it train, then try again")
    if step == LATEST:
        return kept.checkpoints[0]
    if step == BEST:
        return _best(kept)
    found = next((each for each in kept.checkpoints if str(each.step) == step), None)
    if found is None:
        steps = ", ".join(str(each.step) for each in reversed(kept.checkpoints))
        raise NotFound(f"expected --step to be latest, best or one that is kept ({steps}), found {step[:40]!r}")
    return found


def _best(kept: CheckpointList) -> CheckpointSummary:
    found = next((each for each in kept.checkpoints if kept.best is not None and each.step == kept.best.step), None)
    if found is None:
        raise NotFound(
            "no checkpoint is kept as the best: only a job with eval_every chooses one; say --step latest, or a step"
        )
    return found
