"""Planner: each of its turns, what it looked at word for word, what it wrote down, and how its plan went."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from research.controller.planning import TurnId, read_turn
from research.errors import NotReady
from research.planners.tools import shows_hidden_plays
from research.shown.study import planner_questions
from research.ui.pages.review import find_checked
from research.ui.site import Page, Site, View
from studies import EventType, StudyState
from studies.log.entries import PlannerAct
from studies.records.verdict import one_line
from studies.report.content import TRIED
from studies.report.elements import find_sections
from studies.report.prose import mark, quote_held

GONE: Final = "its words are not kept here"
CHANGED: Final = "not as the log counted it"


def page(site: Site, view: View) -> Page:
    state = site.state(view.path["study"])
    events = [event for event in site.log.read(state.id) if event.type is EventType.PLANNER_ACTED]
    turns, read = list[dict[str, Any]](), list[str]()
    for number, (act, event) in enumerate(zip(state.planner_acts, events, strict=False), start=1):
        turns.append(_turn(site, state, act, read) | {"number": number, "seq": event.seq, "ts": event.ts})
    ideas = [note for note in state.notebook if note.kind == "note"]
    revised = {note.about: note for note in state.notebook if note.kind == "revise"}
    checked = find_checked(site, state, view)
    body = checked.content.body if checked is not None and checked.content is not None else ()
    values = {
        "state": state, "turns": turns, "ideas": [(note, revised.get(note.id)) for note in ideas],
        "doubted": "its files are being checked; load the page again" if checked is None else checked.fault_of_files,
        "plan": find_sections(body, "plan"), "explorations": find_sections(body, TRIED),
        "questions": planner_questions(state), "guidance": [
            (entry, next((turn for turn in turns if turn["seq"] > entry.seq), None))
            for entry in state.amendments if entry.amendment.kind == "note"
        ],
        "threads": site.reviewed(state.id).by_anchor(),
        "may_note": state.takes_notes and not view.static, "node_words": lambda text: _doubts(state, text, read),
    }  # fmt: skip
    return Page("planner.html.jinja", f"Planner of {state.id}", values, state.id, state.head_hash)


def _turn(site: Site, state: StudyState, act: PlannerAct, read: list[str]) -> dict[str, Any]:
    """Return what is shown of a turn; `read` gathers the words that the planner was shown until then."""
    kept, fault = None, "" if act.turn else "the log of that time does not say which turn it was"
    try:
        kept = read_turn(TurnId.parse(act.turn).path(site.folder(state.id) / "planning")) if act.turn else None
    except (NotReady, OSError, ValueError) as error:
        fault = " ".join(str(error).split())
    if kept is not None and kept.acted.get("action") != act.action:
        kept, fault = None, "its file tells of another action than the log"
    looks = compare_looks(act, [] if kept is None else kept.looks)
    read += [look["answer"] for look in looks if look["ok"]]
    asides = [note for note in state.notebook if act.turn and note.turn == act.turn]
    said = None if kept is None or kept.said is None else quote_held(kept.said, state.rounds)
    return {
        "act": act, "looks": looks, "fault": fault, "unkept": kept is None and not fault, "said": said,
        "did": _deeds(state, act),
        "asides": [(note, *_doubts(state, note.text, read)) for note in asides],
        "cost": sum(spent.get("cost", 0.0) for spent in act.spent.values()),
    }  # fmt: skip


def compare_looks(act: PlannerAct, kept: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a turn's looks as the log counts them, each with its words where they have the hash that it counted."""
    rows = []
    for index, counted in enumerate(act.tool_calls):
        found = kept[index] if index < len(kept) else {}
        answer = str(found.get("answer", ""))
        same = (found.get("name"), found.get("arguments")) == (counted["name"], counted["arguments"])
        right = same and hashlib.sha256(answer.encode(errors="replace")).hexdigest() == counted["sha256"]
        rows.append({
            **counted, "arguments": json.dumps(counted["arguments"], ensure_ascii=False), "ok": right,
            "answer": answer if right else "", "why": "" if right else CHANGED if found else GONE,
            "hidden": shows_hidden_plays(counted),
        })  # fmt: skip
    return rows


def _deeds(state: StudyState, act: PlannerAct) -> list[str]:
    """Return what came of a turn, as the log has it."""
    number, stage, _ = act.turn.split("/") if act.turn.count("/") == 2 else ("", act.action, "")
    tried = (entry.plan for each in state.every_round for entry in each.explorations if entry.turn == act.turn != "")
    lines = [
        f"tries {', '.join(arm.name for arm in plan.arms)} in {plan.environment}, {plan.runs_told}: {plan.why}"
        for plan in tried
    ]
    round = next((each for each in state.rounds if str(each.round) == number), None)
    turns = [other for other in state.planner_acts if other.turn.startswith(f"{number}/{stage}/")]
    if round is None or act != turns[-1]:
        return lines
    if act.action in ("propose", "replicate"):
        lines += [f"{claim.id}: {claim.statement}" for claim in round.hypotheses]
    elif act.action == "design" and round.design is not None:
        lines.append(f"locked as {round.design_hash}: {' vs '.join(arm.name for arm in round.design.arms)}")
    return lines


def _doubts(state: StudyState, text: str, read: Sequence[str]) -> tuple[str, str]:
    """Return a planner's words on one line, and what in them no verdict, lock, mean or look bears out."""
    line = one_line(text)
    return line, mark(text, state.rounds, more=read)[len(line) :].strip(" ()")
