"""A claim of an earlier round put to the test once more: code builds the comparison from the record of the round.

Values, constants, steps, direction and prediction are those of the lock; seeds and level are the new round's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from research.design.compiler import DesignCompiler
from research.errors import DesignRefused
from research.metrics.asked import AskedMetric
from research.planner.inquiry import InquiryFacts, RoundFacts
from research.proposals.actions import Constant, Propose, ProposeDesign, ProposedHypothesis, Replicate
from research.proposals.models import arm_text
from studies.records.design import CONFIGURATION, MODEL, REWARD, Hypothesis, Metric
from swarm.job import Job

_NO_CONSTANTS: Final = ("environment", "steps", "seed", "tracking", MODEL)
"""Fields of a job that a design names elsewhere, or that no planner sets."""
_MOST_CONSTANTS: Final = 8


@dataclass(frozen=True, slots=True)
class Replicated:
    """The proposal and the design that a claim of an earlier round becomes."""

    proposal: Propose
    design: ProposeDesign


def replicated(action: Replicate, inquiry: InquiryFacts | None, compiler: DesignCompiler) -> Replicated:
    """Return the comparison of an earlier claim once more; raise DesignRefused for one that cannot be had again."""
    told, claim = _found(action.claim, inquiry)
    if claim.variable == CONFIGURATION:
        raise DesignRefused(
            f"expected a claim about one field; found {claim.id}, which a search made and is about several; propose a "
            "hypothesis about one of them"
        )
    design = told.design
    metric = _asked(design.metric) if compiler.requirements.metric is None else ""
    constants = tuple(_constants(design.base_job, claim, compiler.base or Job()))
    if len(constants) > _MOST_CONSTANTS:
        raise DesignRefused(f"{claim.id} was tested with {len(constants)} fields held, more than a design can hold")
    return Replicated(
        Propose(hypotheses=(_proposed(claim, design.code),), metric=metric, why=action.why or _why(claim, told)),
        ProposeDesign(
            environment=action.environment or design.environment,
            steps=int(design.base_job["steps"]),
            constants=constants,
        ),
    )


def _found(name: str, inquiry: InquiryFacts | None) -> tuple[RoundFacts, Hypothesis]:
    known = {
        entry.claim.id: (told, entry.claim) for told in (inquiry.rounds if inquiry else ()) for entry in told.claims
    }
    if name not in known:
        raise DesignRefused(f"expected a claim of an earlier round ({', '.join(known) or 'none'}); found {name!r}")
    return known[name]


def _why(claim: Hypothesis, told: RoundFacts) -> str:
    return f"{claim.id}, of round {told.number}, is put to the test once more."


def _proposed(claim: Hypothesis, code: Mapping[str, str]) -> ProposedHypothesis:
    control, treatment = (
        arm_text(value) if claim.variable == MODEL else value for value in (claim.control, claim.treatment)
    )
    return ProposedHypothesis(
        statement=claim.said,
        mechanism=claim.mechanism,
        variable=claim.variable,
        control=control,
        treatment=treatment,
        code=code.get(str(claim.treatment)) if claim.variable == REWARD else None,
        direction=claim.direction,
        predicted_low=claim.prediction.low,
        predicted_high=claim.prediction.high,
        probability=claim.prediction.probability,
        smallest_effect=claim.smallest_effect,
        falsifier=claim.falsifier,
        kill_if=claim.kill_if,  # type: ignore[arg-type]  # a record's text, which is checked here
        confounds=claim.confounds,
        matched=claim.matched,
        sought=claim.sought,
    )


def _constants(job: Mapping[str, Any], claim: Hypothesis, base: Job) -> Iterator[Constant]:
    """Yield the fields that the round held at another value than the job under all arms does."""
    usual = base.model_dump(mode="json")
    for name, value in job.items():
        if name in _NO_CONSTANTS or name == claim.variable or value == usual.get(name):
            continue
        if not isinstance(value, bool | int | float | str):
            raise DesignRefused(f"{claim.id} was tested with a {name} that no design can hold; propose it anew")
        yield Constant(field=name, value=value)


def _asked(metric: Metric) -> str:
    """Return how the metric of a round is asked for; empty for the usual one."""
    return AskedMetric(metric.kind, metric.threshold, metric.of).text if metric.kind else ""
