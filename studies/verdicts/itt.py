"""Intention to treat: every launched run of an arm is accounted for, whatever became of it.

Promises. A run counts with what was measured; or, where its own training broke down (a code in `counted_as_worst`),
with the metric's worst value; or it is left out by a code that the lock excludes. A run in none of these, or an arm
that lost too large a share of its runs, makes the comparison invalid: what is left may look better than the arm is.

Does not know. Why a run has its code: the harness gave it, and the lock says what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from studies.records.design import Design
from studies.statistics.comparison import Runs


@dataclass(frozen=True, slots=True)
class ArmData:
    """The runs of one arm up to a look, by run id; each has one place: `values`, `excluded`, `worst` or `cut`."""

    values: Mapping[str, float]
    seeds: Mapping[str, int]
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Code of each run that has no value."""
    worst: Mapping[str, str] = field(default_factory=dict)
    """Code of each run that counts with the metric's worst value."""
    cut: Mapping[str, str] = field(default_factory=dict)
    """Code of each run that the study itself ended, with its budget or by a veto: whatever ran then, in any arm."""
    collapsed: Mapping[str, str] = field(default_factory=dict)
    """How each run of `values` collapsed by the locked rule; one that broke down (`worst`) did so anyhow."""

    @property
    def launched(self) -> int:
        """How many runs there are, with or without a value."""
        return len(self.values) + len(self.excluded) + len(self.worst) + len(self.cut)

    def runs(self, worst: float) -> Runs:
        """Return the values that are analysed: those measured, and `worst` for runs that broke down."""
        return Runs({**self.values, **dict.fromkeys(self.worst, worst)}, self.seeds)

    def kept(self) -> Runs:
        """Return the values of the runs that did not collapse."""
        return Runs({run: value for run, value in self.values.items() if run not in self.collapsed}, self.seeds)

    @property
    def broken(self) -> int:
        """How many runs collapsed, or broke down."""
        return len(self.collapsed) + len(self.worst)

    def as_json(self) -> dict[str, object]:
        """Return it as what a hash is made of."""
        found: dict[str, object] = {
            "values": dict(self.values), "seeds": dict(self.seeds), "excluded": dict(self.excluded),
            "worst": dict(self.worst), "cut": dict(self.cut),
        }  # fmt: skip
        return {**found, "collapsed": sorted(self.collapsed)} if self.collapsed else found


def unaccounted(design: Design, arms: Mapping[str, ArmData], accepted: Collection[str]) -> str | None:
    """Return a sentence when a run of these arms has no place in the analysis; None when all have."""
    for name, arm in arms.items():
        left_out = [*arm.excluded.values(), *arm.cut.values()]
        if stray := sorted(set(left_out) - {*design.exclusions, *accepted}):
            count = sum(code in stray for code in left_out)
            return (
                f"{count} of {arm.launched} runs of {name} ended as {', '.join(stray)}, for which the lock names no "
                "exclusion: leaving them out would be a choice made after the data."
            )
    return None


def too_many_excluded(design: Design, arms: Mapping[str, ArmData]) -> str | None:
    """Return a sentence when an arm lost a larger share of its runs than the lock allows; None otherwise.

    Runs that the study cut short are no part of it: their arm did not choose them.
    """
    for name, arm in arms.items():
        ended = arm.launched - len(arm.cut)
        if ended and len(arm.excluded) / ended > design.most_excluded:
            codes = ", ".join(sorted(set(arm.excluded.values())))
            return (
                f"{len(arm.excluded)} of {ended} runs of {name} were excluded, a larger share than the "
                f"{design.most_excluded:.0%} that the lock allows ({codes})."
            )
    return None


def counted(arms: Mapping[str, ArmData], codes: str) -> dict[str, int]:
    """Return how many runs of each arm carry each code in the field `codes`, by `ARM: CODE`."""
    found = Counter(f"{name}: {code}" for name, arm in arms.items() for code in getattr(arm, codes).values())
    return dict(sorted(found.items()))


def overlapping(arms: Mapping[str, ArmData]) -> Sequence[str]:
    """Return the runs that are in more than one place."""
    places = Counter(
        run for arm in arms.values() for runs in (arm.values, arm.excluded, arm.worst, arm.cut) for run in runs
    )
    return sorted(run for run, n in places.items() if n > 1)
