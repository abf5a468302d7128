"""The price of a comparison that a planner thinks of: compiled at the round's level as a proposal would be.

Nothing is drawn: no seed, no level, no noise run.
"""

from __future__ import annotations

from typing import Any

from research.design.compiler import CompiledDesign, DesignCompiler, accept_hypotheses
from research.design.sample_size import SizedDesign
from research.errors import DesignRefused
from research.looks.requests import LookAtPrice
from research.proposals.actions import Propose, ProposeDesign, ProposedHypothesis
from research.proposals.flags import RequestedComparison
from studies.records.design import Hypothesis


def price(compiler: DesignCompiler, wanted: RequestedComparison, request: LookAtPrice) -> dict[str, Any]:
    """Return what a comparison would take and could see, or why it cannot be had."""
    design = ProposeDesign(environment=request.environment, steps=request.steps, constants=request.constants)
    try:
        if (refused := wanted.refuses(request.environment)) is not None:
            raise refused
        compiled = compiler.compile(_claims(compiler, request), design)
        told = _after_noise(compiled) if compiled.sized is None else _sized(compiled, compiled.sized)
    except DesignRefused as error:
        return {"can_be_had": False, "because": error.for_planner}
    place = compiler.ledgers.place(compiler.previous)
    level = {} if place is None else {"level_of_differences": round(place.difference, 5)}
    return {"can_be_had": True, **told, **level}


def _claims(compiler: DesignCompiler, request: LookAtPrice) -> tuple[Hypothesis, ...]:
    ends = (0.0, 0.1) if request.direction == "increase" else (-0.1, 0.0)
    proposed = Propose(
        hypotheses=tuple(
            ProposedHypothesis(
                mechanism="", variable=request.variable, control=request.control, treatment=treatment,
                direction=request.direction, predicted_low=ends[0], predicted_high=ends[1], probability=0.5,
                smallest_effect=request.smallest_effect,
            )
            for treatment in request.treatments
        )
    )  # fmt: skip
    asked = compiler.requirements.metric
    return accept_hypotheses(
        proposed, compiler.models, None if asked is None else compiler.metric_in(request.environment)
    )


def _sized(compiled: CompiledDesign, sized: SizedDesign) -> dict[str, Any]:
    check, analysis, effect = compiled.sizing.budget_check, sized.analysis, sized.unsized.effect
    return {
        "seeds_per_arm": sized.seeds,
        "arms": sized.unsized.arms,
        "runs_at_most": sum(stage.runs for stage in sized.stages),
        "seconds_at_most": round(check.cost(sized.stages)),
        "smallest_effect": effect,
        "power_at_the_smallest_effect": round(analysis.power(sized.seeds, effect), 3),
        "promised_power": compiled.sizing.requirements.power,
        "effect_seen_with_the_promised_power": analysis.detectable(sized.seeds),
        "sd_between_seeds": round(sized.noise.sd, 4),
    }


def _after_noise(compiled: CompiledDesign) -> dict[str, Any]:
    """Return what is known before A/A runs: what they cost, with the least that has to follow them."""
    stages = compiled.sizing.noise_first(compiled.unsized)
    return {
        "first": f"A/A runs: {compiled.sizing.unknown(compiled.unsized)}",
        "seconds_at_least": round(compiled.sizing.budget_check.cost(stages)),
        "smallest_effect": compiled.unsized.effect,
    }
