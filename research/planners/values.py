"""From what a topic says to values: controls, treatments and constants.

Rules, in this order. Explicit values are taken; the first is the control, unless a direction or the wording (`16
rather than 4`) says otherwise. One explicit value is compared with the default, or, when another field is being
compared, held constant. A direction without values compares the rung before the default (seen in that direction) with
the last rung, so that the default lies between the arms and the contrast is wide; a switch compares its two states.
Where the user's job has a value of its own, that one is compared with the last rung. No direction is read as upwards. A
choice of words has no directions: the default is compared with the value named, or with the next one on the ladder, and
`without` a value means the plainest one in its place. Where a comparison can show nothing under the defaults (a clip
with one update per batch), a constant is added under which it can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from research.errors import BadTopic, DesignRefused
from research.planners.context import FieldSpec
from research.planners.lexicon import Claim, Sense
from research.planners.topic import ALGORITHM, ParsedField
from research.proposals.actions import MOST_HYPOTHESES, MOST_RUNGS, MOST_TOGETHER
from research.proposals.arms import Scalar, field_value, value_text
from research.proposals.flags import Shape
from studies.records.design import LEAST_RUNGS, MODEL

LARGEST_BATCH = 512
"""Most episodes per step that the planner chooses by itself."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One field, its control value, and the values it is compared with."""

    field: str
    control: Scalar
    treatments: tuple[Scalar, ...]
    claim: Claim | None
    matched: Literal["steps", "episodes"] = "steps"
    """What of training its arms have equal."""


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """What is compared, and what all arms share besides defaults."""

    contrasts: tuple[Contrast, ...]
    constants: Mapping[str, Scalar]
    adjusted: Mapping[str, str]
    """Constants the planner chose itself, and why."""
    shape: Shape = "apart"
    """How the contrasts go together: apart, each is compared by itself."""


def plan_values(
    asked: Sequence[ParsedField],
    facts: Mapping[str, FieldSpec],
    matched: Literal["steps", "episodes"] = "steps",
    shape: Shape = "apart",
) -> ValuePlan:
    """Return the comparison that `asked` amounts to; raise BadTopic for values or combinations that cannot be run.

    With `matched` episodes batches are compared, and steps follow.
    """
    known = [resolve_held_value(check_values(entry), facts[entry.field]) for entry in asked]
    compared = [entry for entry in known if not _may_be_constant(entry)] or known
    if shape == "together":
        contrasts = tuple(Contrast(entry.field, entry.values[0], entry.values[1:], entry.claim) for entry in compared)
    elif shape == "trend":
        contrasts = (_make_trend(compared, facts),)
    else:
        contrasts = tuple(_make_contrast(entry, facts[entry.field]) for entry in compared)
    if shape == "interaction":
        _require_crossed(contrasts)
    if matched == "episodes":
        _refuse_both(compared)
        contrasts = _match_episodes(contrasts, _count_episodes(facts))
    comparisons = _count_comparisons(contrasts, shape)
    if comparisons > MOST_HYPOTHESES:
        raise BadTopic(
            f"expected at most {MOST_HYPOTHESES} comparisons in one study; found {comparisons}; "
            "name fewer fields or values, or ask them in several studies"
        )
    fixed = {entry.field: entry.values[0] for entry in known if entry not in compared and entry.values}
    constants, why = add_required_constants(contrasts, fixed, facts, shape)
    steps = _control_steps(contrasts, constants, _count_episodes(facts))
    return ValuePlan(contrasts, {**constants, **steps}, {**why, **dict.fromkeys(steps, _AS_MANY)}, shape)


def _count_comparisons(contrasts: Sequence[Contrast], shape: Shape) -> int:
    counts = [len(contrast.treatments) for contrast in contrasts]
    if shape in ("interaction", "trend"):
        return 1
    return max(counts) if shape == "together" else sum(counts)


