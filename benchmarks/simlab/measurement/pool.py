"""Many flights on a few cores, with progress for whoever waits."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")
Progress = Callable[[str], None]
SPEAK_EVERY_S = 3.0
MOST_AT_ONCE = 8
"""Items handed to a worker at a time."""
_NEW_OBJECTS = 50_000
"""After so many a worker looks for garbage: a flight makes many that live as long as it does."""


def silent(line: str) -> None:
    """Say nothing."""


def to_stderr(line: str) -> None:
    """Say it to whoever watches."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def work(
    name: str, does: Callable[[Item], Found], items: Sequence[Item], *, workers: int = 1, tell: Progress = silent
) -> list[Found]:
    """Return `does` of each item, in their order; in so many processes where that is more than one."""
    if workers <= 1:
        return list(_told(name, map(does, items), len(items), tell))
    # Fresh processes: a fork would carry this one's threads and open databases along.
    context = multiprocessing.get_context("spawn")
    chunk = max(1, min(MOST_AT_ONCE, len(items) // (4 * workers)))
    with ProcessPoolExecutor(workers, context, gc.set_threshold, (_NEW_OBJECTS,)) as pool:
        return list(_told(name, pool.map(does, items, chunksize=chunk), len(items), tell))


def _told(name: str, found: Iterable[Found], count: int, tell: Progress) -> Iterable[Found]:
    began = spoken = time.monotonic()
    for number, one in enumerate(found, start=1):
        yield one
        if (now := time.monotonic()) - spoken >= SPEAK_EVERY_S or number == count:
            spoken = now
            tell(f"{name}: {number} of {count} flights, {now - began:.0f} s")
