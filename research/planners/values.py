"""From what is asked to arms: controls, treatments and the constants that a comparison needs.

A direction without values compares the rung before the default with the last rung, so that the default lies between the
arms and the contrast is wide. Where a comparison can show nothing under the defaults (a clip with one update per
batch), a constant is added under which it can.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from research.errors import BadTopic, DesignRefused
from research.planners.context import FieldSpec
from research.proposals.actions import MOST_HYPOTHESES, MOST_KNOBS
from research.proposals.arms import Scalar, field_value, value_text
from research.proposals.flags import Claim, Shape
from studies.records.design import MODEL, SLOTS

Sense = Literal["up", "down", "on", "off"]
LARGEST_BATCH = 512
"""Most episodes per step that the planner chooses by itself."""
_STEPS, _BATCH = "steps", "episodes_per_step"
Matched = Literal["steps", "episodes"]
"""What of training the arms have equal."""
_REUSED = ("minibatches", 4, frozenset({"minibatches", "epochs"}), "because a first update has nothing to clip")
_NEEDS: Mapping[str, tuple[str, Scalar, frozenset[str], str]] = {
    "clip_ratio": _REUSED,
    "clip_ratio_high": _REUSED,
    "kl_estimator": ("kl_coef", 0.1, frozenset({"kl_coef"}), "because without a KL penalty nothing is estimated"),
    "lora_alpha": ("lora_rank", 16, frozenset({"lora_rank"}), "because without an adapter nothing is scaled"),
    "rollout_correction": (
        "max_staleness", 1, frozenset({"max_staleness"}), "because no token is stale without staleness",
    ),
}  # fmt: skip
"""What a comparison of a field needs to show anything: a constant, the fields that may see to it instead, and why."""
_DIVIDES = "so that every batch divides into its groups"


class Contrast(NamedTuple):
    """One field, its control value, and the values that it is compared with, or searched over."""

    field: str
    control: Scalar
    treatments: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """What is compared or searched, and what all arms share besides defaults."""

    contrasts: tuple[Contrast, ...]
    constants: Mapping[str, Scalar]
    adjusted: Mapping[str, str]
    """Constants the planner chose itself, and why."""
    shape: Shape = "apart"
    """How the contrasts go together: apart, each is compared by itself."""
    claim: Claim | None = None
    matched: Matched = "steps"
    confirm: int = 0
    """Of a search, how many of its best candidates are confirmed; 0 for a comparison."""


def plan_values(
    vary: Mapping[str, Sequence[Scalar]], held: Mapping[str, Scalar], facts: Mapping[str, FieldSpec],
    claim: Claim | None = None, matched: Matched = "steps", shape: Shape = "apart",
) -> ValuePlan:  # fmt: skip
    """Return the comparison of fields over values, the control first; raise BadTopic for what cannot be run."""
    values = {name: check_values(name, asked) for name, asked in vary.items()}
    if shape == "trend":
        values = {name: tuple(sorted(rungs, key=float)) for name, rungs in values.items()}
    contrasts = tuple(Contrast(name, known[0], known[1:]) for name, known in values.items())
    counts = [len(contrast.treatments) for contrast in contrasts]
    comparisons = {"together": max(counts), "apart": sum(counts)}.get(shape, 1)
    if comparisons > MOST_HYPOTHESES:
        raise BadTopic(
            f"expected at most {MOST_HYPOTHESES} comparisons in one study; found {comparisons}; "
            "name fewer fields or values, or ask them in several studies"
        )
    fixed = {name: check_values(name, (value,))[0] for name, value in held.items()}
    constants, why = add_required_constants(contrasts, fixed, facts, shape)
    if matched == "episodes" and _STEPS not in constants:
        episodes = int(facts[_STEPS].default) * int(facts[_BATCH].default)
        constants = {**constants, _STEPS: max(1, round(episodes / int(contrasts[0].control)))}
        why = {**why, _STEPS: "about as many as the default job's episodes make"}
    return ValuePlan(contrasts, constants, why, shape, claim, matched)


def plan_search(
    contrasts: Sequence[Contrast], held: Mapping[str, Scalar], facts: Mapping[str, FieldSpec], confirm: int = 1
) -> ValuePlan:
    """Return a search of fields over candidates; raise BadTopic or DesignRefused for what cannot be searched."""
    if len(contrasts) > MOST_KNOBS:
        named = ", ".join(knob.field for knob in contrasts)
        raise BadTopic(f"expected at most {MOST_KNOBS} fields to search; found {named}; name fewer of them")
    if any(knob.field in (_STEPS, MODEL) for knob in contrasts):
        raise BadTopic(
            "expected fields to search other than steps and models, as a search trains shortly itself; found one of "
            "them; compare two, such as 'steps 20 vs 80', or name another field"
        )
    inside = all(knob.control in knob.treatments for knob in contrasts)
    candidates = math.prod(len(knob.treatments) for knob in contrasts) - int(inside)
    if candidates < 2:
        raise BadTopic("expected two candidates or more beside the control; found fewer; compare the one there is")
    others = [knob._replace(treatments=tuple(v for v in knob.treatments if v != knob.control)) for knob in contrasts]
    constants, adjusted = add_required_constants(others, held, facts)
    return ValuePlan(tuple(contrasts), constants, adjusted, confirm=min(confirm, candidates - 1))


def check_values(name: str, asked: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Return values as the job holds them; raise BadTopic for one that it cannot hold, and for two that are alike."""
    if name in (MODEL, *SLOTS):
        return tuple(asked)  # their names are as they were found
    try:
        values = tuple(field_value(name, value) for value in asked)
    except DesignRefused as error:
        raise BadTopic(f"the topic names a value that cannot be run: {error.message}; name another value") from error
    if len(set(values)) < len(values):
        shown = ", ".join(map(value_text, values))
        raise BadTopic(f"expected different values of {name} to compare; found {shown}; name each once")
    return values


