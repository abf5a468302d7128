"""The collector of cycles looks at everything in a quiet moment, where that is worth it, and not while calls go on."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from swarm.server.training import cycles


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize(("worth", "left"), [(0, False), (10**9, True)])
def test_a_quiet_moment_frees_old_cycles_where_enough_came_to_be(
    monkeypatch: pytest.MonkeyPatch, worth: int, left: bool
) -> None:
    monkeypatch.setattr(cycles, "WORTH", worth)
    knot = Knot()
    gc.collect()  # it is old now
    gc.disable()
    try:
        seen = weakref.ref(knot)
        del knot
        cycles.quiet()
        assert (seen() is not None) == left
    finally:
        gc.enable()
        gc.collect()


LOAD = """
import gc
from swarm.server.training.cycles import collect_rarely
collect_rarely()
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
kept = [[number] for number in range(1_000_000)]
print(*sorted(set(looks)))
"""


def test_without_a_quiet_moment_only_younger_objects_are_looked_at() -> None:
    said = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["0", "1"]