def require_joint_fields(asked: Sequence[ParsedField], names: Sequence[str]) -> tuple[ParsedField, ...]:
    """Return what is asked where fields differ together, none as a condition; BadTopic for an arm without a value."""
    about = [entry for entry in asked if entry.field in names]
    counts = {len(entry.values) for entry in about}
    besides = [entry.field for entry in asked if entry.field not in names and len(entry.values) > 1]
    if len(counts) > 1 or min(counts) < 2 or len(about) > MOST_TOGETHER or besides:
        both = " and ".join(names)
        told = ", ".join(f"{len(entry.values)} of {entry.field}" for entry in about)
        more = f" beside {besides[0]}" if besides else ""
        raise BadTopic(
            f"expected a value of each field in each arm, of 2 to {MOST_TOGETHER} fields; found arms that differ in "
            f"{both} together{more}, and values: {told}; write every value, such as 'group size 4 with learning rate "
            "1e-3 vs group size 16 with learning rate 3e-3', or ask for each field by itself, with the others at one "
            "value"
        )
    return tuple(replace(entry, held=False) if entry in about else entry for entry in asked)


def require_interaction(asked: Sequence[ParsedField]) -> tuple[ParsedField, ...]:
    """Return what is asked where the effect of one field depends on another: the fields with one value are settings."""
    single = [entry for entry in asked if len(entry.values) == 1 and entry.sense is None and entry.factor is None]
    about = [entry for entry in asked if entry not in single] if len(asked) > 2 else list(asked)
    if len(about) != 2:
        named = " and ".join(entry.field for entry in about) or "none"
        raise BadTopic(
            "expected two fields where the effect of one may depend on the other; found "
            f"{named}; name two, such as 'does the effect of group size 4 vs 16 depend on learning rate 1e-3 vs 3e-3?'"
        )
    return tuple(replace(entry, held=False) if entry in about else entry for entry in asked)


def _require_crossed(contrasts: Sequence[Contrast]) -> None:
    if [len(contrast.treatments) for contrast in contrasts] == [1, 1]:
        return
    told = " and ".join(f"{1 + len(contrast.treatments)} values of {contrast.field}" for contrast in contrasts)
    raise BadTopic(
        "expected two fields with two values each where the effect of one may depend on the other, as four arms are; "
        f"found {told}; name two values of each, such as 'group size 4 vs 16 and learning rate 1e-3 vs 3e-3'"
    )


def _make_trend(compared: Sequence[ParsedField], facts: Mapping[str, FieldSpec]) -> Contrast:
    if len(compared) != 1 or facts[compared[0].field].is_categorical or compared[0].field == MODEL:
        named = " and ".join(entry.field for entry in compared)
        raise BadTopic(f"expected a trend over the numbers of one field; found {named}; name one, and its values")
    asked, known = compared[0], facts[compared[0].field]
    rungs = sorted(asked.values or _spread_rungs(known.ladder), key=float)
    if not LEAST_RUNGS <= len(rungs) <= MOST_RUNGS:
        raise BadTopic(
            f"expected {LEAST_RUNGS} or {MOST_RUNGS} values of {known.name} for a trend; found "
            f"{', '.join(map(value_text, rungs))}; name so many"
        )
    return Contrast(asked.field, rungs[0], tuple(rungs[1:]), asked.claim)


def _spread_rungs(ladder: Sequence[Scalar]) -> Sequence[Scalar]:
    if len(ladder) <= MOST_RUNGS:
        return ladder
    return [ladder[round(at * (len(ladder) - 1) / (MOST_RUNGS - 1))] for at in range(MOST_RUNGS)]


_STEPS, _BATCH = "steps", "episodes_per_step"
_AS_MANY = "about as many as the default job's episodes make"


def _count_episodes(facts: Mapping[str, FieldSpec]) -> int:
    """Return the training episodes of an arm where all have as many: those of the job under all arms."""
    return int(facts[_STEPS].default) * int(facts[_BATCH].default)


def _refuse_both(compared: Sequence[ParsedField]) -> None:
    about = [entry for entry in compared if entry.field in (_STEPS, _BATCH)]
    if len(about) > 1 and any(entry.values or entry.factor for entry in about):
        raise BadTopic(
            "expected values of steps or of batches where all arms have equal episodes, as one follows the other; "
            "found values beside both; name the batches alone, such as 'batch size 64 vs 256 at equal episodes'"
        )


