"""How many threads torch computes a model with: as many as it is large enough for, of the cores that are its own.

A number that a person set as OMP_NUM_THREADS stands. One that `ajet` set for all it starts does not: beside it stands
AJET_RUNS_AT_ONCE (`research/installation/own_process.py`), the training runs among which the machine's cores are
shared. More threads than the machine has cores for cost more than they give: each waits for the slowest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import torch

_log = logging.getLogger(__name__)

RUNS_AT_ONCE = "AJET_RUNS_AT_ONCE"
SET_BY_HAND = "OMP_NUM_THREADS"
A_THREAD = 5_000_000
"""Parameters that keep one thread busy: with fewer, threads cost more than they give."""


def choose_threads(parameters: int) -> None:
    """Let torch compute a model of so many parameters with as many threads as it can use here; the log says how many.

    What is computed may depend on the number in its last bits.
    """
    chosen = threads(parameters, os.environ, _cores())
    if chosen is not None:
        torch.set_num_threads(chosen)
    _log.info(
        "event=threads threads=%d reason=%r parameters=%d cores=%d runs_at_once=%s",
        torch.get_num_threads(),
        f"{SET_BY_HAND} is set" if chosen is None else "chosen by the model's size and the runs at once",
        parameters,
        _cores(),
        os.environ.get(RUNS_AT_ONCE, "1"),
    )


def threads(parameters: int, environment: Mapping[str, str], cores: int) -> int | None:
    """Return the number of threads for a model of so many parameters; None where a person has set it."""
    if SET_BY_HAND in environment and RUNS_AT_ONCE not in environment:
        return None
    runs = int(environment.get(RUNS_AT_ONCE, "1"))
    return max(1, min(cores // runs, parameters // A_THREAD))


def _cores() -> int:
    """Return the cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
