"""The error budget of an inquiry's rounds, and explorations, which spend none of it.

Online fallback (Tian & Ramdas 2021, Stat Methods Med Res 30:976; Wiens & Dmitrienko 2005, J Biopharm Stat 15): round j
of at most R has the level

    alpha_j = alpha gamma_j + C_(j-1) alpha_(j-1),    gamma_j = j^-1.6 / sum_(i <= R) i^-1.6,

where C_j is 1 if every comparison of round j ended in a claim of the ledger's kind, or nothing in it could be tested,
else 0. R is locked with the first round. The probability of any false claim is then at most alpha, as long as each
round's tests keep their level. Differences and equivalences have ledgers of their own and neither pays for the other,
so the promise is per kind. A `AlphaAllocation` is what a design's tests may spend: only ledgers make one, and
`studies.verdicts.rules.judge` runs no test without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import Field

from studies.records.base import EvolvingRecord, JsonValue
from studies.records.design import Arm, Design, Metric, RunSpec
from studies.records.procedure import InterimAnalysis, Phase, RoundPlace
from studies.records.runs import run_spec

MOST_ARMS: Final = 6
ALPHA: Final = 0.05
MOST_ROUNDS: Final = 12
_DECAY: Final = 1.6
"""Exponent of the weights: of those compared it leaves most to later rounds at little cost to the first."""
_ALIKE: Final = 1e-12
"""Most relative difference of two levels that are the same: their last digits are another processor's."""
_KEY: Final = object()


class Exploration(EvolvingRecord):
    """What is tried, on one to three seeds, in short runs that feed no claim and carry its hash in the lock's place."""

    added_fields: ClassVar = frozenset({"more_seeds"})

    why: str = Field(min_length=1, max_length=500)
    """What its planner wants to see, quoted."""
    environment: str
    base_job: Mapping[str, JsonValue]
    """The job of all of its runs, seed excluded."""
    arms: tuple[Arm, ...] = Field(min_length=1, max_length=MOST_ARMS)
    seed: int
    """The first training seed, of which, as of the others, no claim may be made."""
    more_seeds: tuple[int, ...] = ()
    metric: Metric
    """What runs are scored by: always on search tasks."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return (self.seed, *self.more_seeds)

    @property
    def runs_told(self) -> str:
        return f"{len(self.seeds)} runs each" if self.more_seeds else "one run each"


def exploration_spec(study: str, plan: Exploration, arm: Arm, seed: int) -> RunSpec:
    job = {**plan.base_job, **arm.job_overrides}
    return run_spec(study, plan.hash(), "explore", arm.name, seed, plan.environment, job, plan.metric)


def weights(rounds: int) -> tuple[float, ...]:
    if not 1 <= rounds <= MOST_ROUNDS:
        raise ValueError(f"expected 1 to {MOST_ROUNDS} rounds; found {rounds}")
    raw = [j**-_DECAY for j in range(1, rounds + 1)]
    return tuple(share / sum(raw) for share in raw)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One round in a ledger."""

    round: int
    own: float
    received: float
    handed_on: bool | None

    @property
    def level(self) -> float:
        return self.own + self.received


@dataclass(frozen=True, slots=True)
class AlphaLedger:
    """The levels of one kind of claim, round by round."""

    rounds: int
    alpha: float = ALPHA
    handed_on: tuple[bool, ...] = ()
    """Of each round that is over, whether it handed its level on."""

    def entries(self) -> tuple[LedgerEntry, ...]:
        entries: list[LedgerEntry] = []
        outcomes: list[bool | None] = [*self.handed_on, None]
        for number, (share, outcome) in enumerate(zip(weights(self.rounds), outcomes, strict=False), start=1):
            passed = entries[-1].level if entries and entries[-1].handed_on else 0.0
            entries.append(LedgerEntry(number, self.alpha * share, passed, outcome))
        return tuple(entries)

    @property
    def level(self) -> float:
        """The level of the next round; ValueError where all rounds are over."""
        if len(self.handed_on) == self.rounds:
            raise ValueError(f"expected one of {self.rounds} rounds; found all of them over")
        return self.entries()[-1].level

    def after(self, *, handed_on: bool) -> AlphaLedger:
        if len(self.handed_on) == self.rounds:
            raise ValueError(f"expected at most {self.rounds} rounds; found one more")
        return AlphaLedger(self.rounds, self.alpha, (*self.handed_on, handed_on))

    def future_levels(self) -> tuple[float, ...]:
        """Return the level of each round to come as it is where no round from now on hands anything on."""
        ahead = [self.alpha * share for share in weights(self.rounds)[len(self.handed_on) :]]
        return (self.level, *ahead[1:]) if ahead else ()


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What became of a round, as far as ledgers ask."""

    differences: bool
    """Whether each of its comparisons ended in a claim of a difference, or none was tested."""
    equivalences: bool
    """Whether each ended in a claim of equivalence, or none was tested."""

    @classmethod
    def of(cls, verdicts: Sequence[str]) -> RoundOutcome:
        """Return what the verdicts on a round's claims hand on, by their names; of no claim all is handed on."""
        differences = all(name in ("supported", "refuted") for name in verdicts)
        return cls(differences, equivalences=all(name == "equivalent" for name in verdicts))


