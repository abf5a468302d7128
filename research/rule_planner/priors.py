"""What the rule planner expects before any run: modest guesses written by hand, from general experience with GRPO.

These are priors, not results. They are scored like any prediction once the verdicts are in. Intervals hold 80 % and
are in units of the success rate, for raising the field across its ladder; lowering mirrors them. Probabilities are
those of the data supporting the claim at the 5 % level with a handful of seeds, which a small effect seldom does. Of
another metric as large a part of its range is expected, towards its better end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from research.metrics.judge import span
from research.topic.lexicon import Claim
from studies.records.design import Metric


@dataclass(frozen=True, slots=True)
class Prior:
    """Expectation for raising one field."""

    low: float
    high: float
    raises: float
    """Probability that a rise of the success rate is supported."""
    lowers: float
    """Probability that a fall of the success rate is supported."""
    because: str
    """Mechanism, in one sentence."""


UNDIRECTED = 0.5
"""Probability given to a claim that the topic itself leaves open."""
_A_LITTLE = 0.01
"""How far an interval reaches into the direction of a claim that its prior thinks little of."""
_UNKNOWN = Prior(-0.15, 0.15, 0.2, 0.2, "No prior knowledge of this field.")
_PRIORS = {
    "steps": Prior(0.0, 0.25, 0.7, 0.02, "More updates on more episodes move the policy further before it levels off."),
    "episodes_per_step": Prior(0.0, 0.15, 0.45, 0.05, "More episodes in a batch give a less noisy gradient."),
    "group_size": Prior(
        -0.05, 0.15, 0.35, 0.1,
        "A larger group gives each episode a less noisy baseline, and fewer groups are constant; it leaves fewer "
        "different tasks in a batch.",
    ),
    "learning_rate": Prior(-0.1, 0.25, 0.5, 0.15, "Larger updates learn faster until they become unstable."),
    "temperature": Prior(-0.15, 0.1, 0.15, 0.3, "Hotter sampling explores more, but also acts worse while it learns."),
    "epochs": Prior(-0.05, 0.2, 0.4, 0.1, "Reusing a batch makes more updates of the same data, at some staleness."),
    "minibatches": Prior(-0.05, 0.2, 0.35, 0.1, "More optimiser steps per batch move further, with noisier gradients."),
    "clip_ratio": Prior(-0.05, 0.05, 0.1, 0.1, "Clipping binds only when a batch is used for more than one update."),
    "kl_coef": Prior(-0.2, 0.02, 0.03, 0.45, "A penalty towards the initial policy holds back what is to be learned."),
    "entropy_coef": Prior(-0.1, 0.08, 0.1, 0.2, "An entropy bonus keeps exploring, at the cost of exploiting."),
    "algorithm": Prior(
        -0.1, 0.1, 0.15, 0.15,
        "Algorithms differ in the baseline, in how tokens weigh and in what is clipped: small differences while the "
        "batches are on-policy.",
    ),
    "lr_schedule": Prior(
        -0.12, 0.12, 0.15, 0.15, "A falling step size settles the policy at the end and learns less on the way."
    ),
    "clip_ratio_high": Prior(
        -0.05, 0.06, 0.1, 0.1, "More room upwards lets rare good tokens grow, where a batch is used more than once."
    ),
    "kl_estimator": Prior(-0.08, 0.08, 0.1, 0.1, "Estimates of one divergence pull towards the initial policy alike."),
    "lora_rank": Prior(-0.2, 0.1, 0.15, 0.35, "An adapter trains fewer directions of the weights than all of them."),
    "max_staleness": Prior(
        -0.15, 0.05, 0.05, 0.3, "Older tokens point where an older policy should have gone; what is won is time."
    ),
    "rollout_correction": Prior(
        -0.08, 0.08, 0.1, 0.1, "Weighing stale tokens by their present probability removes bias and adds noise."
    ),
    "normalize_advantage": Prior(
        -0.05, 0.15, 0.3, 0.1, "Dividing by the group's deviation enlarges the updates from rarely solved tasks."
    ),
}  # fmt: skip


_FEARS: Mapping[str, tuple[str, ...]] = {
    "kl_coef": ("less movement in all, which fewer steps would bring about as well",),
    "learning_rate": ("collapsed runs, which a mean hides",),
}
"""What code does not see by itself; what follows from a field by its meaning is named by
`research.proposals.arms.feared`."""


def fears(field: str) -> tuple[str, ...]:
    """Return what else could bring an effect of `field` about."""
    return _FEARS.get(field, ())


def predict_best(fields: Sequence[str]) -> tuple[float, float, float]:
    """Return (low, high, probability) for the best of a screen's candidates against the defaults.

    As if the fields' priors were independent and the screen picked the better direction of each half of the times.
    """
    known = [prior_of(field) for field in fields]
    none = math.prod((1 - prior.raises / 2) * (1 - prior.lowers / 2) for prior in known)
    return -0.05, max(max(prior.high, -prior.low) for prior in known), round(1 - none, 3)


def prior_of(field: str) -> Prior:
    """Return the expectation for raising `field`; a wide, symmetric one for a field nobody wrote a prior for."""
    return _PRIORS.get(field, _UNKNOWN)


def predict(field: str, *, rises: bool, claim: Claim | None) -> tuple[float, float, float]:
    """Return (low, high, probability) for a claim about raising (or lowering) `field`; no claim is an open question.

    Whatever its prior, an interval reaches a little into what is claimed, into both directions of an open question.
    """
    prior = prior_of(field)
    low, high = (prior.low, prior.high) if rises else (0.0 - prior.high, 0.0 - prior.low)
    if claim != "increase":
        low = min(low, -_A_LITTLE)
    if claim != "decrease":
        high = max(high, _A_LITTLE)
    if claim is None:
        return low, high, UNDIRECTED
    return low, high, prior.raises if (claim == "increase") == rises else prior.lowers


def in_metric(low: float, high: float, metric: Metric) -> tuple[float, float]:
    """Return an interval of success rates as one of a metric: shares as they are, others by their range."""
    scale = span(metric) if metric.unit else 1.0
    ends = [float(f"{(end if metric.higher_is_better else 0.0 - end) * scale:.6g}") for end in (low, high)]
    return min(ends), max(ends)
