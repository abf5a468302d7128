"""All that one verdict follows from, as one value: the claim, the look, the runs, and what speaks against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from studies.inquiry.ledger import Stake
from studies.records.design import Design, Hypothesis
from studies.records.design_parts import Noise, Phase
from studies.records.verdict import Verdict
from studies.statistics.comparison import Runs
from studies.verdicts.itt import ArmData

_EMPTY = ArmData({}, {})


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """One claim at one look, with the runs and everything else that its verdict follows from."""

    stake: Stake
    """What its tests may spend, and with it the design."""
    claim: Hypothesis
    data: Mapping[str, ArmData]
    look: int
    violations: tuple[str, ...] = ()
    threats: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    earlier: Mapping[str, Verdict] = field(default_factory=dict)
    barred: frozenset[str] = frozenset()
    """Other claims that the linter forbids: none of them can be made."""
    phase: Phase = "confirm"
    exploratory: bool = False

    @property
    def design(self) -> Design:
        """The locked design."""
        return self.stake.design

    @property
    def alpha(self) -> float:
        """The two-sided level of the look."""
        return self.stake.difference(self.look, self.phase)

    @property
    def alpha_alike(self) -> float:
        """The level of each of the two one-sided tests of the look."""
        return self.stake.equivalence(self.look, self.phase)

    @property
    def looks(self) -> int:
        """How many looks there are; a replication is looked at once."""
        return len(self.design.looks) if self.phase == "confirm" else 1

    @property
    def noise(self) -> Noise | None:
        """The bank's word, which holds in the design's own setting only."""
        return self.design.noise if self.phase == "confirm" else None

    @property
    def shares_level(self) -> bool:
        """Whether other claims of the study matter: a replication is one test of one claim."""
        return self.design.multiplicity != "none" and self.phase == "confirm"

    @property
    def arms(self) -> dict[str, ArmData]:
        """The claim's arms, the control first: two, or all of a contrast's."""
        return {name: self.data.get(name, _EMPTY) for name in self.design.contrast_of(self.claim)}

    @property
    def weights(self) -> tuple[float, ...]:
        """What the mean of each of the claim's arms counts in its effect."""
        return tuple(self.design.contrast_of(self.claim).values())

    def runs(self) -> list[Runs]:
        """Return what is analysed of the claim's arms, the control first."""
        return [self.analysed(arm) for arm in self.arms.values()]

    def others(self) -> list[list[float]]:
        """Return what is analysed of the design's other arms, by their names' order."""
        own = self.arms
        return [self.analysed(arm).numbers for name, arm in sorted(self.data.items()) if name not in own]

    def analysed(self, arm: ArmData) -> Runs:
        """Return what enters a mean: with a rule of collapse the runs that did not, else all of them."""
        return arm.runs(self.design.metric.worst) if self.design.collapse is None else arm.kept()

    def of(self, claim: Hypothesis) -> JudgeInput:
        """Return the case of another claim at the same look.

        What was accepted was accepted for this one: another verdict stands, whatever is accepted later.
        """
        return self if claim.id == self.claim.id else replace(self, claim=claim, accepted=())
