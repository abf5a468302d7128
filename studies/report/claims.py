"""What a report says of claims: predictions, deviations, rewards, quoted plays.

Verdicts are repeated here, never formed. Source code of rewards is shown as locked and nowhere run; each reward has a
scale of its own, so training rewards are only put beside the hidden success of the same runs. Words in quoted plays are
a model's: they are escaped, and nothing is computed from them.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from studies.log.study import BUDGET_EXHAUSTED, LoggedAmendment, RunState, StudyState
from studies.records.design import BUILT_IN, Arm, Hypothesis, Metric
from studies.records.statements import statement, statement_of
from studies.records.verdict import Verdict, find_contradictions, mark_contradictions, planner_label, quote_message
from studies.report.elements import Cell, Code, Quote, Remark, Table, cell, hash_cell, table
from studies.report.evidence import BEFORE, REWARDS, Evidence
from studies.report.wording import (
    NONE,
    describe_comparison,
    describe_counts,
    duration,
    format_signed,
    label,
    moment,
    number,
    one_line,
    p_value,
    percent,
    span,
    true_minus,
)
from studies.verdicts.wording import deciding_interval

_SIDE = re.compile(", (the predicted side|against the prediction)")
"""What a rule says of a prediction's side, which an open question has none of."""
FROM_SCREEN = "written by code from the screen"


def last_words(state: StudyState) -> str:
    """Return the planner's last words as a quotation, held to every round's verdicts; empty where it had none."""
    if state.said is None:
        return ""
    reached = [verdict for each in state.rounds for verdict in each.verdicts]
    wrong = dict.fromkeys((*state.said.contradicted, *find_contradictions(state.said.text, reached)))
    return quote_message(state.said.model_copy(update={"contradicted": tuple(wrong)}))


def why_asked(state: StudyState) -> str:
    """Return why a round was asked, in the words of whoever asked, held to the verdicts that were there by then."""
    return mark_contradictions(state.why_asked, [verdict for each in state.rounds_before for verdict in each.verdicts])


def quotes(state: StudyState) -> tuple[Quote, ...]:
    if state.selection is not None:
        return tuple(Quote(h.id, one_line(h.statement), one_line(h.mechanism), FROM_SCREEN) for h in claims(state))
    by = f"in the words of the planner {planner_label(str(state.planner['name']), state.planner.get('model'))}"
    metric = None if state.design is None else state.design.metric
    worded = ((h.id, *_in_words(h, metric)) for h in claims(state))
    return tuple(Quote(name, words, mechanism, by) for name, words, mechanism in worded if words)


def _in_words(claim: Hypothesis, metric: Metric | None) -> tuple[str, str]:
    """Return a planner's wording of a claim and its mechanism; the mechanism alone where it left the rest to code."""
    code = statement(claim.variable, claim.control, claim.treatment, claim.direction, metric)
    words = claim.said or ("" if claim.statement in (code, statement_of(claim, metric)) else claim.statement)
    return (one_line(words), one_line(claim.mechanism)) if words else (one_line(claim.mechanism), "")


def claims(state: StudyState) -> tuple[Hypothesis, ...]:
    """Return the hypotheses under test, or those proposed while there is no design."""
    return state.design.hypotheses if state.design else state.hypotheses


def quote_planner(state: StudyState) -> str:
    name, model = str(state.planner.get("name", "unknown")), state.planner.get("model")
    if name == "rules":
        return "Planned by the built-in rules; no language model took part."
    return f"Planned by a language model ({model})." if model else f"Planned by the planner `{name}`."


def verdict_table(state: StudyState) -> Table | None:
    rows = [_verdict_row(state, claim, state.verdict_on(claim.id)) for claim in claims(state)]
    columns = ("Hypothesis", "Difference", "Interval", "Runs", "Predicted", "Inside", "Verdict")
    return table(columns, rows, numeric=(1, 2, 3, 4), cards=True) if rows else None


def numbers_table(state: StudyState) -> Table | None:
    rows = [_numbers_row(state, claim, state.verdict_on(claim.id)) for claim in claims(state)]
    rows += [_numbers_row(state, None, verdict) for verdict in state.replications]
    columns = (
        "Hypothesis", "Locked test", "Interval", "Level", "p", "Equivalence interval", "Probability given", "Brier",
        "Inputs, sha256",
    )  # fmt: skip
    return table(columns, rows, numeric=(2, 3, 4, 5, 6, 7), cards=True) if rows else None


def rules(state: StudyState) -> tuple[str, ...]:
    opened = {claim.id for claim in claims(state) if claim.open}
    return tuple(
        f"{v.hypothesis}: {true_minus(_SIDE.sub('', v.reason) if v.hypothesis in opened else v.reason)}"
        for v in state.verdicts
    )


