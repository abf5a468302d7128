"""The confound linter: whether two arms' runs differ, as they really went, only in what the hypothesis declares.

It reads `Conditions` that the harness gathered while runs went, not what anybody planned. Each finding names the values
and the arms. One that `blocks` makes the verdict invalid unless an amendment accepts its code; any other is a threat,
which the report tells. What a run does not know (None) is compared with nothing: it is the report that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from studies.records import Conditions, Design


@dataclass(frozen=True, slots=True)
class Violation:
    """One difference between the arms besides the declared one."""

    code: str
    sentence: str
    """What differs between which arms, with the values; one sentence without its full stop."""
    blocks: bool
    """Whether the verdict is invalid while no amendment accepts the code; a threat otherwise."""


def lint_conditions(
    design: Design,
    hypothesis: str,
    control: Mapping[str, Conditions],
    treatment: Mapping[str, Conditions],
    *,
    seeds: Mapping[str, int] | None = None,
) -> tuple[Violation, ...]:
    """Return what the runs of a hypothesis' two arms, by run id, differ in besides its declared variable."""
    return ()
