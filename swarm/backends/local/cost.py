"""What an update cost: the seconds of its parts, under verl's names, and the tokens it was about.

Promises: parts do not overlap (`timing_s/update_actor` is the training alone, without `timing_s/old_log_prob` and
`timing_s/ref`), and a part that did not run has no metric. `tokens/trained` counts each sampled token of the batch
once, `tokens/forward` every id that went through a forward with its backward: padding and every epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Cost:
    """Seconds and tokens of one update, counted while it runs."""

    def __init__(self, trained: int) -> None:
        self.forward = 0
        self._trained = trained
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measured(self, part: str) -> Iterator[None]:
        """Measure a part's seconds."""
        begun = time.perf_counter()
        yield
        self._seconds[part] = time.perf_counter() - begun

    def metrics(self) -> Mapping[str, float]:
        """Return what was measured; the throughput is of all parts together."""
        return {
            **{f"timing_s/{part}": seconds for part, seconds in self._seconds.items()},
            "tokens/trained": float(self._trained),
            "tokens/forward": float(self.forward),
            "tokens/trained_per_s": self._trained / max(1e-9, sum(self._seconds.values())),
        }