def _verdict_row(state: StudyState, claim: Hypothesis, verdict: Verdict | None) -> list[Cell]:
    interval = deciding_interval(state.design, verdict) if state.design is not None and verdict is not None else None
    unit = _unit(state)
    ends = NONE if interval is None else f"{span(interval.low, interval.high, unit=unit)} ({percent(interval.level)})"
    inside = {True: "yes", False: "no", None: NONE}[verdict.within_prediction if verdict else None]
    prediction = claim.prediction
    return [
        cell(f"{claim.id}: {describe_comparison(claim)}"),
        cell(format_signed(verdict.estimate, unit=unit) if verdict else NONE),
        cell(ends), cell(describe_counts(verdict) if verdict else NONE),
        cell(f"{span(prediction.low, prediction.high, unit=unit)} ({percent(prediction.level)})"), cell(inside),
        verdict_cell(state, verdict),
    ]  # fmt: skip


def verdict_cell(state: StudyState, verdict: Verdict | None) -> Cell:
    if verdict is None or state.design is None:
        return cell(NONE)
    return cell(label(state.design.hypothesis(verdict.hypothesis), verdict), verdict.verdict)


def _numbers_row(state: StudyState, claim: Hypothesis | None, verdict: Verdict | None) -> list[Cell]:
    """Return the row of a claim, or (without it) of a verdict of the replication."""
    name = claim.id if claim is not None else f"{verdict.hypothesis if verdict else NONE} again"
    given = cell(percent(claim.prediction.probability) if claim is not None else NONE)
    if verdict is None:
        return [cell(name), *(cell(NONE) for _ in range(5)), given, cell(NONE), cell(NONE)]
    same, looks = verdict.equivalence, len(state.design.looks) if state.design else 0
    adjusted = "" if verdict.p_adjusted is None else f" ({p_value(verdict.p_adjusted)} adjusted)"
    test = f"{verdict.test}, look {verdict.look} of {looks}" if looks > 1 else verdict.test
    return [
        cell(name), cell(test), cell(span(verdict.low, verdict.high, unit=_unit(state))),
        cell(percent(round(verdict.level, 4))), cell(p_value(verdict.p) + adjusted),
        cell(NONE if same is None else f"{span(same.low, same.high, unit=_unit(state))}, p {p_value(same.p)}"),
        given, cell(number(verdict.brier)), hash_cell(verdict.inputs_sha256),
    ]  # fmt: skip


def _unit(state: StudyState) -> str:
    return state.design.metric.unit if state.design is not None else ""


def deviation_table(state: StudyState) -> Table | None:
    rows = [(a.seq, _amendment_row(a)) for a in state.amendments]
    for name, veto in state.vetoed.items():
        texts = (moment(veto.ts), veto.actor, f"veto of {name}: no more runs for it", one_line(veto.reason), "")
        rows.append((veto.seq, [*map(cell, texts)]))
    columns = ("When", "By", "Change", "Why", "")
    return table(columns, [row for _, row in sorted(rows, key=lambda row: row[0])], cards=True) if rows else None


def protocol_deviations(state: StudyState) -> Iterator[str]:
    """Yield a sentence for each verdict that an amendment after the first result touched."""
    for verdict in (*state.verdicts, *state.replications):
        if verdict.exploratory and state.judged_short.get((verdict.hypothesis, verdict.phase)) == verdict.look:
            yield (
                f"The verdict on {verdict.hypothesis} is exploratory: its look was judged before, on what a budget had "
                "carried, and its level was spent then."
            )
        elif verdict.exploratory:
            yield (
                f"The verdict on {verdict.hypothesis} is exploratory: an amendment made after the first result let "
                "pass what the locked rules would have stopped, or cut the budget so that its look came early."
            )


def _amendment_row(amended: LoggedAmendment) -> list[Cell]:
    change = amended.amendment
    changes = {"accept": f"accepts the violation {change.target}", "budget": f"budget of {duration(change.value)}"}
    said = changes.get(change.kind, "note")
    after = "after the first result" if amended.after_data else "before any result"
    return [*map(cell, (moment(amended.ts), amended.actor, said, one_line(change.reason), after))]


def codes(state: StudyState) -> tuple[Code, ...]:
    if state.design is None:
        return ()
    arms = state.design.arms
    users = {name: ", ".join(arm.name for arm in arms if arm.reward == name) for name in state.design.code}
    return tuple(
        Code(name, users[name], hashlib.sha256(source.encode()).hexdigest(), source)
        for name, source in sorted(state.design.code.items())
    )


def describe_authorship(state: StudyState) -> str:
    model = state.planner.get("model")
    author = f"the planner's language model ({model})" if model else "the planner"
    return (
        f"Written by {author} before the data, and locked with the design. {_describe_sandbox(state)} The verdicts "
        "rest on the environment's own evaluator, which was never given it. Hidden tasks follow from public code, "
        "which it could read: so a sample of the training episodes of each of its runs was played again from what the "
        "server had recorded. A run is invalid (foreign_training) where more than a few of them were no plays of its "
        "training tasks; what is rare may have been missed. A run that it may have ended itself was not tried again."
    )


