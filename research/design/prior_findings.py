"""Findings of all studies of this home, searched."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

from research.design.known_findings import FindingConditions, KnownFinding
from research.installation.home import Home
from research.installation.studies import RESULTS_VERSION, StudyCache, StudyReading, evidence_files
from studies import EventLog, LogCorrupt, fold
from studies.records.base import canonical
from swarm.job import tunables

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
    entries = (entry for content in contents.values() for entry in content.get("findings", ()))
    left_out = {study: str(content["corrupt"]) for study, content in contents.items() if "corrupt" in content}
    return KnownFindings(tuple(map(KnownFinding.model_validate, entries)), left_out)


def _read_study(home: Home, log: EventLog, study: str) -> StudyReading:
    from research.design.known_findings import findings_of  # what judges studies; what was kept needs none of it

    try:
        state = fold(log.read(study))
    except LogCorrupt as error:
        corrupt: dict[str, Any] = {"corrupt": str(error)}
        return StudyReading(lambda: corrupt)
    return StudyReading(
        lambda: {"findings": [entry.model_dump(mode="json") for entry in findings_of(state, home.study(study))]},
        state.head_hash,
        evidence_files(state),
    )


def search_findings(findings: Iterable[KnownFinding], words: Sequence[str]) -> tuple[KnownFinding, ...]:
    """Return the findings that all of the words name, in their order; all of them for no words.

    A word names a finding where a word of its claim, study, verdict, conditions or field synonyms begins with it.
    """
    wanted = (part for word in words for part in _normalize(word).split())
    patterns, marks = [re.compile(rf"(?<![\w.]){re.escape(part)}") for part in wanted], tunables()

    def matches(finding: KnownFinding) -> bool:
        where, fields = finding.conditions, finding.treatment if isinstance(finding.treatment, dict) else ()
        synonyms = (word for name in (finding.variable, *fields) if name in marks for word in marks[name].synonyms)
        text = _normalize(" ".join((
            finding.name, finding.claim, finding.verdict, finding.variable, where.environment, where.model,
            where.model_key, where.metric, where.metric_name, where.job, *synonyms,
            *(f"{name} {value}" for name, value in where.fields.items()),
        )))  # fmt: skip
        return all(pattern.search(text) for pattern in patterns)

    return tuple(filter(matches, findings))


def _normalize(text: str) -> str:
    return text.replace("_", " ").lower()


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
    contradictions = []
    for group in groups.values():
        higher, lower, same = ([entry for entry in group if entry.sign == sign] for sign in (1, -1, 0))
        pairs = [(higher, lower)] if higher and lower else []
        for side in (higher, lower):
            if apart := _find_disjoint(same, side):
                pairs.append((_find_disjoint(side, apart), apart))
        contradictions += [Contradiction(tuple(a), tuple(b), tuple(_describe_differences(a, b))) for a, b in pairs]
    return tuple(contradictions)


def _find_disjoint(findings: Sequence[KnownFinding], others: Sequence[KnownFinding]) -> list[KnownFinding]:
    """Return the findings whose interval has nothing in common with that of one of the others at least."""
    intervals = [entry.interval for entry in others if entry.interval is not None]
    lowest_high, highest_low = min((i[1] for i in intervals), default=inf), max((i[0] for i in intervals), default=-inf)
    known = ((entry, entry.interval) for entry in findings)
    return [entry for entry, own in known if own is not None and (own[1] < highest_low or own[0] > lowest_high)]


def _describe_differences(*sides: Sequence[KnownFinding]) -> Iterator[str]:
    """Yield the conditions in which two sides differ; a model of the same name may be another, or trained otherwise."""

    def differ(name: str, value: Callable[[FindingConditions], str]) -> list[str]:
        one, other = ({value(entry.conditions) for entry in side} for side in sides)
        return [] if one == other else [f"{name}: {' or '.join(sorted(one))} against {' or '.join(sorted(other))}"]

    yield from differ("environment", lambda where: where.environment)
    yield from differ("model", lambda where: where.model) or differ("model or backend", lambda where: where.model_key)
    for name in sorted({name for side in sides for entry in side for name in entry.conditions.fields}):
        yield from differ(name, partial(_describe_field, name))


def _describe_field(name: str, where: FindingConditions) -> str:
    return canonical(where.fields[name]) if name in where.fields else "usual"
