"""Findings of all studies of this home, searched."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from research.design.known_findings import KnownFinding
from research.installation.home import Home
from research.installation.studies import RESULTS_VERSION, StudyCache, StudyReading, evidence_files
from studies import EventLog, LogCorrupt, fold
from studies.records.base import canonical
from swarm.job import Tunable, tunables

FILE: Final = "findings.json"
_FORM: Final = f"1, results {RESULTS_VERSION}"
"""The first number is that of what is kept of a study."""


@dataclass(frozen=True, slots=True)
class KnownFindings:
    """What is known, the newest study first, each study's rounds in order."""

    findings: tuple[KnownFinding, ...]
    left_out: Mapping[str, str]
    """Studies whose log cannot be read, with what is wrong."""


def load_findings(home: Home, log: EventLog, told: Callable[[int, int], None] = lambda done, of: None) -> KnownFindings:
    """Return the findings of an installation; `told` hears how many of the changed studies are read, of how many."""
    contents = StudyCache(FILE, _FORM, lambda study: _read_study(home, log, study)).contents(home, log, told)
    found = (entry for content in contents.values() for entry in content.get("findings", ()))
    left_out = {study: str(content["corrupt"]) for study, content in contents.items() if "corrupt" in content}
    return KnownFindings(tuple(map(KnownFinding.model_validate, found)), left_out)


def _read_study(home: Home, log: EventLog, study: str) -> StudyReading:
    from research.design.known_findings import findings_of  # what judges studies; what was kept needs none of it

    try:
        state = fold(log.read(study))
    except LogCorrupt as error:
        told: dict[str, Any] = {"corrupt": str(error)}
        return StudyReading(lambda: told)
    return StudyReading(
        lambda: {"findings": [entry.model_dump(mode="json") for entry in findings_of(state, home.study(study))]},
        state.head_hash,
        evidence_files(state),
    )


def search_findings(findings: Iterable[KnownFinding], words: Sequence[str]) -> tuple[KnownFinding, ...]:
    """Return the findings that all of the words name, in their order; all of them for no words.

    A word names a finding where a word of its claim, study, verdict, conditions or field synonyms begins with it.
    """
    patterns = [re.compile(rf"(?<![\w.]){re.escape(word)}") for said in words for word in _normalize(said).split()]
    marks = tunables()
    return tuple(each for each in findings if _matches(_build_search_text(each, marks), patterns))


def _matches(text: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    return all(pattern.search(text) for pattern in patterns)


def _normalize(text: str) -> str:
    return text.replace("_", " ").lower()


def _build_search_text(finding: KnownFinding, marks: Mapping[str, Tunable]) -> str:
    where = finding.conditions
    names = [
        name
        for name in (finding.variable, *(finding.treatment if isinstance(finding.treatment, dict) else ()))
        if name in marks
    ]
    said = (
        finding.name, finding.claim, finding.verdict, finding.variable, where.environment, where.model, where.model_key,
        where.metric, where.metric_name, where.job, *(f"{name} {value}" for name, value in where.fields.items()),
        *(synonym for name in names for synonym in marks[name].synonyms),
    )  # fmt: skip
    return _normalize(" ".join(said))


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Findings on the same values of the same variable, by the same metric, that cannot both hold everywhere."""

    one: tuple[KnownFinding, ...]
    """Those that find one side higher."""
    other: tuple[KnownFinding, ...]
    """Those that find the other side higher, or no difference where the others' intervals leave none."""
    differ: tuple[str, ...]
    """The conditions in which the two sides differ, each a clause; empty where nothing that is recorded differs."""


def find_contradictions(findings: Iterable[KnownFinding]) -> tuple[Contradiction, ...]:
    """Return what findings contradict one another on, in the order of the first of each."""
    groups: defaultdict[object, list[KnownFinding]] = defaultdict(list)
    for finding in findings:
        if finding.sign or finding.verdict == "equivalent":
            groups[finding.compared].append(finding)
    return tuple(found for group in groups.values() for found in _contradictions_within(group))


def _contradictions_within(group: Sequence[KnownFinding]) -> Iterator[Contradiction]:
    higher, lower, same = ([each for each in group if each.sign == sign] for sign in (1, -1, 0))
    if higher and lower:
        yield _build_contradiction(higher, lower)
    for side in (higher, lower):
        if apart := _find_disjoint(same, side):
            yield _build_contradiction(_find_disjoint(side, apart), apart)


def _find_disjoint(findings: Sequence[KnownFinding], others: Sequence[KnownFinding]) -> list[KnownFinding]:
    """Return the findings whose interval has nothing in common with that of one of the others at least."""
    intervals = [each.interval for each in others if each.interval is not None]
    lowest_high, highest_low = min((i[1] for i in intervals), default=inf), max((i[0] for i in intervals), default=-inf)
    known = ((each, each.interval) for each in findings)
    return [each for each, own in known if own is not None and (own[1] < highest_low or own[0] > lowest_high)]


def _build_contradiction(one: Sequence[KnownFinding], other: Sequence[KnownFinding]) -> Contradiction:
    return Contradiction(tuple(one), tuple(other), tuple(_describe_differences(one, other)))


def _describe_differences(one: Sequence[KnownFinding], other: Sequence[KnownFinding]) -> Iterator[str]:
    """Yield the conditions in which two sides differ; a model of the same name may be another, or trained otherwise."""
    sides = [[each.conditions for each in side] for side in (one, other)]
    yield from _describe_difference("environment", *({each.environment for each in side} for side in sides))
    models = list(_describe_difference("model", *({each.model for each in side} for side in sides)))
    yield from models or _describe_difference(
        "model or backend", *({each.model_key for each in side} for side in sides)
    )
    for name in sorted({name for side in sides for each in side for name in each.fields}):
        yield from _describe_difference(
            name,
            *({(canonical(each.fields[name]) if name in each.fields else "usual") for each in side} for side in sides),
        )


def _describe_difference(name: str, one: Set[str], other: Set[str]) -> Iterator[str]:
    if one != other:
        yield f"{name}: {' or '.join(sorted(one))} against {' or '.join(sorted(other))}"
