"""Review: what a study claims, on which files, with what was said of it, and what a person may do to it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from research.controller.interventions import ACCEPTABLE
from research.controller.progress import progress_of
from research.controller.session import require_here
from research.design.known_findings import load_findings
from research.errors import NotReady
from research.text import format_seconds
from research.ui.curves import interval_bar
from research.ui.site import CheckedStudy, Page, Site, View, verdict_name
from studies import StudyState
from studies.log.reviews import report_of, threat_anchor
from studies.proof import DOES_NOT_FOLLOW
from studies.records.alpha import planned_looks
from studies.records.design import Hypothesis
from studies.report import claims, elements, wording
from studies.report.build import file_hashes
from studies.report.content import TRIED, ReportContent, title
from studies.report.plots import FIGURES
from studies.report.summary import HeadlineAnswer, headline
from studies.report.tables import count_runs
from studies.verdicts.wording import deciding_interval, question_of

_IN_CARDS = ("Verdict", "In practice", "Known", "Not known", "Tested")
"""How labels of a report's first lines begin that stand at the claims here."""


def page(site: Site, view: View) -> Page:
    state = site.state(view.path["study"])
    checked, reviewed = find_checked(site, state, view), site.reviewed(state.id)
    content = None if checked is None else checked.content
    body = () if content is None else content.body
    threads, runs = reviewed.by_anchor(), state.every_run.values()
    rounds = [_round(state, each, checked) for each in sorted(state.every_round, key=lambda each: each.round)]
    alike = defaultdict[str, list[elements.Remark]](list)  # a threat that begins as an earlier one is told with it
    for threat in () if checked is None else checked.remarks:
        alike[threat_anchor(threat.text)].append(threat)
    threats = [{"about": about, "blocks": [elements.Remarks(tuple(group))]} for about, group in alike.items()]
    here = [part["about"] for part in (*threats, *(card for each in rounds for card in each["cards"]))]
    proving = bool(view.get("verify")) and not view.static
    used = f"{format_seconds(state.worked_s)} of {format_seconds(state.budget_s)} of its budget used"
    known = () if view.static or content is None else load_findings(site.home, site.log).findings
    looks = sum(len(act.tool_calls) for act in state.planner_acts)
    noted = any(entry.seq == state.event_count for entry in state.amendments)  # then no end of the log tells when
    values = {
        "study": state.id, "state": state, "checked": checked, "content": content, "report": report_of(state),
        "built": "" if state.report is None or noted else state.last_ts, "points": [_head(state, content)],
        "progress": f"{progress_of(state)}; {used}",
        "to_check": sum(run.status == "collected" for run in runs), "counted": count_runs(runs),
        "answer": _pick(body, "answer"), "rounds": rounds, "threats": threats,
        "rest": _pick(body, "plan", "deviations", "analyses", "ledgers"),
        "figures": list(_figures(state, checked)), "reviewed": reviewed, "threads": threads,
        "elsewhere": [(name, _address(state, name), threads[name]) for name in sorted({*threads} - {*here, "study"})],
        "turns": f"{wording.plural(len(state.planner_acts), 'turn')}, {wording.plural(looks, 'look')}",
        "planner": claims.quote_planner(state), "may_do": {} if view.static else _offers(site, state),
        "proof": site.prove(state.id) if proving else None,
        "stands": {one.name: one.standing[2:] for one in known},
    }  # fmt: skip
    heading = title(state) if content is None else content.title
    return Page("review.html.jinja", heading, values, study="" if proving else state.id, head=state.head_hash)


def find_checked(site: Site, state: StudyState, view: View) -> CheckedStudy | None:
    """Return what a study's files come to, for an export in any case; None while they are being checked."""
    try:
        require_here(site.home, site.log, state)
    except NotReady as error:
        return CheckedStudy(state.head_hash, None, str(error), {})
    return site.checked(state, 600.0) if view.static else site.checked(state)


def _head(state: StudyState, content: ReportContent | None) -> elements.Head:
    """Return a report's first lines but for those on its claims; of a study without one what was asked."""
    if content is not None:
        points = (point for point in content.head.points if not point.label.startswith(_IN_CARDS))
        return elements.Head(tuple(points), content.head.facts)
    asked = question_of(state)
    left = (elements.Point("Not tested", line, tone="untested") for line in asked.not_tested)
    return elements.Head((elements.Point("Asked", asked.asked), *left), ())


def _round(state: StudyState, each: StudyState, checked: CheckedStudy | None) -> dict[str, Any]:
    """Return what stands of a round: its claims as cards, and what its report says beside them."""
    answers = {answer.hypothesis: answer for answer in headline(each).answers}
    found, given_up = [], each in state.given_up
    body = checked.content.body if checked is not None and checked.content is not None else ()
    own = elements.find_sections(body, f"round-{each.round}") if elements.is_campaign(state) else body
    if body:
        found = [claims.numbers_table(each), claims.mediator_table(each), claims.replication_table(each)]
    tested = [elements.Head(tuple(elements.Point("Tested", line) for line in question_of(each).tested), ())]
    asked = () if given_up else claims.claims(each)
    return {
        "number": each.round, "tested": tested, "why_asked": each.why_asked, "lone": answers.get(""),
        "locked": each.locked is not None, "given_up": given_up,
        "cards": [_card(state, each, claim, answers.get(claim.id), checked) for claim in asked],
        "numbers": [table for table in found if table is not None],
        "tried": elements.find_sections(own, TRIED),
    }  # fmt: skip