def _match_episodes(contrasts: tuple[Contrast, ...], episodes: int) -> tuple[Contrast, ...]:
    """Return the contrasts with those of length and of batch as one of batches; what is named first is tried: in `does
    longer training help more than a larger batch` the smaller batch.
    """
    about = [contrast for contrast in contrasts if contrast.field in (_STEPS, _BATCH)]
    if not about:
        return contrasts
    first = about[0]
    sides: tuple[Scalar, ...] = (first.control, *first.treatments)
    if len(about) > 1:
        (batch,) = (contrast for contrast in about if contrast.field == _BATCH)
        known = sorted((batch.control, *batch.treatments), key=float)
        sides = (known[-1], known[0]) if first.field == _STEPS else (known[0], known[-1])
    elif first.field == _STEPS:
        sides = tuple(_find_batch(value, episodes) for value in sides)
    batches = Contrast(_BATCH, sides[0], tuple(sides[1:]), first.claim, "episodes")
    return (batches, *(contrast for contrast in contrasts if contrast not in about))


def _find_batch(steps: Scalar, episodes: int) -> int:
    if episodes % int(steps):
        raise BadTopic(
            f"expected numbers of steps that split {episodes:,} episodes into equal batches; found "
            f"{value_text(steps)}; name others, or the batches to compare, such as 'batch size 64 vs 256 at the same "
            "number of episodes'"
        )
    return episodes // int(steps)


def _control_steps(contrasts: Sequence[Contrast], constants: Mapping[str, Scalar], episodes: int) -> dict[str, Scalar]:
    batch = next((int(contrast.control) for contrast in contrasts if contrast.matched == "episodes"), None)
    if batch is None or _STEPS in constants:
        return {}
    return {_STEPS: max(1, round(episodes / batch))}


def add_required_constants(
    contrasts: Sequence[Contrast],
    constants: Mapping[str, Scalar],
    facts: Mapping[str, FieldSpec],
    shape: Shape = "apart",
) -> tuple[Mapping[str, Scalar], Mapping[str, str]]:
    """Return the constants with those added without which the contrasts show nothing or fit no batch, and why each."""
    given = {name: known.default for name, known in facts.items() if known.given}
    needed = _find_required_constants(contrasts, {**given, **constants})
    fitting = _fit_batch(contrasts, constants, facts, shape)
    why = {name: reason for name, (_, reason) in needed.items()} | dict.fromkeys(fitting, _DIVIDES)
    return {**constants, **{name: value for name, (value, _) in needed.items()}, **fitting}, why


def check_values(asked: ParsedField) -> ParsedField:
    if asked.field == MODEL:
        return asked  # their names are as they were found
    try:
        values = tuple(field_value(asked.field, value) for value in asked.values)
    except DesignRefused as error:
        raise BadTopic(f"the topic names a value that cannot be run: {error.message}; name another value") from error
    if len(set(values)) < len(values):
        shown = ", ".join(value_text(value) for value in values)
        raise BadTopic(f"expected different values of {asked.field} to compare; found {shown}; name each once")
    return replace(asked, values=values)


def resolve_held_value(asked: ParsedField, facts: FieldSpec) -> ParsedField:
    """Return what all arms share with the value that it has; raise BadTopic where the topic leaves that open."""
    if not asked.held:
        return asked
    if asked.sense in ("on", "off") and not asked.values:
        value = _off_value(facts) if asked.sense == "off" else facts.ladder[-1]
        return replace(asked, values=(value,), sense=None)
    if len(asked.values) == 1:
        return replace(asked, sense=None)
    shown = " and ".join(value_text(value) for value in asked.values) or "none"
    raise BadTopic(
        f"expected one value of {facts.name} where it is a condition of the comparison; found {shown}; name one, such "
        f"as 'with {facts.synonyms[0]} {value_text(facts.default)}', and ask again for another: whether an effect "
        "depends on a second field is not tested yet"
    )


def _may_be_constant(asked: ParsedField) -> bool:
    """Return whether it need not be compared: one value, or a mention of the algorithm without its name."""
    if asked.held:
        return True
    if asked.sense is not None or asked.judged or asked.factor is not None:
        return False
    return len(asked.values) == 1 or (asked.field == ALGORITHM and not asked.values)


