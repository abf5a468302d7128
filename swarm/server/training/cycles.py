"""Full garbage collections run while the weights are synced, not while calls are answered.

A full collection walks all captured tokens, tens of milliseconds with a thousand conversations, finds next to nothing,
and every call waits for it. Young objects are still collected as they gather, some milliseconds at most; older ones
wait for a moment in which nothing generates. At Python's own pace the collector takes nearly half of a call's time.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, ALL = 2_000, 5, 10_000
"""Objects made and not freed after which the young ones are looked at; such looks after which the middle ones are; and
looks at those after which all are, where no quiet moment came for so long (a hundred million objects)."""
WORTH = 100
"""Looks at the middle ones (a million objects) after which a quiet moment is used."""


def collect_rarely() -> None:
    """Leave what is there now alone for ever, and look at the rest as this module says; for a server's process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, ALL)


def quiet() -> None:
    """Look at everything if it is worth it: nobody waits for an answer now."""
    if gc.get_count()[2] >= WORTH:
        gc.collect()
