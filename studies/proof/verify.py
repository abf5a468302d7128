"""Verification: whether a study is what it says, computed again from log and files. Nothing is written.

The fold (`studies.log.fold`) refuses events that cannot follow; what it takes on faith is computed again here: verdicts
from runs, a design's size from its pilot's, ledger levels from verdicts. A report that these very sources made is built
again and compared word by word; one of another version is held to its hashes and its head. Who recomputes log, files
and report, or cuts the log's tail off, is caught only by a head hash kept elsewhere (`docs/proof.md`).
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from studies.errors import LogCorrupt, ReportError
from studies.log.event import Event, EventType, find_corruption
from studies.log.event_log import lock_error, lock_name
from studies.log.fold import WORKED, fold
from studies.log.reviews import read_reviews, reports_by_head
from studies.log.study import PAPERS, StudyState
from studies.proof.evidence import FILES, Discrepancy, Findings, check_files
from studies.records.alpha import AlphaLedgers
from studies.records.base import Record
from studies.records.design import Design, task_seed_of
from studies.records.procedure import RunLength, Sizing
from studies.records.verdict import Verdict
from studies.report.build import MARKDOWN, PAGES, file_hashes, generator_info, render_report
from studies.statistics.power import spend_alpha
from studies.verdicts.judge import decide_length, judge_hypothesis, seeds_by_runs, size_study

Rows = Sequence[Mapping[str, Any]]
_TOLERANCE: Final = 1e-9
"""Relative: libraries of numbers differ in their last digits from machine to machine."""
_WORDS: Final = ("reason", "violations")
"""Fields that are sentences, which a later version may word otherwise; their numbers may not change."""
_NUMBER = re.compile(r"[+\-−]?\d+(?:\.\d+)?")
_DATA = re.compile(r"\b[0-9a-f]{12,64}\b|[+−-]?\d+\.\d{2,}")
_DRAWN = re.compile(r"<(svg|style)\b.*?</\1>", re.DOTALL)
_FIGURE = re.compile(r"figures/[a-z0-9-]+\.svg")
_SHOWN = 100


def events_of(study: str, rows: Rows, findings: Findings) -> list[Event]:
    """Return the events of stored rows that can be followed, having checked their hashes, chain and order."""
    events, faults = find_corruption(study, rows)
    for fault in faults:
        findings.drift(f"event {fault.seq} ({fault.type})", fault.difference)
    state: StudyState | None = None
    for number, event in enumerate(events):
        try:
            state = fold([event], state)
        except LogCorrupt as error:
            findings.drift(f"event {event.seq} ({event.type.value})", error.difference)
            findings.note(f"Nothing after event {event.seq} could be checked but hashes.")
            events = events[:number]
            break
    findings.held["event"] += min(len(events), len(rows) - len({fault.seq for fault in faults}))
    return events


def check_rounds(state: StudyState, findings: Findings) -> None:
    """Check the chain of a study's locks and the levels of its rounds; nothing of a study of one round."""
    if state.most_rounds == 1:
        return
    ledgers, previous = AlphaLedgers.begin(state.most_rounds), ""
    for each in state.rounds:
        if (design := each.locked_design) is None:
            return
        place = f"{lock_name(each.round)}, inquiry"
        found, overdrawn = design.inquiry.previous if design.inquiry is not None else "", None
        said = f"it names the lock {found[:12] or 'of nothing'} before it, expected {previous[:12] or 'none'}"
        findings.check("link", place, None if found == previous else said)
        try:
            ledgers.allocate(design)
        except ValueError as error:
            overdrawn = str(error)
        findings.check("level", place, overdrawn)
        findings.check("spending", f"{lock_name(each.round)}, looks", _spending_error(design))
        if each is not state:
            ledgers, previous = ledgers.after(each.outcome), str(each.design_hash)


