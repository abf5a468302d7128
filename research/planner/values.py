"""From what a topic says about fields to values that can be compared: controls, treatments and constants.

Rules, in this order. Explicit values are taken; the first is the control, unless a direction or the wording (`16
rather than 4`) says otherwise. One explicit value is compared with the default, or, when another field is being
compared, held constant. A direction without values compares the rung before the default (seen in that direction) with
the last rung, so that the default lies between the arms and the contrast is wide; a switch compares its two states.
No direction is read as upwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from research.arms import Scalar, field_value, value_text
from research.errors import BadTopic, DesignRefused
from research.planner.actions import MOST_HYPOTHESES
from research.planner.digest import FieldFacts
from research.planner.lexicon import Claim, Sense
from research.planner.topic import Asked

LARGEST_BATCH = 512
"""Most episodes per step that the planner chooses by itself."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One field, its control value, and the values it is compared with."""

    field: str
    control: Scalar
    treatments: tuple[Scalar, ...]
    claim: Claim | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared, and what all arms share besides defaults."""

    contrasts: tuple[Contrast, ...]
    constants: Mapping[str, Scalar]
    adjusted: tuple[str, ...]
    """Constants the planner chose itself because a batch must divide into groups."""


def plan_values(asked: Sequence[Asked], facts: Mapping[str, FieldFacts]) -> Plan:
    """Return the comparison that `asked` amounts to; raise BadTopic for values or combinations that cannot be run."""
    known = [_checked(entry) for entry in asked]
    compared = [entry for entry in known if not _may_be_constant(entry)] or known
    contrasts = tuple(_contrast(entry, facts[entry.field]) for entry in compared)
    comparisons = sum(len(contrast.treatments) for contrast in contrasts)
    if comparisons > MOST_HYPOTHESES:
        raise BadTopic(
            f"expected at most {MOST_HYPOTHESES} comparisons in one study; found {comparisons}; "
            "name fewer fields or values, or ask them in several studies"
        )
    constants = {entry.field: entry.values[0] for entry in known if entry not in compared}
    chosen = _fitting_batch(contrasts, constants, facts)
    return Plan(contrasts, {**constants, **chosen}, tuple(chosen))


def _checked(asked: Asked) -> Asked:
    try:
        values = tuple(field_value(asked.field, value) for value in asked.values)
    except DesignRefused as error:
        raise BadTopic(f"the topic names a value that cannot be run: {error.message}; name another value") from error
    if len(set(values)) < len(values):
        shown = ", ".join(value_text(value) for value in values)
        raise BadTopic(f"expected different values of {asked.field} to compare; found {shown}; name each once")
    return Asked(asked.field, values, asked.sense, asked.claim)


def _may_be_constant(asked: Asked) -> bool:
    return len(asked.values) == 1 and asked.sense is None


def _contrast(asked: Asked, facts: FieldFacts) -> Contrast:
    control, *treatments = _values(asked, facts)
    return Contrast(asked.field, control, tuple(treatments), asked.claim)


def _values(asked: Asked, facts: FieldFacts) -> Sequence[Scalar]:
    if len(asked.values) > 1:
        return _sorted(asked.values, asked.sense)
    if isinstance(facts.default, bool):
        return (True, False) if asked.sense in ("off", "down") else (False, True)
    if asked.values:
        return _with_one_value(asked.values[0], asked.sense, facts)
    if asked.sense == "off":
        return facts.ladder[-1], _off_value(facts)
    rungs = list(facts.ladder) if asked.sense != "down" else list(reversed(facts.ladder))
    place = rungs.index(facts.default)
    return rungs[max(0, place - 1)] if place < len(rungs) - 1 else rungs[0], rungs[-1]


def _sorted(values: Sequence[Scalar], sense: Sense | None) -> Sequence[Scalar]:
    if sense is None:
        return values
    return sorted(values, reverse=sense in ("down", "off"))


def _with_one_value(value: Scalar, sense: Sense | None, facts: FieldFacts) -> Sequence[Scalar]:
    """Return the value and what it is compared with: the default, or the rung it is a step in the direction from."""
    if sense == "off":
        off = _off_value(facts)
        return value if value != off else facts.ladder[-1], off
    if sense is None and value == facts.default:
        return value, max(facts.ladder, key=lambda rung: abs(_scale(rung) - _scale(value)))
    if sense is None or (value != facts.default and (value > facts.default) == (sense != "down")):
        return facts.default, value
    before = [rung for rung in facts.ladder if (rung > value if sense == "down" else rung < value)]
    if not before:
        raise BadTopic(
            f"expected two values of {facts.name} to compare; found {value_text(value)} and a direction that leads "
            f"away from it; name both, such as '{facts.synonyms[0]} A vs B'"
        )
    return (before[0] if sense == "down" else before[-1]), value


def _off_value(facts: FieldFacts) -> Scalar:
    lowest, highest = facts.ladder[0], facts.ladder[-1]
    if lowest:
        raise BadTopic(
            f"{facts.name} cannot be switched off; expected values to compare, "
            f"such as '{facts.synonyms[0]} {value_text(lowest)} vs {value_text(highest)}'"
        )
    return lowest


def _scale(value: Scalar) -> float:
    """Return a value on the scale on which ladders are even: logarithmic, with zero far below."""
    return math.log(value) if value > 0 else -20.0


def _fitting_batch(
    contrasts: Sequence[Contrast], constants: Mapping[str, Scalar], facts: Mapping[str, FieldFacts]
) -> dict[str, Scalar]:
    """Return the constants needed so that every arm's batch divides into its groups; empty when it does already."""
    arms = {contrast.field: (contrast.control, *contrast.treatments) for contrast in contrasts}
    groups = _integers("group_size", arms, constants, facts)
    batches = _integers("episodes_per_step", arms, constants, facts)
    if not any(batch % group for batch in batches for group in groups):
        return {}
    if not {"episodes_per_step"} & (arms.keys() | constants.keys()):
        shared = math.lcm(*groups)
        fitting = max(1, round(batches[0] / shared)) * shared
        if fitting <= LARGEST_BATCH:
            return {"episodes_per_step": fitting}
    elif not {"group_size"} & (arms.keys() | constants.keys()):
        shared = math.gcd(*batches)
        divisors = [size for size in range(2, groups[0] + 1) if shared % size == 0]
        if divisors:
            return {"group_size": divisors[-1]}
    raise BadTopic(
        f"expected batches that divide into groups; found episodes_per_step {_listed(batches)} with group_size "
        f"{_listed(groups)}; name group sizes that divide the batch"
    )


def _integers(
    name: str, arms: Mapping[str, Sequence[Scalar]], constants: Mapping[str, Scalar], facts: Mapping[str, FieldFacts]
) -> list[int]:
    fixed = constants.get(name, facts[name].default)
    return [int(value) for value in arms.get(name, (fixed,))]


def _listed(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)
