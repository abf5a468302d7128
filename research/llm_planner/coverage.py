"""Whether a design answers its topic: what the topic names is in the design, or the planner says that it is left out.

A topic is read as the rule planner reads one, by names and numbers; of what is not recognised nothing is known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from research.metrics.reading import without_metric
from research.planner.digest import Digest
from research.proposals.actions import ProposeDesign
from research.proposals.arms import Scalar, value_text
from research.proposals.models import arm_text
from research.topic import absent
from research.topic.lexicon import itemise
from research.topic.mentions import readable
from research.topic.reading import FieldReading, Reading, read_topic
from research.topic.requests import split_requests
from studies.records.base import JsonValue
from studies.records.design import MODEL

_COUNTED = frozenset({"hypothese", "hypothesis", "claim", "arm", "value", "setting", "variant", "candidate", "way"})
"""Words before which a number counts what is compared."""


def left_out(digest: Digest, design: ProposeDesign) -> str | None:
    """Return what the topic names and the design neither has nor says to leave out, in one line; None for nothing.

    One line for a planner. Numbers and fields must be in an arm, a constant or a knob, or in `not_tested`; what the
    topic asks about must be varied, and the environment must be the topic's.
    """
    coverage = _Coverage(digest, design)
    if (elsewhere := coverage.elsewhere()) is not None:
        return elsewhere
    if held := tuple(coverage.held()):
        them = "it" if len(held) == 1 else "them"
        return (
            f"the topic asks about {' and '.join(held)}, and the design holds {them} constant; vary {them}, or say in "
            "not_tested why not"
        )
    missing = list(dict.fromkeys(coverage.missing()))
    if not missing:
        return None
    which, them = ("which is", "it") if len(missing) == 1 else ("which are", "them")
    return (
        f"the topic names {' and '.join(missing)}, {which} in no arm and no constant; use {them}, or say in not_tested "
        "why not"
    )


def unread_words(digest: Digest) -> tuple[str, ...]:
    """Return a sentence with the words of a topic that name nothing that a plan can hold; nothing where there are none.

    Whether a design answers them all the same only its reader can say.
    """
    left = dict.fromkeys(f'"{entry.text}"' for entry in _reading(digest).left)
    return (f"words of the topic of which code finds nothing in the plan: {', '.join(left)}",) if left else ()


def environments_named(digest: Digest) -> tuple[str, ...]:
    """Return the environments that a flag or the topic names."""
    return _reading(digest).environments if digest.wanted.environment is None else (digest.wanted.environment,)


def _reading(digest: Digest) -> Reading:
    return read_topic(_question(digest), digest.fields, digest.environments)


def _question(digest: Digest) -> str:
    return split_requests(without_metric(readable(digest), digest.asked)).question


class _Coverage:
    """Compares a topic with the design that was made of it."""

    def __init__(self, digest: Digest, design: ProposeDesign) -> None:
        question = self._question = _question(digest)
        excuse = f"{digest.not_tested} . {design.not_tested}"
        self._excuse = excuse.lower()
        self._design = design
        self._reading = self._read(digest, question)
        self._excused = self._read(digest, excuse)
        excused = {item.number for item in itemise(excuse, ()) if item.kind == "number"}
        self._excused_numbers = excused | _counts(question)
        self._defaults = {facts.name: facts.default for facts in digest.fields}
        self._values = _values(digest, design)
        searched = {knob.field for knob in design.screen.knobs} if design.screen else set()
        self._varied = searched | {name for claim in digest.hypotheses for name in claim.varied}

    def _read(self, digest: Digest, text: str) -> Reading:
        return read_topic(text, digest.fields, digest.environments)

    def elsewhere(self) -> str | None:
        """Return why the design's environment is not the topic's; None where it is, or the topic names none."""
        named = self._reading.environments
        if not named or self._design.environment in named:
            return None
        return (
            f"the topic names the environment {' and '.join(named)}; found a design in {self._design.environment}; "
            "design it where it is asked for, or decline"
        )

    def held(self) -> Iterator[str]:
        """Yield what is asked about and held constant: fields that are to rise or fall, and any where none is varied.

        A field that is named with its one value is a setting.
        """
        none = not any(asked.field in self._varied for asked in self._reading.asked)
        for asked in self._asked():
            constant = asked.field in self._values and asked.field not in self._varied
            if constant and not asked.values and (none or asked.sense in ("up", "down")):
                yield asked.field

    def _asked(self) -> Iterator[FieldReading]:
        """Yield what the topic says about fields, except those that the planner says it leaves out."""
        excused = {entry.field for entry in self._excused.asked}
        said = (replace(asked, values=(), sense="up") if asked.assumed else asked for asked in self._reading.asked)
        return (asked for asked in said if asked.field not in excused)

    def missing(self) -> Iterator[str]:
        """Yield what the topic names and nothing answers."""
        again = self._design.replication
        played = {self._design.environment, *([again.environment] if again else [])}
        excused = {*self._excused.environments, self._excused.again}
        for name in (*self._reading.environments, self._reading.again):
            if name is not None and name not in played | excused:
                yield f"the environment {name}"
        for asked in self._asked():
            yield from self._missing_of(asked)
        yield from self._numbers()
        for entry in absent.named(self._question):
            if entry.noun == absent.MEASURE and entry.text.lower() not in self._excuse:
                yield f"the measure {entry.text}"

    def _numbers(self) -> Iterator[str]:
        """Yield the numbers that belong to no field and are no value of the plan."""
        known = {value for values in self._values.values() for value in values} | self._excused_numbers
        for left in self._reading.left:
            found = [item for item in itemise(left.text, ()) if item.kind == "number"]
            if left.role == "number" and not found and left.text.lower() not in self._excuse:
                yield left.text
            yield from (item.name for item in found if item.number not in known)

    def _missing_of(self, asked: FieldReading) -> Iterator[str]:
        held = self._values.get(asked.field, () if not asked.values else (self._defaults[asked.field],))
        if not held:
            yield asked.field
        for value in asked.values:
            if value not in held and value not in self._excused_numbers:
                yield f"{asked.field} {value_text(value)}"


def _counts(question: str) -> set[float | int | None]:
    """Return the numbers that count what is compared, and do nothing else."""
    items = itemise(question, ())
    numbers = [(item.number, any(word.name in _COUNTED for word in items[at + 1 : at + 2]))
               for at, item in enumerate(items) if item.kind == "number"]  # fmt: skip
    return {number for number, counts in numbers if counts} - {number for number, counts in numbers if not counts}


def _named(variable: str, value: JsonValue) -> Scalar:
    """Return a compared value as a topic names it: a model by its name."""
    return arm_text(value) if variable == MODEL else value


def _values(digest: Digest, design: ProposeDesign) -> dict[str, tuple[Scalar, ...]]:
    """Return the values that a plan has of each field that it varies, searches or holds constant."""
    values: dict[str, tuple[Scalar, ...]] = {constant.field: (constant.value,) for constant in design.constants}
    if design.steps is not None:
        values["steps"] = (design.steps,)
    for knob in design.screen.knobs if design.screen else ():
        values[knob.field] = (*knob.values, *(facts.default for facts in digest.fields if facts.name == knob.field))
    for claim in digest.hypotheses:
        for name, compared in claim.varied.items():
            values[name] = (*values.get(name, ()), *(_named(name, value) for value in compared))
    return values