def check_task_seeds(state: StudyState, findings: Findings) -> None:
    """Check that the tasks of a round's plans are drawn by its study's id, so that nobody chose them."""
    design, noise, tried = state.locked_design, state.noise_plan, [known.plan for known in state.explorations]
    plans = [("noise plan", noise.environment, noise.judged)] if noise is not None else []
    plans += [("exploration", plan.environment, plan.metric) for plan in tried]
    plans += [("lock", design.environment, design.metric)] if design is not None else []
    for what, environment, metric in plans:
        if (found := metric.task_seed) is not None:
            due = task_seed_of(state.id, environment)
            said = None if found == due else f"it is {found}, of this study in {environment} it is {due}"
            findings.check("task seed", f"task seed of the {what} of round {state.round}", said)


def _spending_error(design: Design) -> str | None:
    if design.inquiry is None or not design.looks:
        return None
    seeds, alike = [look.seeds for look in design.looks], design.inquiry.equivalence / design.likenesses
    for kind, whole, found in (
        ("differences", design.inquiry.difference, [look.alpha for look in design.looks]),
        ("equivalences", alike, [look.equivalence or 0.0 for look in design.looks]),
    ):
        due = [whole] if len(seeds) == 1 else [look.alpha for look in spend_alpha(seeds, whole)]
        for number, (own, expected) in enumerate(zip(found, due, strict=True), start=1):
            if not math.isclose(own, expected, rel_tol=_TOLERANCE):
                return f"look {number} has the level {own:.6g} of {kind}, expected {expected:.6g} of the round's level"
    return None


def _check_verdict(event: Event, state: StudyState, findings: Findings) -> None:
    stored = Verdict.model_validate({name: event.payload[name] for name in event.payload if name != WORKED})
    place = f"verdict on {stored.hypothesis} (event {event.seq})"
    blames_lock = stored.verdict == "invalid" and stored.reason.startswith(f"the lock {state.lock_file} ")
    outside = stored.reason if blames_lock else None
    name, look, phase = stored.hypothesis, stored.look, stored.phase
    again = judge_hypothesis(state, name, look=look, phase=phase, lock_error=outside, stored=stored)
    differences = list(_differences(stored.model_dump(mode="json"), again.model_dump(mode="json")))
    if not differences:
        findings.held["verdict"] += 1
    if blames_lock:
        findings.note(f"The {place} is invalid because the lock's file was changed when it was computed.")
    for name, before, after in differences:
        if name in _WORDS and _same_numbers(str(before), str(after)):
            said = f"The {place} gives its {name} in other words than this version would, with the same numbers."
            findings.note(said)
        else:
            findings.drift(place, f"{name} is {before!r} in the log, {after!r} computed from the runs")


def _check_sizing(event: Event, state: StudyState, findings: Findings) -> None:
    payload = {name: event.payload[name] for name in event.payload if name != WORKED}
    both: tuple[Record, Record]
    if event.type is EventType.LENGTH_DECIDED:
        what, length = "length of runs", RunLength.model_validate(payload)
        both = length, decide_length(state, length.carried)
    else:
        what, sizing, by_runs = "sizing", Sizing.model_validate(payload), seeds_by_runs(state)
        both = sizing, size_study(state, by_runs if state.budget_touched else min(by_runs, sizing.affordable))
    differences = _differences(*(record.model_dump(mode="json") for record in both))
    told = [f"{name} is {a!r} in the log, {b!r} computed from the pilot's runs" for name, a, b in differences]
    for difference in told or (None,):
        findings.check(what, f"{what} of the design (event {event.seq})", difference)


