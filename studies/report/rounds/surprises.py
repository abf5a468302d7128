"""What surprised in an inquiry, round by round: taken from what each round's own remarks know, nothing is added."""

from __future__ import annotations

from collections.abc import Iterator

from studies.log.study_state import StudyState
from studies.report.measures.table import surprises
from studies.report.parts.evidence import Evidence
from studies.report.parts.wording import compared
from studies.report.sections.scrutiny import collapsed, miscalibrated, other_noise


def surprised(state: StudyState, evidence: Evidence) -> tuple[str, ...]:
    """Return a sentence for each thing that went otherwise than was thought in one round.

    A refuted direction, a prediction whose interval missed, a collapse, seeds that did more or less than was planned
    on, and other measures of the same runs that say something else than the verdict.
    """
    told = (remark.text for rule in (miscalibrated, collapsed, other_noise) for remark in rule(state, evidence))
    return (*_refuted(state), *told, *surprises(state, evidence))


def _refuted(state: StudyState) -> Iterator[str]:
    for verdict in state.verdicts:
        if verdict.verdict == "refuted" and state.design is not None:
            claim = state.design.hypothesis(verdict.hypothesis)
            if not claim.open:
                yield (
                    f"{claim.id} was refuted: {compared(claim)} brought the opposite of the {claim.direction} that was "
                    "claimed."
                )