def _make_contrast(asked: ParsedField, facts: FieldSpec) -> Contrast:
    control, *treatments = _choose_values(asked, facts)
    return Contrast(asked.field, control, tuple(treatments), asked.claim)


def _choose_values(asked: ParsedField, facts: FieldSpec) -> Sequence[Scalar]:
    if facts.is_categorical:
        return _choose_categories(asked, facts)
    if len(asked.values) > 1:
        if asked.sense is None:
            return asked.values
        return sorted(asked.values, key=float, reverse=asked.sense in ("down", "off"))
    if isinstance(facts.default, bool):
        return (True, False) if asked.sense in ("off", "down") else (False, True)
    if asked.factor is not None:
        return facts.default, _multiply_default(asked.factor, facts)
    if asked.judged:
        return asked.values[0], *_neighbours(asked.values[0], facts)
    if asked.values:
        return _pair_value(asked.values[0], asked.sense, facts)
    if asked.sense == "off":
        return facts.ladder[-1], _off_value(facts)
    rungs = list(facts.ladder) if asked.sense != "down" else list(reversed(facts.ladder))
    if facts.apart and asked.sense in ("up", "down"):
        rungs.remove(facts.ladder[0])
        return rungs[0], rungs[-1]
    place = rungs.index(facts.default)
    if facts.given:  # one side is what the user's job has
        return (facts.default, rungs[-1]) if place < len(rungs) - 1 else (rungs[0], facts.default)
    return rungs[max(0, place - 1)] if place < len(rungs) - 1 else rungs[0], rungs[-1]


def _choose_categories(asked: ParsedField, facts: FieldSpec) -> Sequence[Scalar]:
    plainest, other = facts.ladder[0], facts.ladder[1]
    if len(asked.values) > 1:
        return asked.values
    named = asked.values[0] if asked.values else None
    if asked.sense == "off" and named != plainest:
        return named or (facts.default if facts.default != plainest else other), plainest
    if named is None or named in (facts.default, plainest):
        return plainest, facts.default if facts.default != plainest else other
    return facts.default, named


def _pair_value(value: Scalar, sense: Sense | None, facts: FieldSpec) -> Sequence[Scalar]:
    if sense == "off":
        off = _off_value(facts)
        return value if value != off else facts.ladder[-1], off
    if sense is None and value == facts.default:
        return value, max(facts.ladder, key=lambda rung: abs(_log_scale(rung) - _log_scale(value)))
    if sense is None or (value != facts.default and (float(value) > float(facts.default)) == (sense != "down")):
        return facts.default, value
    before = [
        rung for rung in facts.ladder if (float(rung) > float(value) if sense == "down" else float(rung) < float(value))
    ]
    if not before:
        raise BadTopic(
            f"expected two values of {facts.name} to compare; found {value_text(value)} and a direction that leads "
            f"away from it; name both, such as '{facts.synonyms[0]} A vs B'"
        )
    return (before[0] if sense == "down" else before[-1]), value


def _neighbours(value: Scalar, facts: FieldSpec) -> tuple[Scalar, ...]:
    below = [rung for rung in facts.ladder if float(rung) < float(value)]
    above = [rung for rung in facts.ladder if float(rung) > float(value)]
    return (*below[-1:], *(above[:1] or _extrapolate(value, facts)))


def _extrapolate(value: Scalar, facts: FieldSpec) -> tuple[Scalar, ...]:
    """Return a value as far above as the last rung is above the one before; none where the field has no such value."""
    before, last = (float(rung) for rung in facts.ladder[-2:])
    return _try_value(facts.name, float(value) * last / before) if before > 0 else ()


def _multiply_default(factor: float, facts: FieldSpec) -> Scalar:
    found = () if isinstance(facts.default, bool | str) else _try_value(facts.name, float(facts.default) * factor)
    if not found or found[0] == facts.default:
        raise BadTopic(
            f"expected a multiple of {facts.name}'s default, {value_text(facts.default)}, that it can have; found "
            f"{factor:g} times; name two values, such as '{facts.synonyms[0]} A vs B'"
        )
    return found[0]


