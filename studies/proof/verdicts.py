"""Every verdict of a log, interim and superseded ones too, computed again from the events before it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from studies.log.event import Event, EventType
from studies.log.fold import WORKED
from studies.log.lock_file import lock_error, lock_name
from studies.log.study_state import StudyState
from studies.proof.chain import before_each
from studies.proof.findings import Findings
from studies.records.verdict import Verdict
from studies.verdicts.judge import judge_hypothesis

_TOLERANCE: Final = 1e-9
"""Relative: libraries of numbers differ in their last digits from machine to machine."""
_WORDS: Final = ("reason", "violations")
"""Fields that are sentences, which a later version may word otherwise; their numbers may not change."""
_NUMBER = re.compile(r"[+\-−]?\d+(?:\.\d+)?")


def check_verdicts(events: Sequence[Event], findings: Findings) -> None:
    """Compute every verdict again from the events before it, and compare it field by field."""
    for event, state in before_each(events, EventType.VERDICT_COMPUTED):
        with findings.reading(f"verdict of event {event.seq}"):
            _check(event, state, findings)


def _check(event: Event, state: StudyState, findings: Findings) -> None:
    stored = Verdict.model_validate({name: event.payload[name] for name in event.payload if name != WORKED})
    place = f"verdict on {stored.hypothesis} (event {event.seq})"
    again = _again(state, stored)
    differences = list(_differences(stored.model_dump(mode="json"), again.model_dump(mode="json")))
    if not differences:
        findings.held["verdict"] += 1
    if _blames_lock(state, stored):
        findings.tell(f"The {place} is invalid because the lock's file was changed when it was computed.")
    for name, before, after in differences:
        _take(place, name, before, after, findings)


def check_lock(state: StudyState, folder: Path, findings: Findings) -> None:
    """Compare the file of a round's lock with the log."""
    if state.lock_file is None:
        return
    if state.lock_file != (name := lock_name(state.round)):
        findings.drift("design.locked", f"expected the lock in {name}, found it in {state.lock_file!r}")
        return
    findings.check("lock", state.lock_file, lock_error(state, folder))


def _again(state: StudyState, stored: Verdict) -> Verdict:
    outside = stored.reason if _blames_lock(state, stored) else None
    return judge_hypothesis(state, stored.hypothesis, look=stored.look, phase=stored.phase, lock_error=outside)


def _blames_lock(state: StudyState, stored: Verdict) -> bool:
    return stored.verdict == "invalid" and stored.reason.startswith(f"the lock {lock_name(state.round)} ")


def _differences(stored: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name, value in stored.items():
        if isinstance(value, dict) and isinstance(again[name], dict):
            inner = value.keys() | again[name].keys()
            both = ({key: side.get(key) for key in inner} for side in (value, again[name]))
            yield from ((f"{name}.{key}", a, b) for key, a, b in _differences(*both))
        elif not _same(value, again[name]):
            yield name, value, again[name]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float | int) and not isinstance(b, bool):
        return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-12)
    return bool(a == b)


def _same_numbers(before: str, after: str) -> bool:
    """Return whether two texts hold the same numbers, one of them perhaps with fewer digits."""
    pairs = [[found.replace("−", "-") for found in _NUMBER.findall(text.replace(",", ""))] for text in (before, after)]
    return len(pairs[0]) == len(pairs[1]) and all(map(_rounded_alike, *pairs))


def _rounded_alike(a: str, b: str) -> bool:
    """Return whether two numbers are the same, or one is the other with fewer digits."""
    least, most = sorted(len(text.partition(".")[2]) for text in (a, b))
    return float(a) == float(b) or (least < most and abs(float(a) - float(b)) <= 0.5 * 10.0**-least + 1e-12)


def _take(place: str, name: str, before: Any, after: Any, findings: Findings) -> None:
    if name in _WORDS and _same_numbers(str(before), str(after)):
        findings.tell(f"The {place} gives its {name} in other words than this version would, with the same numbers.")
    else:
        findings.drift(place, f"{name} is {before!r} in the log, {after!r} computed from the runs")
