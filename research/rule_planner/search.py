"""Topics that ask which values are best: a screen over the fields' ladders, with the job's defaults as the control.

`What is the best learning rate and group size?`, `tune the clip ratio`, `which temperature works best?`. Explicit
values take the ladder's place; a single one is held constant. Where no more than one candidate is left beside the
control (a switch, or two values), there is nothing to search, and the topic is read as a comparison.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from research.errors import BadTopic
from research.planner.digest import FieldFacts
from research.proposals.actions import MOST_CONFIRMED, MOST_HYPOTHESES, MOST_KNOBS
from research.proposals.arms import Scalar, value_text
from research.rule_planner.priors import prior_of
from research.rule_planner.values import Contrast, checked, settled, with_required_constants
from research.topic.reading import FieldReading
from studies.records.design import MODEL
from swarm.job import Job

_FIELD = r"[\w\s,()/'\u2019-]{0,80}?"
_BEST = re.compile(
    r"\b(?:optimal|optimum|optimally|ideal)\b"
    r"|(?<!fine )(?<!fine-)(?<!fine)\b(?:tune|tunes|tuning|sweep|sweeps|sweeping)\b"
    r"|\b(?:optimi[sz]e|optimi[sz]ing)\b|\b(?:grid|random|hyper-?parameter) search\b|\bsearch (?:over|for|through)\b"
    rf"|\b(?:what|which|find|choose|pick|select|determine|identify|get|give me)\b{_FIELD}\bbest\b"
    r"|\b(?:best|right|top)\s+(?:two|three|[23]\s+)?\s*(?:values?|settings?|choices?|combinations?|configurations?)\b"
    r"|\b(?:what|which)\s+values?\b"
    rf"|\b(?:what|which|how (?:large|big|small|high|low|many))\b{_FIELD}\bshould (?:i|we|one|you)\b"
    rf"|\bhow (?:large|big|small|high|low)\b{_FIELD}\bbest\b"
    r"|^\W*(?:the\s+)?best\b",
    re.IGNORECASE,
)
_ANYTHING = re.compile(
    r"\b(?:what|which (?:\w+ )?(?:fields?|settings?|hyper-?parameters?|parameters?|knobs?|options?|changes?))\b"
    r"[\w\s]{0,20}?"
    r"\b(?:helps?|matters?|works?|improves?|counts?|raises?|increases?|boosts?)\b",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\b(?:(?:best|top)\s+(two|three|2|3)|(two|three|2|3)\s+best)\b", re.IGNORECASE)
_COUNTS = {"two": 2, "2": 2, "three": 3, "3": 3}
_LENGTH = "steps"


@dataclass(frozen=True, slots=True)
class SearchedField:
    """A field that is searched."""

    field: str
    control: Scalar
    """The job's default, or the best value so far."""
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched, and what all arms share besides defaults."""

    knobs: tuple[SearchedField, ...]
    confirm: int
    constants: Mapping[str, Scalar]
    adjusted: Mapping[str, str]
    """Constants that were chosen here, and why."""


def asks_for_best(question: str) -> bool:
    """Return whether a question asks which values are best."""
    return _BEST.search(question) is not None


def plan_search(question: str, asked: Sequence[FieldReading], facts: Mapping[str, FieldFacts]) -> Search | None:
    """Return the search that a question asks for; None where it asks for none, or leaves nothing to search.

    Raise BadTopic for what cannot be searched.
    """
    if not (asks_for_best(question) or _is_ladder(asked) or _is_anything(question, asked)):
        return None
    if any(entry.field == MODEL for entry in asked):
        return None  # models are compared one by one
    known = [settled(checked(entry), facts[entry.field]) for entry in asked]
    knobs = tuple(_knob(entry, facts[entry.field]) for entry in known if len(entry.values) != 1)
    candidates = _candidates(knobs)
    if candidates < 2 or (len(knobs) == 1 and len(known) == 1 and len(known[0].values) == 2):
        return None
    _refuse(knobs)
    contrasts = [Contrast(knob.field, knob.control, _others(knob), None) for knob in knobs]
    fixed = {entry.field: entry.values[0] for entry in known if len(entry.values) == 1}
    constants, adjusted = with_required_constants(contrasts, fixed, facts)
    return Search(knobs, min(_confirmed(question), candidates - 1), constants, adjusted)


def _is_ladder(asked: Sequence[FieldReading]) -> bool:
    """Return whether more values of one field are named than a study compares one by one."""
    several = [entry for entry in asked if len(entry.values) != 1]
    return len(several) == 1 and len(several[0].values) > MOST_HYPOTHESES + 1


def _is_anything(question: str, asked: Sequence[FieldReading]) -> bool:
    return asks_for_anything(question) and len(asked) == MOST_KNOBS and not any(entry.values for entry in asked)


def fields_that_matter(facts: Sequence[FieldFacts]) -> tuple[FieldReading, ...]:
    """Return the fields of which most is expected when they are raised: what a topic without one searches."""
    able = [known.name for known in facts if known.name != _LENGTH and not known.of_words]
    return tuple(FieldReading(name) for name in sorted(able, key=lambda name: -prior_of(name).raises)[:MOST_KNOBS])


def asks_for_anything(question: str) -> bool:
    """Return whether a question asks what helps, and names nothing that might."""
    return _ANYTHING.search(question) is not None


def without_count(question: str) -> str:
    """Return a question with the `two` of `the best two values` blanked: it is how many are confirmed."""
    return _COUNT.sub(lambda found: " ".ljust(len(found.group(0))), question) if asks_for_best(question) else question


def search_around(
    knobs: Sequence[SearchedField], held: Mapping[str, Scalar], facts: Mapping[str, FieldFacts]
) -> Search:
    """Return a search of knobs whose control is named; raise BadTopic or DesignRefused for what cannot be searched."""
    _refuse(knobs)
    if _candidates(knobs) < 2:
        raise BadTopic("expected two candidates or more beside the control; found fewer; compare the one there is")
    contrasts = [Contrast(knob.field, knob.control, _others(knob), None) for knob in knobs]
    constants, adjusted = with_required_constants(contrasts, held, facts)
    return Search(tuple(knobs), 1, constants, adjusted)


def _knob(asked: FieldReading, facts: FieldFacts) -> SearchedField:
    unset = (
        Job.model_fields[asked.field].default is None and not facts.given
    )  # the default is what it amounts to: no candidate of its own
    values = asked.values or facts.ladder
    return SearchedField(
        asked.field, facts.default, tuple(value for value in values if not (unset and value == facts.default))
    )


def _others(knob: SearchedField) -> tuple[Scalar, ...]:
    return tuple(value for value in knob.values if value != knob.control)


def _candidates(knobs: Sequence[SearchedField]) -> int:
    """Return how many combinations there are besides the control's."""
    inside = all(knob.control in knob.values for knob in knobs)
    return math.prod(len(knob.values) for knob in knobs) - int(inside)


def _refuse(knobs: Sequence[SearchedField]) -> None:
    if len(knobs) > MOST_KNOBS:
        named = ", ".join(knob.field for knob in knobs)
        raise BadTopic(f"expected at most {MOST_KNOBS} fields to search; found {named}; name fewer of them")
    if any(knob.field == _LENGTH for knob in knobs):
        raise BadTopic(
            "expected fields to search other than steps, as a search trains shortly itself; found steps; compare two "
            "lengths, such as 'steps 20 vs 80', or name another field"
        )


def _confirmed(question: str) -> int:
    found = _COUNT.search(question)
    return min(_COUNTS[(found[1] or found[2]).lower()], MOST_CONFIRMED) if found else 1


def search_note(search: Search) -> str:
    """Return what is searched, in sentences."""
    fields = "; ".join(
        f"{knob.field} among {', '.join(map(value_text, knob.values))} (control {value_text(knob.control)})"
        for knob in search.knobs
    )
    best = "candidate is" if search.confirm == 1 else f"{search.confirm} candidates are"
    return (
        f"The best values are searched by a screen that makes no claim: {fields}. The "
        f"best {best} then compared with it on fresh seeds and hidden tasks."
    )