def _card(
    state: StudyState, each: StudyState, claim: Hypothesis, answer: HeadlineAnswer | None, checked: CheckedStudy | None
) -> dict[str, Any]:
    verdict, design, predicted = each.verdict_on(claim.id), each.design, claim.prediction
    faults = {} if checked is None else checked.faults
    again = next((found for found in each.replications if found.hypothesis == claim.id), None)
    may_end = each is state and claim in state.hypotheses and state.concluded_reason is None
    where = {} if design is None else {"environment": design.environment}
    unit, guess = "" if design is None else design.metric.unit, (predicted.low, predicted.high)
    card: dict[str, Any] = {
        "about": f"r{each.round}/{claim.id}", "name": claim.id, "compared": wording.describe_comparison(claim),
        "others": f"/compare?{urlencode({'field': claim.variable, **where})}",
        "kind": "open", "answer": answer, "verdict": verdict, "locked": design is not None,
        "veto": each.vetoed.get(claim.id),
        "may_veto": may_end and claim.id not in each.vetoed and not each.is_settled(claim.id),
        "again": "" if again is None else faults.get(verdict_name(each.round, again), ""),
        "predicted": f"{wording.span(*guess, unit=unit)} ({wording.percent(predicted.level)})",
        "prior": wording.percent(predicted.probability),
    }  # fmt: skip
    if verdict is None or design is None:
        return card
    if checked is None:
        return card | {"kind": "checking"}
    if fault := faults.get(verdict_name(each.round, verdict)):
        return card | {"kind": "fault", "word": DOES_NOT_FOLLOW, "fault": fault}
    if checked.refused:
        return card | {"kind": "fault", "word": "not claimed", "fault": checked.refused}
    interval, looks = deciding_interval(design, verdict), planned_looks(design, verdict.phase)
    low, high, level = (None, None, None) if interval is None else (interval.low, interval.high, interval.level)
    margin = verdict.equivalence.margin if verdict.equivalence is not None else design.equivalence_margin
    spent = verdict.last.alpha if verdict.last is not None else looks[min(verdict.look, len(looks)) - 1].alpha
    bar = interval_bar(verdict.estimate, low, high, level=level, margin=margin, predicted=guess, unit=unit)
    return card | {
        "kind": "judged", "checked_at": checked.at, "bar": bar,
        "observed": wording.in_unit(wording.format_signed(verdict.estimate, unit=unit), design.metric),
        "interval": "" if level is None else f"{wording.span(low, high, unit=unit)} ({wording.percent(level)})",
        "counts": wording.describe_counts(verdict), "within": verdict.within_prediction,
        "level": f"{wording.fine_percent(spent)} of {wording.fine_percent(design.alpha)}",
        "look": f"{verdict.look} of {len(looks)}",
    }  # fmt: skip


def _without_drawings(blocks: Iterable[elements.Block]) -> Iterator[elements.Block]:
    """Yield blocks without their figures, which stand as the files that were written."""
    for block in blocks:
        if isinstance(block, elements.Section):
            inner = tuple(_without_drawings(block.blocks))
            if inner:
                yield replace(block, blocks=inner)
        elif not isinstance(block, elements.Drawing):
            yield block


def _pick(body: Iterable[elements.Block], *ids: str) -> tuple[elements.Block, ...]:
    return tuple(_without_drawings(elements.find_sections(body, *ids)))


def _figures(state: StudyState, checked: CheckedStudy | None) -> Iterator[Mapping[str, str]]:
    """Yield the figures that the log knows as written, of those that the report has now."""
    if checked is None or checked.content is None:
        return
    written = file_hashes(state.newest_report).keys() - set(checked.changed)
    for drawn in elements.list_drawings(checked.content.body):
        if (path := f"figures/{drawn.name}.svg") in written:
            kind = FIGURES[drawn.figure]
            yield {"path": path, "title": kind.title, "caption": kind.caption(drawn.data)}


def _address(state: StudyState, about: str) -> str:
    """Return the address of the page on which something stands that a comment is about; empty where none has it."""
    kind, _, name = about.partition(" ")
    page = {"run": f"runs/{name}", "play": f"runs/{name.partition('/')[0]}", "turn": "planner", "look": "planner"}
    return f"/s/{state.id}/{page[kind]}" if kind in page else ""


def _offers(site: Site, state: StudyState) -> dict[str, Any]:
    """Return what a person may do that would change something, by the name of its action."""
    over, rests = state.concluded_reason is not None, not site.is_driven(state.id, state.status)
    halted, rests = state.stopped_reason is not None, rests or state.paused_reason is not None
    known = {run.invalid[0] for run in state.every_run.values() if run.invalid is not None}
    known |= {line.partition(":")[0] for verdict in state.verdicts for line in verdict.violations}
    accepted = {entry.amendment.target for entry in state.amendments}
    return {
        "approve": state.open_question, "pause": not (over or halted or state.paused_reason is not None),
        "resume": not over and (halted or rests), "stop": not (over or halted),
        "note": state.takes_notes, "budget": not over, "build": state.report is None,
        "accept": [] if over or state.design is None else sorted(known.intersection(ACCEPTABLE) - accepted),
    }  # fmt: skip
