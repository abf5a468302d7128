"""Findings of all studies side by side, contradictions named: intervals, what differs, curves; nothing is pooled."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from starlette.exceptions import HTTPException

from research.design.known_findings import KnownFinding, find_contradictions, load_findings, search_findings
from research.ui.curves import Chart, PlottedRun, Range, extent, interval_bar, metric_chart
from research.ui.pages.runs import count, select
from research.ui.site import Page, Site, View
from studies import StudyState
from studies.checks.conditions import flatten
from studies.errors import StudiesError
from studies.proof import DOES_NOT_FOLLOW
from studies.records.design import Design
from studies.records.statements import format_setting_value, setting, value_of
from studies.report.evidence import SUCCESS
from studies.report.wording import NONE, format_signed, percent, span

ROWS: Final = 100
FILTERS: Final[Mapping[str, Callable[[KnownFinding], str]]] = {
    "field": lambda each: each.variable, "environment": lambda each: each.conditions.environment,
    "metric": lambda each: each.conditions.metric_name, "model": lambda each: each.conditions.model,
    "verdict": lambda each: each.verdict,
}  # fmt: skip
MOST_TICKED: Final = 8


def page(site: Site, view: View) -> Page:
    known = load_findings(site.home, site.log)
    findings = [each for each in known.findings if not view.only or each.study in view.only]
    asked = {name: view.get(name) for name in FILTERS}
    found = select(search_findings(findings, view.get("find").split()), FILTERS, asked)
    found.sort(key=lambda each: (each.variable, each.conditions.metric_name, each.conditions.environment))
    named = {each.name: each for each in findings}
    ticked = [named[name] for name in dict.fromkeys(view.query.get("c", ())) if name in named][:MOST_TICKED]
    listed = ticked or found[: len(found) if view.static else ROWS]
    against, rounds = contradicted(findings), list(_rounds(site, ticked))
    columns = []
    for finding, _, _ in rounds:
        told = finding.model_dump(mode="json", include={"claim", "verdict", "exploratory", "n_control", "n_treatment"})
        told |= finding.conditions.model_dump(mode="json", exclude={"model_key", "job"})
        columns.append({"finding": finding.name} | {name: value_of(value) for name, value in flatten(told).items()})
    values = {
        "rows": list(_rows(listed, against)), "found": len(found), "total": len(findings), "asked": asked,
        "ticked": ticked, "contradict": sum(each.name in against for each in found),
        "left_out": {} if view.only else known.left_out, "choices": count(findings, FILTERS),
        "side_by_side": {name: [each.get(name, "usual") for each in columns] for name in chain(*columns)},
        "charts": list(_charts(site, rounds)),
    }  # fmt: skip
    return Page("compare.html.jinja", "Compare", values, "*")


def contradicted(findings: Sequence[KnownFinding]) -> Mapping[str, Mapping[str, str]]:
    """Return, of each finding that others contradict, those by name with what the two sides differ in."""
    against = defaultdict[str, dict[str, str]](dict)
    for pair in find_contradictions(findings):
        for one, other in ((pair.one, pair.other), (pair.other, pair.one)):
            for each in one:
                against[each.name] |= dict.fromkeys((its.name for its in other), "; ".join(pair.differ))
    return against


def _rows(findings: Sequence[KnownFinding], against: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield findings; those on one field by one metric have one axis. What does not follow has no number."""
    values = defaultdict[tuple[str, str], list[float | None]](list)
    for each in findings:
        values[each.variable, each.conditions.metric_name] += (each.estimate, each.low, each.high)
    axes: dict[tuple[str, str], Range] = {place: extent(of) for place, of in values.items()}
    for each in findings:
        control = format_setting_value(each.variable, each.control)
        row = {
            "finding": each, "compared": f"{setting(each.variable, each.treatment)} against {control}",
            "against": against.get(each.name, {}), "bar": None, "effect": NONE, "interval": "",
        }  # fmt: skip
        if each.verdict != DOES_NOT_FOLLOW and each.estimate is not None:
            ends = axes[each.variable, each.conditions.metric_name]
            row["bar"] = interval_bar(each.estimate, each.low, each.high, level=each.level, ends=ends)
            row["effect"] = format_signed(each.estimate)
            row["interval"] = span(each.low, each.high) + ("" if each.level is None else f" ({percent(each.level)})")
        yield row


def _rounds(site: Site, ticked: Sequence[KnownFinding]) -> Iterator[tuple[KnownFinding, StudyState, Design]]:
    """Yield ticked findings with their round and its design, of studies that can be read."""
    for finding in ticked:
        with suppress(StudiesError, HTTPException):
            for entry in site.state(finding.study).rounds:
                if entry.round == finding.round and entry.design is not None:
                    yield finding, entry, entry.design


def _charts(site: Site, rounds: Sequence[tuple[KnownFinding, StudyState, Design]]) -> Iterator[Chart]:
    """Yield the curves of the ticked claims' runs by arm, each study's apart."""
    runs, places = dict[str, PlottedRun](), dict[str, int]()
    for finding, state, design in rounds:
        for arm in design.contrast_of(design.hypothesis(finding.hypothesis)):
            group = f"{finding.study}/{finding.round}: {arm}"
            for run in state.runs_of(arm, finding.phase):
                runs[run.run_id] = PlottedRun(finding.study, run, group, places.setdefault(group, len(places)))
    every = list(runs.values())
    yield from (metric_chart(site.curves, every, every, metric)[0] for metric in (SUCCESS, "actor/entropy") if runs)