def _try_value(name: str, value: float) -> tuple[Scalar, ...]:
    whole = int(value) if value == int(value) else round(value, 12)
    try:
        return (field_value(name, whole),)
    except DesignRefused:
        return ()


def _off_value(facts: FieldSpec) -> Scalar:
    lowest, highest = facts.ladder[0], facts.ladder[-1]
    if lowest:
        raise BadTopic(
            f"{facts.name} cannot be switched off; expected values to compare, "
            f"such as '{facts.synonyms[0]} {value_text(lowest)} vs {value_text(highest)}'"
        )
    return lowest


def _log_scale(value: Scalar) -> float:
    return math.log(float(value)) if float(value) > 0 else -20.0


_REUSED = ("minibatches", 4, frozenset({"minibatches", "epochs"}), "because a first update has nothing to clip")
_NEEDS: Mapping[str, tuple[str, Scalar, frozenset[str], str]] = {
    "clip_ratio": _REUSED,
    "clip_ratio_high": _REUSED,
    "kl_estimator": ("kl_coef", 0.1, frozenset({"kl_coef"}), "because without a KL penalty nothing is estimated"),
    "rollout_correction": (
        "max_staleness", 1, frozenset({"max_staleness"}), "because no token is stale without staleness",
    ),
}  # fmt: skip
"""What a comparison of a field needs to show anything: a constant, the fields that may see to it instead, and why."""


def _find_required_constants(
    contrasts: Sequence[Contrast], constants: Mapping[str, Scalar]
) -> dict[str, tuple[Scalar, str]]:
    """Return the constants without which a comparison could show nothing; GSPO is GRPO until something is clipped."""
    varied = {contrast.field: contrast.control for contrast in contrasts}
    settled = constants.keys() | varied.keys()
    wants = [_NEEDS[contrast.field] for contrast in contrasts if contrast.field in _NEEDS]
    wants += [_REUSED for contrast in contrasts if "gspo" in (contrast.control, *contrast.treatments)]
    for name, _, _, why in wants:
        if not varied.get(name, 1):
            raise BadTopic(f"expected {name} above 0 in all arms, {why}; found it compared as well; ask in two studies")
    return {name: (value, why) for name, value, instead, why in wants if not instead & settled}


_DIVIDES = "so that every batch divides into its groups"


def _fit_batch(
    contrasts: Sequence[Contrast],
    constants: Mapping[str, Scalar],
    facts: Mapping[str, FieldSpec],
    shape: Shape = "apart",
) -> dict[str, Scalar]:
    varied = {contrast.field: (contrast.control, *contrast.treatments) for contrast in contrasts}
    groups = _integers("group_size", varied, constants, facts)
    batches = _integers("episodes_per_step", varied, constants, facts)
    paired = shape == "together" and len(batches) == len(groups)
    arms = zip(batches, groups, strict=True) if paired else product(batches, groups)
    if not any(batch % group for batch, group in arms):
        return {}
    if not {"episodes_per_step"} & (varied.keys() | constants.keys()):
        shared = math.lcm(*groups)
        fitting = max(1, round(batches[0] / shared)) * shared
        if fitting <= LARGEST_BATCH:
            return {"episodes_per_step": fitting}
    elif not {"group_size"} & (varied.keys() | constants.keys()):
        shared = math.gcd(*batches)
        divisors = [size for size in range(2, groups[0] + 1) if shared % size == 0]
        if divisors:
            return {"group_size": divisors[-1]}
    raise BadTopic(
        f"expected batches that divide into groups; found episodes_per_step {_join_numbers(batches)} with group_size "
        f"{_join_numbers(groups)}; name group sizes that divide the batch"
    )


def _integers(
    name: str, arms: Mapping[str, Sequence[Scalar]], constants: Mapping[str, Scalar], facts: Mapping[str, FieldSpec]
) -> list[int]:
    fixed = constants.get(name, facts[name].default)
    return [int(value) for value in arms.get(name, (fixed,))]


def _join_numbers(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)