def choose_values(facts: FieldSpec, values: Sequence[Scalar] = (), sense: Sense | None = None) -> tuple[Scalar, ...]:
    """Return the values that are compared, the control first; raise BadTopic for a direction that leads nowhere."""
    ladder, default = facts.ladder, facts.default
    if len(values) > 1:
        ordered = sense is not None and not facts.is_categorical
        return tuple(sorted(values, key=float, reverse=sense in ("down", "off"))) if ordered else tuple(values)
    if facts.is_categorical:
        named, other = values[0] if values else None, default if default != ladder[0] else ladder[1]
        if named not in (None, default, ladder[0]) or (named is not None and sense == "off"):
            return (named, ladder[0]) if sense == "off" and named != ladder[0] else (default, named)
        return (other, ladder[0]) if sense == "off" else (ladder[0], other)
    if isinstance(default, bool):
        return (True, False) if sense in ("off", "down") else (False, True)
    if sense == "off" and ladder[0]:
        raise BadTopic(
            f"{facts.name} cannot be switched off; expected values to compare, such as '{facts.synonyms[0]} "
            f"{value_text(ladder[0])} vs {value_text(ladder[-1])}'"
        )
    if values:
        (value,) = values
        if sense in (None, "on") and value == default:
            sizes = {rung: math.log(float(rung)) if float(rung) > 0 else -20.0 for rung in (value, *ladder)}
            return value, max(ladder, key=lambda rung: abs(sizes[rung] - sizes[value]))
        beyond = value != default and (float(value) > float(default)) == (sense == "up")
        if sense == "off" or (sense in ("up", "down") and not beyond):
            raise BadTopic(
                f"expected two values of {facts.name} to compare; found {value_text(value)} and a direction that leads "
                f"away from it; name both, such as '{facts.synonyms[0]} A vs B'"
            )
        return default, value
    if sense == "off":
        return ladder[-1], ladder[0]
    rungs = list(ladder if sense != "down" else reversed(ladder))
    if facts.apart and sense in ("up", "down"):
        rungs.remove(ladder[0])
        return rungs[0], rungs[-1]
    place = rungs.index(default)
    if facts.given:  # one side is what the user's job has
        return (default, rungs[-1]) if place < len(rungs) - 1 else (rungs[0], default)
    return rungs[max(0, place - 1)] if place < len(rungs) - 1 else rungs[0], rungs[-1]


def add_required_constants(
    contrasts: Sequence[Contrast], constants: Mapping[str, Scalar], facts: Mapping[str, FieldSpec],
    shape: Shape = "apart",
) -> tuple[Mapping[str, Scalar], Mapping[str, str]]:  # fmt: skip
    """Return the constants with those added without which the contrasts show nothing or fit no batch, and why each."""
    varied = {contrast.field: contrast.control for contrast in contrasts}
    settled = {name for name, known in facts.items() if known.given} | constants.keys() | varied.keys()
    wants = [_NEEDS[contrast.field] for contrast in contrasts if contrast.field in _NEEDS]
    # GSPO is GRPO until something is clipped
    wants += [_REUSED for contrast in contrasts if "gspo" in (contrast.control, *contrast.treatments)]
    for name, _, _, why in wants:
        if not varied.get(name, 1):
            raise BadTopic(f"expected {name} above 0 in all arms, {why}; found it compared as well; ask in two studies")
    needed = [(name, value, why) for name, value, instead, why in wants if not instead & settled]
    fitting = _fit_batch(contrasts, constants, facts, shape)
    reasons = {name: why for name, _, why in needed} | dict.fromkeys(fitting, _DIVIDES)
    return {**constants, **{name: value for name, value, _ in needed}, **fitting}, reasons


def _fit_batch(
    contrasts: Sequence[Contrast], constants: Mapping[str, Scalar], facts: Mapping[str, FieldSpec], shape: Shape
) -> dict[str, Scalar]:
    """Return a batch or a group size under which every batch divides into groups, where the arms' do not."""
    varied = {contrast.field: (contrast.control, *contrast.treatments) for contrast in contrasts}
    groups, batches = (
        [int(value) for value in varied.get(name, (constants.get(name, facts[name].default),))]
        for name in ("group_size", _BATCH)
    )
    paired = shape == "together" and len(batches) == len(groups)
    arms = zip(batches, groups, strict=True) if paired else product(batches, groups)
    if not any(batch % group for batch, group in arms):
        return {}
    named = varied.keys() | constants.keys()
    if _BATCH not in named:
        shared = math.lcm(*groups)
        fitting = max(1, round(batches[0] / shared)) * shared
        if fitting <= LARGEST_BATCH:
            return {_BATCH: fitting}
    elif "group_size" not in named:
        shared = math.gcd(*batches)
        if divisors := [size for size in range(2, groups[0] + 1) if shared % size == 0]:
            return {"group_size": divisors[-1]}
    raise BadTopic(
        f"expected batches that divide into groups; found episodes_per_step {', '.join(map(str, batches))} with "
        f"group_size {', '.join(map(str, groups))}; name group sizes that divide the batch"
    )