@dataclass(frozen=True, slots=True)
class AlphaLedgers:
    """Both ledgers of an inquiry, as they stand before its next round."""

    differences: AlphaLedger
    equivalences: AlphaLedger

    @classmethod
    def begin(cls, rounds: int, alpha: float = ALPHA) -> AlphaLedgers:
        return cls(AlphaLedger(rounds, alpha), AlphaLedger(rounds, alpha))

    @property
    def round(self) -> int:
        return len(self.differences.handed_on) + 1

    @property
    def left(self) -> int:
        return self.differences.rounds - len(self.differences.handed_on)

    def after(self, outcome: RoundOutcome) -> AlphaLedgers:
        differences = self.differences.after(handed_on=outcome.differences)
        return AlphaLedgers(differences, self.equivalences.after(handed_on=outcome.equivalences))

    def next_place(self, previous: str = "") -> RoundPlace | None:
        """Return the next round's place, for its lock (`previous`: the last lock's hash); None for a study of one."""
        if self.differences.rounds == 1:
            return None
        return RoundPlace(
            number=self.round, of=self.differences.rounds, previous=previous,
            difference=self.differences.level, equivalence=self.equivalences.level,
        )  # fmt: skip

    def allocate(self, design: Design) -> AlphaAllocation:
        """Return what the tests of a design of the next round may spend; raise ValueError for another's levels."""
        place, rounds = design.inquiry, self.differences.rounds
        if place is None:
            if rounds > 1:
                raise ValueError(f"expected a lock of round {self.round}; found one without a place in an inquiry")
            return AlphaAllocation(_KEY, design)
        if (place.number, place.of) != (self.round, rounds):
            raise ValueError(f"expected round {self.round} of {rounds}; found {place.number} of {place.of}")
        for kind in ("difference", "equivalence"):
            drawn, due = getattr(place, kind), getattr(self, f"{kind}s").level
            if abs(drawn - due) > _ALIKE * due:
                raise ValueError(f"expected the level {due:.6g} of the ledger of {kind}s; found {drawn:.6g}")
        return AlphaAllocation(_KEY, design)


class AlphaAllocation:
    """What the tests of one design may spend: made by `AlphaLedgers.allocate` alone."""

    __slots__ = ("design",)

    def __init__(self, key: object, design: Design) -> None:
        if key is not _KEY:
            raise TypeError("an allocation is drawn from ledgers (`AlphaLedgers.allocate`), never made by hand")
        self.design = design

    def difference(self, look: int, phase: Phase) -> float:
        """Return the two-sided level at which a look tells two arms apart."""
        return planned_looks(self.design, phase)[look - 1].alpha


def planned_looks(design: Design, phase: Phase) -> tuple[InterimAnalysis, ...]:
    """Return the looks of a phase; where the lock names none, one at all of its seeds with the whole level."""
    if phase == "confirm" and design.looks:
        last, pilot = design.looks[-1], design.pilot
        if pilot is None or last.seeds > pilot.seeds:
            return design.looks
        return (last.model_copy(update={"seeds": pilot.most}),)
    again = design.replication.seeds if phase == "replicate" and design.replication is not None else design.seeds
    return (InterimAnalysis(seeds=len(again), alpha=design.alpha),)


def equivalence_level(design: Design, look: int, phase: Phase) -> float:
    """Return the level of each of the two one-sided tests by which a look finds no difference."""
    return planned_looks(design, phase)[look - 1].alike