def _differences(stored: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name, value in stored.items():
        sides: list[Any] = [dict(enumerate(side)) if isinstance(side, list) else side for side in (value, again[name])]
        if all(isinstance(side, dict) for side in sides):
            inner = sides[0].keys() | sides[1].keys()
            both = [{str(key): side.get(key) for key in inner} for side in sides]
            yield from ((f"{name}.{key}", a, b) for key, a, b in _differences(*both))
            continue
        other = again[name]
        numbers = isinstance(value, float) and isinstance(other, float | int) and not isinstance(other, bool)
        if not (math.isclose(value, other, rel_tol=_TOLERANCE, abs_tol=1e-12) if numbers else value == other):
            yield name, value, other


def _same_numbers(before: str, after: str) -> bool:
    pairs = [[found.replace("−", "-") for found in _NUMBER.findall(text.replace(",", ""))] for text in (before, after)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    for a, b in zip(*pairs, strict=True):  # one of them may be the other rounded
        least, most = sorted(len(text.partition(".")[2]) for text in (a, b))
        if float(a) != float(b) and (least == most or abs(float(a) - float(b)) > 0.5 * 10.0**-least + 1e-12):
            return False
    return True


def before_report(events: Sequence[Event]) -> list[Event]:
    """Return the events without the reports at their end: what the last of those reports is a report on."""
    kept = list(events)
    while kept and kept[-1].type is EventType.REPORT_BUILT:
        kept.pop()
    return kept


def check_report(events: Sequence[Event], folder: Path, findings: Findings) -> None:
    last = max((n for n, event in enumerate(events) if event.type is EventType.REPORT_BUILT), default=None)
    if last is None:
        for name in (name for name in PAGES if (folder / name).exists()):
            findings.drift(name, "the log knows of no report; build one with: ajet study report --build")
        return
    payload = events[last].payload
    read = {name: _page(folder, name, sha256, findings) for name, sha256 in file_hashes(payload).items()}
    pages = {name: data for name, data in read.items() if data}
    if "figures" not in payload:
        findings.note("The log is from before figures were hashed: figures/ was not checked.")
    shown = fold(before_report(events[: last + 1]))
    for name in (name for name in PAGES if name in pages):
        if shown.head_hash not in pages[name]:
            findings.drift(name, f"it does not name the head {shown.head_hash[:12]} of the events that it reports on")
    _compare(payload.get("made_by"), shown, folder, pages, findings)


def _page(folder: Path, name: str, sha256: str, findings: Findings) -> str | None:
    if name not in PAGES and not _FIGURE.fullmatch(name):
        findings.drift(f"report.built, {name}", f"expected one of {', '.join(PAGES)} and figures/NAME.svg")
        return None
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        findings.drift(name, f"it cannot be read: {error.strerror or error}")
        return None
    found = hashlib.sha256(data).hexdigest()
    said = f"expected the sha256 {sha256[:12]} of the log, found {found[:12]}"
    what = "page" if name in PAGES else "figure"
    findings.check(what, name, None if found == sha256 else said)
    return data.decode(errors="replace")


def _compare(
    made_by: Mapping[str, str] | None, shown: StudyState, folder: Path, pages: Mapping[str, str], findings: Findings
) -> None:
    locks = [file for each in shown.every_round for file, _ in each.locks]
    collected = [run.collected for run in shown.every_run.values() if run.collected is not None]
    rests_on = (*locks, *(str(record[kind]["path"]) for record in collected for kind in FILES))
    if any(drift.place.startswith(rests_on) for drift in findings.drifts):
        findings.note("The report was not built again, because what it rests on is not what it was.")
        return
    try:
        again = render_report(shown, folder)
    except ReportError as error:
        findings.drift("report", f"it cannot be built again: {error}")
        return
    today = generator_info()
    if made_by is None or made_by.get("sources") != today["sources"]:
        if all(pages.get(name) == again[name] for name in PAGES):
            findings.held["rebuilt file"] += len(PAGES)
            return
        version = (made_by or {}).get("ajet", str(shown.versions.get("ajet", "unknown")))
        findings.note(f"The report was made by other sources (ajet {version}): its words were not compared.")
        for name in PAGES:  # but what is no wording: hashes, ids and measured numbers; figures and styles apart
            written, now = (set(_DATA.findall(_DRAWN.sub("", page))) for page in (pages.get(name, ""), again[name]))
            if strange := sorted(written - now):
                first = ", ".join(strange[:5])
                findings.note(f"{name} holds {len(strange)} numbers that this version would not write there: {first}.")
        return
    drawn_alike = made_by.get("matplotlib") == today["matplotlib"]
    if not drawn_alike:
        findings.note(f"Figures were drawn by matplotlib {made_by.get('matplotlib')}: they were not drawn again.")
    for name in again.keys() & pages.keys() if drawn_alike else {MARKDOWN} & pages.keys():
        findings.check("rebuilt file", name, _first_difference(pages[name], again[name]))
    for name in again.keys() - pages.keys() - set(PAGES):
        findings.drift(name, "the report has this figure, and the log holds no hash of it")


def _first_difference(page: str, expected: str) -> str | None:
    for number, (line, wanted) in enumerate(zip_longest(page.split("\n"), expected.split("\n")), start=1):
        if line == wanted:
            continue
        texts = line or "", wanted or ""  # quoted from shortly before the place where they differ
        alike = next((n for n, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        begin = max(0, alike - _SHOWN // 2)
        lead, cut = "..." if begin else "", slice(begin, begin + _SHOWN)
        found, due = ("missing" if text is None else repr(lead + text[cut]) for text in (line, wanted))
        return f"line {number} is {found}, by the log it is {due}"
    return None


@dataclass(frozen=True, slots=True)
class Proof:
    """What a verification of a study came to."""

    study: str
    head: str
    """Hash of the last event; it vouches for all before it."""
    drifts: tuple[Discrepancy, ...]
    held: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.drifts


def verify(
    study: str, rows: Rows, folder: Path, *, head: str | None = None, known: Sequence[Discrepancy] = (),
    reviews: Rows = (),
) -> Proof:  # fmt: skip
    """Verify a study by its stored events, reviews and its folder; nothing is raised for what is stored wrongly. `head`
    is a head hash that was kept elsewhere, or its beginning; `known` are drifts that reading the rows showed."""
    findings = Findings(list(known))
    events = events_of(study, rows, findings)
    if head is not None:
        place = next((n for n, row in enumerate(rows, start=1) if str(row["hash"]).startswith(head.lower())), None)
        cut = f"no event has the hash {head}: the log's end was cut off, or all of it written anew"
        findings.check("head", "head", cut if place is None else None)
        if place is not None and (later := len(rows) - place):
            findings.note(f"The head {head[:12]} is event {place}; {later} of {len(rows)} events were added after it.")
    reports = reports_by_head(events) if len(events) == len(rows) else None
    said, faults = read_reviews(study, reviews, reports)
    if reviews:
        findings.held["review"] += len(said.entries)
    for fault in faults:
        findings.drift(f"review {fault.seq} ({fault.type})", fault.difference)
    if events:
        state = fold(events)  # which events_of has seen through
        for part in state.every_round:
            for number, (file, sha256) in enumerate(part.locks):
                if file != (name := lock_name(part.round, number)):
                    findings.drift("design.locked", f"expected the lock in {name}, found it in {file!r}")
                else:
                    wrong = lock_error(replace(part, lock_file=file, design_hash=sha256), folder)
                    findings.check("lock", name, wrong)
            check_files(part, folder, findings)
            check_task_seeds(part, findings)
        check_rounds(state, findings)
        for name, given in state.settings.get(PAPERS, {}).items():
            if (path := folder / PAPERS / name).is_file():  # an export has none
                same = hashlib.sha256(path.read_bytes()).hexdigest() == given
                findings.check("paper", f"{PAPERS}/{name}", None if same else "it is not what the study began with")
        before = StudyState()
        for event in events:
            if event.type is EventType.VERDICT_COMPUTED:
                with findings.catch_unreadable(f"verdict of event {event.seq}"):
                    _check_verdict(event, before, findings)
            elif event.type in (EventType.DESIGN_SIZED, EventType.LENGTH_DECIDED):
                with findings.catch_unreadable(f"sizing of event {event.seq}"):
                    _check_sizing(event, before, findings)
            before = fold([event], before)
        with findings.catch_unreadable("report"):
            check_report(events, folder, findings)
    last = str(rows[-1]["hash"]) if rows else ""
    return Proof(study, last, tuple(findings.drifts), dict(findings.held), tuple(findings.notes))
