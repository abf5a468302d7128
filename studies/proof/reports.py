"""The report and its figures against the log, as written and as they would be today.

The log holds the hash of each file (`report.built`); both pages name the log's head that they were built from; and
where the report's maker is this one (the same sources), it is built again beside the folder and compared word by word.
A report of another version is held to its hashes and its head, and numbers in it that today's would not hold are told.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from studies.errors import ReportError
from studies.log.event import Event, EventType
from studies.log.fold import fold
from studies.log.study import StudyState
from studies.proof.evidence import FILES, Findings
from studies.report.build import MARKDOWN, PAGES, file_hashes, generator_info, render_report

_DATA = re.compile(r"\b[0-9a-f]{12,64}\b|[+−-]?\d+\.\d{2,}")
_DRAWN = re.compile(r"<(svg|style)\b.*?</\1>", re.DOTALL)
_FIGURE = re.compile(r"figures/[a-z0-9-]+\.svg")
_SHOWN = 100
"""Characters of a line that are quoted."""


def before_report(events: Sequence[Event]) -> list[Event]:
    """Return the events without the reports at their end: what the last of those reports is a report on."""
    kept = list(events)
    while kept and kept[-1].type is EventType.REPORT_BUILT:
        kept.pop()
    return kept


def check_report(events: Sequence[Event], folder: Path, findings: Findings) -> None:
    """Compare the pages and figures in a study's folder with the newest `report.built` of its log."""
    last = max((n for n, event in enumerate(events) if event.type is EventType.REPORT_BUILT), default=None)
    if last is None:
        for name in (name for name in PAGES if (folder / name).exists()):
            findings.drift(name, "the log knows of no report; build one with: ajet study report --build")
        return
    payload = events[last].payload
    pages = {
        name: data for name, sha256 in file_hashes(payload).items() if (data := _page(folder, name, sha256, findings))
    }
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
    locks = [each.lock_file for each in shown.every_round if each.lock_file is not None]
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
        version = (made_by or {}).get("ajet", str(shown.versions.get("ajet", "unknown")))
        _note_other_version(version, pages, again, findings)
        return
    drawn_alike = made_by.get("matplotlib") == today["matplotlib"]
    if not drawn_alike:
        findings.note(f"Figures were drawn by matplotlib {made_by.get('matplotlib')}: they were not drawn again.")
    for name in again.keys() & pages.keys() if drawn_alike else {MARKDOWN} & pages.keys():
        findings.check("rebuilt file", name, _first_difference(pages[name], again[name]))
    for name in again.keys() - pages.keys() - set(PAGES):
        findings.drift(name, "the report has this figure, and the log holds no hash of it")


def _note_other_version(version: str, pages: Mapping[str, str], again: Mapping[str, str], findings: Findings) -> None:
    """Say of a report that other sources made whether its numbers are those that this version would write.

    Compared is what is no wording: hashes, ids and measured numbers; figures and styles apart.
    """
    if all(pages.get(name) == again[name] for name in PAGES):
        findings.held["rebuilt file"] += len(PAGES)
        return
    findings.note(f"The report was made by other sources (ajet {version}): its words were not compared.")
    for name in PAGES:
        written, today = (set(_DATA.findall(_DRAWN.sub("", page))) for page in (pages.get(name, ""), again[name]))
        if strange := sorted(written - today):
            found = ", ".join(strange[:5])
            findings.note(f"{name} holds {len(strange)} numbers that this version would not write there: {found}.")


def _first_difference(found: str, expected: str) -> str | None:
    for number, (line, wanted) in enumerate(zip_longest(found.split("\n"), expected.split("\n")), start=1):
        if line != wanted:
            return f"line {number} is {_quote(line, wanted)}, by the log it is {_quote(wanted, line)}"
    return None


def _quote(line: str | None, other: str | None) -> str:
    """Quote a line from shortly before the place where it differs from another one."""
    if line is None:
        return "missing"
    start = next((n for n, (a, b) in enumerate(zip(line, other or "", strict=False)) if a != b), len(other or ""))
    begin = max(0, start - _SHOWN // 2)
    return repr(("..." if begin else "") + line[begin : begin + _SHOWN])