def _describe_sandbox(state: StudyState) -> str:
    attempts = [attempt for run in state.runs.values() if run.spec.code for attempt in run.attempts]
    if not attempts:
        return "It has not run."
    if all(attempt.sandbox.get("kind") == "docker" for attempt in attempts):
        return "It ran in containers only, on training episodes."
    return "Where it ran is not recorded."


def warn_generated_rewards(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield what a generated reward means for a conclusion, and how each of them and hidden success went."""
    arms = [arm for arm in state.design.arms if arm.reward != BUILT_IN] if state.design else []
    if arms:
        yield Remark(
            "threat",
            f"The training reward of {', '.join(arm.name for arm in arms)} was written by a language model. Training "
            "can raise such a reward while hidden success stands still or falls (reward hacking); each reward has a "
            "scale of its own, so that training rewards of different arms say nothing beside one another.",
        )
    for arm in arms:
        yield from _warn_escapes(state, arm)
        yield from _warn_lost_runs(state, arm)
        yield from _compare_reward_trend(state, evidence, arm)


def find_escapes(source: str) -> tuple[str, ...]:
    """Return what a source names by which code reaches beyond its arguments, as far as reading it can tell."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ("what cannot be read",)
    imported = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {
        (node.module or "a relative import").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)
    }
    named = {node.id for node in nodes if isinstance(node, ast.Name) and (node.id in _REACHING or _is_dunder(node.id))}
    named |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_dunder(node.attr)}
    return tuple(sorted((imported - _PLAIN) | named))


_PLAIN = frozenset({
    "__future__", "collections", "dataclasses", "difflib", "enum", "fractions", "functools", "itertools", "json",
    "math", "operator", "re", "statistics", "string", "textwrap", "typing", "unicodedata",
})  # fmt: skip
"""Modules that compute on what they are given."""
_REACHING = frozenset({
    "breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals", "input", "locals", "open", "setattr",
    "vars",
})  # fmt: skip


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name != "__name__"


def _warn_escapes(state: StudyState, arm: Arm) -> Iterator[Remark]:
    assert state.design is not None
    found = find_escapes(state.design.code[arm.reward])
    if found:
        yield Remark(
            "threat",
            f"The reward {arm.reward} names {', '.join(found)}, by which it may do more than judge a play. It ran in "
            "the training client, on whose word alone training success rests. Read its source before relying on its "
            "arm.",
        )


def _warn_lost_runs(state: StudyState, arm: Arm) -> Iterator[Remark]:
    codes = [run.invalid[0] for run in state.runs_of(arm.name) if run.invalid is not None]
    lost = sorted({code for code in codes if code != BUDGET_EXHAUSTED})
    if lost and state.values(arm.name):
        yield Remark(
            "threat",
            f"Runs of {arm.name} were lost ({', '.join(lost)}) and others count. Its code could see how a training "
            "went and end it: which of its runs count may be its own choice. Do not rely on what is said of this arm.",
        )


def _compare_reward_trend(state: StudyState, evidence: Evidence, arm: Arm) -> Iterator[Remark]:
    curves = [
        curve
        for run_id, found in evidence.runs.items()
        if state.runs[run_id].spec.arm == arm.name and (curve := found.curves.get(REWARDS))
    ]
    before, after = state.values(arm.name, BEFORE), state.values(arm.name)
    if not curves or not before or not after:
        return
    first, last = fmean(curve[0][1] for curve in curves), fmean(curve[-1][1] for curve in curves)
    start, end = fmean(before.values()), fmean(after.values())
    parted = last > first and end <= start
    lead = "Training reward and hidden success parted" if parted else "Training reward beside hidden success"
    yield Remark(
        "threat" if parted else "note",
        f"{lead} with {arm.name}: from the first step to the last, the mean reward went from {number(first)} to "
        f"{number(last)}; before and after training, hidden success was {number(start)} and {number(end)}.",
    )


@dataclass(frozen=True, slots=True)
class Play:
    """One play of a hidden task: which run played it, when, and its messages as (role, words)."""

    title: str
    messages: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "\n\n".join(f"{role}: {words}" for role, words in self.messages)


def transcripts(state: StudyState, evidence: Evidence) -> tuple[Play, ...]:
    """Return the plays kept of the first run that kept any, treatment arms first; empty where none did."""
    control = state.design.control_arm if state.design is not None else ""
    runs = [run for run in state.runs.values() if run.run_id in evidence.runs]
    for run in sorted(runs, key=lambda run: (run.spec.phase != "confirm", run.spec.arm == control)):
        if kept := evidence.runs[run.run_id].transcripts:
            return tuple(_play(run, when, entry) for when, entry in kept)
    return ()


def _play(run: RunState, when: str, entry: Mapping[str, Any]) -> Play:
    messages = tuple((str(message["role"]), str(message["content"])) for message in entry["messages"])
    said = {"initial": "before training", "final": "after training"}[when]
    return Play(f"{entry['task_id']}, {said} (run {run.run_id}, {run.spec.arm})", messages)
