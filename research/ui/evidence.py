"""More evidence on a claim: what was found, and the honest ways to have it.

Data that were seen cannot be added to: a look that no lock named has no level. So a claim gets more evidence by a word
to the planner of an inquiry that is open, by a larger budget where that stopped it, or by a study that reproduces it
with seeds and a level of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from starlette.exceptions import HTTPException

from research.controller.built_designs import build_reproduction
from research.controller.preview import price_next_round
from research.design.comparison import StatisticalRequirements
from research.design.known_findings import KnownFinding, describe_evidence, load_findings
from research.errors import BadInput, ResearchError
from research.proposals.metric_choice import format_difference
from research.scheduler.required_runs import is_stopped_by_budget, may_continue
from research.shown.study import describe_resume
from research.text import format_seconds
from research.ui.site import Site
from studies import StudyState
from studies.records.design import Design, Hypothesis


class Way(NamedTuple):
    """A way to more evidence: what it costs and sees, or why there is none."""

    kind: str
    title: str
    told: str
    refused: str = ""


@dataclass(frozen=True)
class ClaimEvidence:
    """A claim on which more is asked, in its round of a study."""

    study: StudyState
    round: StudyState
    claim: Hypothesis
    finding: KnownFinding | None
    """Its verdict, or why that does not follow; None before it is settled."""

    @property
    def name(self) -> str:
        return f"{self.study.id}/{self.round.round}/{self.claim.id}"

    @property
    def about(self) -> str:
        return f"r{self.round.round}/{self.claim.id}"

    @property
    def design(self) -> Design:
        assert self.round.design is not None
        return self.round.design

    @property
    def result(self) -> str:
        """What it came to, without any number where its verdict does not follow."""
        found = self.finding
        return "it has no verdict yet" if found is None else found.doubt or describe_evidence(found)

    @property
    def power(self) -> str:
        """What the lock promises to see, and what its runs were to cost."""
        requirements, design = StatisticalRequirements.of(self.study.settings), self.design
        effect, power = self.claim.smallest_effect or requirements.min_effect(design.metric), requirements.power
        if design.promise is not None:
            effect, power = design.promise.effect, design.promise.power
        cost = f"{design.price.runs} runs, about {format_seconds(design.price.total_s)}"
        return f"{cost}; power {power:.2g} at {format_difference(design.metric, effect)}"

    def ways(self, site: Site) -> Iterator[Way]:
        """Yield the ways, each with what it costs and could see."""
        state, over = self.study, "it is concluded, and its level is spent"
        over = over if state.concluded_reason is not None else ""
        no = over or "it is stopped" if over or state.stopped_reason is not None else ""
        no = no or ("" if state.asks_planner else "it is planned by the rules, which read no notes")
        no = no or ("" if may_continue(state) else "it has no round left")
        yield Way("note", "a word to its planner, for the next round", "" if no else self._next_round(site), no)
        now = is_stopped_by_budget(state) and self.round.round == state.round
        no = over or ("" if now else "no budget stopped the round of this claim")
        collected = sum(run.status == "collected" for run in self.round.runs.values())
        told = f"{collected} runs are collected; the whole lock: {self.power}; {describe_resume(state)}"
        yield Way("budget", "a larger budget, for what its lock asks for", told, no)
        no = ""
        try:
            build_reproduction(state, [self.claim.id], site.home.models)
        except BadInput as error:
            no = str(error)
        yield Way("study", "a new study under its lock, with fresh seeds and a level of its own", self.power, no)

    def _next_round(self, site: Site) -> str:
        if self.study.open_claims:
            return f"its level is known once this round is over; this round's lock: {self.power}"
        try:
            told = price_next_round(site.home, site.log, self.study, self.claim.id)
        except ResearchError as error:
            told = {"because": str(error)}
        if not told.get("can_be_had"):
            return f"the same once more cannot be had in the next round: {told.get('because', 'no price is known')}"
        parts = (f"{name.replace('_', ' ')} {value}" for name, value in told.items() if name != "can_be_had")
        return f"the same once more: {', '.join(parts)}"

    def count(self, site: Site) -> int:
        """Return how many studies here judged these values by this metric in this environment."""
        if (own := self.finding) is None:
            return 0
        alike = (own.compared, own.conditions.environment)
        every = load_findings(site.home, site.log).findings
        return len({own.study, *(one.study for one in every if (one.compared, one.conditions.environment) == alike)})


def find_evidence(site: Site, name: str) -> ClaimEvidence:
    """Return a claim by STUDY/ROUND/CLAIM; HTTPException (404) where there is none."""
    study, number, claim = (*name.split("/", 2), "", "")[:3]
    state = site.state(study)
    for each in state.rounds:
        for known in each.design.hypotheses if each.design is not None else ():
            if (str(each.round), known.id) == (number, claim):
                every = load_findings(site.home, site.log).findings
                found = next((finding for finding in every if finding.name == name), None)
                return ClaimEvidence(state, each, known, found)
    raise HTTPException(404, f"expected a claim under a lock, as STUDY/ROUND/CLAIM; found {name[:80]}")
