"""JudgeInput: the runs a claim rests on (intention to treat), and findings.

A launched run counts with what was measured; or, where its own training broke down (`counted_as_worst`), with the
metric's worst value; or it is left out by a code that the lock excludes. A run in none of these, or an arm that lost
too large a share of its runs, makes the comparison invalid.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from studies.records.alpha import AlphaAllocation, equivalence_level, planned_looks
from studies.records.design import Design, Hypothesis
from studies.records.procedure import Phase
from studies.records.verdict import Ended, Equivalence, LastLook, Scope, Verdict, VerdictName
from studies.statistics.comparison import Comparison, Runs, differences
from studies.statistics.power import last_level


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict's name and reason, with the numbers that the rule looked at."""

    verdict: VerdictName
    reason: str
    comparison: Comparison | None = None
    level: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    equivalence: Equivalence | None = None
    scope: Scope = "all"
    measured: bool = True
    """Whether means and their difference are numbers of what is asked: times that are mostly cut are none."""


@dataclass(frozen=True, slots=True)
class UnobservedMiss:
    """An arm of which every run got there, and the trainings that may not."""

    arm: str
    upper: float
    """The largest share that never gets there and is not ruled out (one-sided 95 % limit)."""
    breaking_share: float | None
    """The least share that would undo what is claimed; None where none would, or nothing is claimed."""
    undone: str = ""
    """What of the claim that share would undo, in a clause; the margin of a difference is not looked at."""


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

    begins: Mapping[str, float] = field(default_factory=dict)
    """What each run of `values` had before its first step, in the metric; of a design that locks `start`."""
    unstarted: frozenset[str] = frozenset()
    """Runs of `values` that never started by the locked rule, and did not collapse."""
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What mediators measured of each run of `values`, by their names; a run whose files do not tell it has none."""

    @property
    def launched(self) -> int:
        return len(self.values) + len(self.excluded) + len(self.worst) + len(self.cut)

    def runs(self, worst: float) -> Runs:
        """Return the values that are analysed: those measured, and `worst` for runs that broke down."""
        return Runs({**self.values, **dict.fromkeys(self.worst, worst)}, self.seeds)

    def drop_collapsed(self) -> Runs:
        return Runs({run: value for run, value in self.values.items() if run not in self.collapsed}, self.seeds)

    @property
    def broken(self) -> int:
        return len(self.collapsed) + len(self.worst)

    def as_json(self) -> dict[str, object]:
        names = ("values", "seeds", "excluded", "worst", "cut")
        found: dict[str, object] = {name: dict(getattr(self, name)) for name in names}
        found |= {"collapsed": sorted(self.collapsed)} if self.collapsed else {}
        found |= {"beside": {name: dict(values) for name, values in self.beside.items()}} if self.beside else {}
        return found | ({"begins": dict(self.begins), "unstarted": sorted(self.unstarted)} if self.begins else {})


def find_unaccounted(design: Design, arms: Mapping[str, ArmData], accepted: Collection[str]) -> str | None:
    """Return a sentence when a run has no place in the analysis, or an arm lost more runs than the lock allows."""
    for name, arm in arms.items():
        left_out = [*arm.excluded.values(), *arm.cut.values()]
        if stray := sorted(set(left_out) - {*design.exclusions, *accepted}):
            count = sum(code in stray for code in left_out)
            return (
                f"{count} of {arm.launched} runs of {name} ended as {', '.join(stray)}, for which the lock names no "
                "exclusion: leaving them out would be a choice made after the data."
            )
    for name, arm in arms.items():
        ended = arm.launched - len(arm.cut)
        if ended and len(arm.excluded) / ended > design.most_excluded:
            codes = ", ".join(sorted(set(arm.excluded.values())))
            return (
                f"{len(arm.excluded)} of {ended} runs of {name} were excluded, a larger share than the "
                f"{design.most_excluded:.0%} that the lock allows ({codes})."
            )
    return None


def count_codes(arms: Mapping[str, ArmData], codes: str) -> dict[str, int]:
    """Return how many runs of each arm carry each code in the field `codes`, by `ARM: CODE`."""
    found = Counter(f"{name}: {code}" for name, arm in arms.items() for code in getattr(arm, codes).values())
    return dict(sorted(found.items()))


_EMPTY = ArmData({}, {})


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """One claim at one look, with the runs and everything else that its verdict follows from."""

    allocation: AlphaAllocation
    """The design and what its tests may spend: no test is run without a draw on the inquiry's ledgers."""
    hypothesis: str
    data: Mapping[str, ArmData]
    look: int = 1
    violations: Sequence[str] = ()
    """What forbids a claim, each `CODE: SENTENCE`."""
    threats: Sequence[str] = ()
    accepted: Sequence[str] = ()
    """Codes of runs that an amendment leaves out."""
    earlier: Mapping[str, Verdict] = field(default_factory=dict)
    """Verdicts on hypotheses that were settled at an earlier look."""
    barred: Collection[str] = ()
    """Other claims that the linter forbids: none of them can be made."""
    phase: Phase = "confirm"
    exploratory: bool = False
    ended: Ended | None = None
    """What ended the claim's runs before the look had them all, if anything."""

    @property
    def design(self) -> Design:
        return self.allocation.design

    @property
    def claim(self) -> Hypothesis:
        return find_claim(self.design, self.hypothesis)

    @property
    def alpha(self) -> float:
        return self.allocation.difference(self.look, self.phase) if self.last is None else self.last.alpha

    @property
    def alpha_alike(self) -> float:
        return equivalence_level(self.design, self.look, self.phase) if self.last is None else self.last.equivalence

    @property
    def last(self) -> LastLook | None:
        """The last look that this one is, as the runs that are there make it; None for a planned one, or of no runs."""
        looks = planned_looks(self.design, self.phase)
        planned = looks[self.look - 1 if self.ended == "hand" else -1].seeds
        if self.ended is None or not 0 < (count := self._count_runs()) < planned - 1e-9:
            return None
        made, whole = tuple(self._count_runs(look.seeds) for look in looks[: self.look - 1]), self.ended == "budget"
        plans = (tuple((look.seeds, look.alpha) for look in looks), tuple((look.seeds, look.alike) for look in looks))
        alpha, alike = (last_level(plan, made, count, whole=whole) for plan in plans)
        return LastLook(ended=self.ended, alpha=alpha, equivalence=alike)

    def _count_runs(self, seeds: int | None = None) -> float:
        runs, design = self.runs(), self.design
        if seeds is not None:
            own = [design.seeds_of(name, design.seeds[:seeds]) for name in self.arms]
            pairs = zip(runs, own, strict=True)
            runs = [
                Runs({run: v for run, v in a.values.items() if a.seeds[run] in drawn}, a.seeds) for a, drawn in pairs
            ]
        if design.test == "paired":
            return len(differences(*runs))
        counts = [(weight * weight, len(arm.values)) for weight, arm in zip(self.weights, runs, strict=True) if weight]
        if not all(count for _, count in counts):
            return 0.0
        return math.fsum(square for square, _ in counts) / math.fsum(square / count for square, count in counts)

    @property
    def shares_level(self) -> bool:
        """Whether other claims of the study matter: a replication is one test of one claim."""
        return self.design.multiplicity != "none" and self.phase == "confirm"

    @property
    def arms(self) -> dict[str, ArmData]:
        return {name: self.data.get(name, _EMPTY) for name in self.design.contrast_of(self.claim)}

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(self.design.contrast_of(self.claim).values())

    def runs(self) -> list[Runs]:
        return [self.select_runs(arm) for arm in self.arms.values()]

    @property
    def counts(self) -> list[int]:
        return [len(arm.values) for arm in self.runs()]

    def select_runs(self, arm: ArmData) -> Runs:
        """Return what enters a mean: with a rule of collapse the runs that did not, else all of them."""
        return arm.runs(self.design.metric.worst) if self.design.collapse is None else arm.drop_collapsed()

    def of(self, claim: Hypothesis) -> "JudgeInput":
        """Return the case of another claim at the same look: what was accepted was accepted for this one."""
        return self if claim.id == self.hypothesis else replace(self, hypothesis=claim.id, accepted=())


def find_claim(design: Design, hypothesis: str) -> Hypothesis:
    claim = next((claim for claim in design.hypotheses if claim.id == hypothesis), None)
    if claim is None:
        raise ValueError(f"the design has no hypothesis {hypothesis!r}; found {[c.id for c in design.hypotheses]}")
    return claim
