"""Numbers that were not in the lock: they may lead to the next question, and no claim rests on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from statistics import fmean

from studies.log.study_state import StudyState
from studies.records.design import Design, Hypothesis
from studies.report.parts.evidence import Evidence
from studies.report.parts.parts import Cell, Table, cell, table
from studies.report.parts.wording import NONE, number, plural, signed
from studies.statistics.rates import rate_interval
from studies.statistics.samples import hedges_g
from studies.verdicts.judge import gather


def table_of(state: StudyState) -> Table | None:
    """Return effect size, probability of improvement and collapses of each judged hypothesis; None before one is.

    A run collapsed when it ended below where it began, or broke down so far that it counts with the worst value. Where
    a rule of collapse was locked, `collapses` says it.
    """
    if state.design is None:
        return None
    if state.design.collapse is not None or state.design.metric.kind:
        return _without_collapses(state, state.design)
    judged = {verdict.hypothesis for verdict in state.verdicts}
    rows = [_row(state, state.design, h) for h in _of_two_arms(state.design) if h.id in judged]
    columns = (
        "Hypothesis", "Hedges' g", "A treatment run beats a control run", "Treatment runs that collapsed",
        "Control runs that collapsed",
    )  # fmt: skip
    return table(columns, rows, numeric=(1, 2, 3, 4), cards=True) if rows else None


def facts_table(state: StudyState, evidence: Evidence) -> Table | None:
    """Return what the environment said of the plays after training, as means over each arm's runs; None for nothing.

    A play of which it did not say a number is no part of that one's mean, and is counted beside it.
    """
    arms = [arm.name for arm in state.design.arms] if state.design is not None else []
    said = {arm: _facts(state, arm) for arm in arms}
    names = sorted({name for facts in said.values() for name in facts})
    lacking = {arm: _unsaid(state, evidence, arm) for arm in arms}
    rows = [
        [cell(name), *(cell(_told(said[arm].get(name, []), lacking[arm].get(name, 0))) for arm in arms)]
        for name in names
    ]
    return table(("Mean per play", *arms), rows, numeric=range(1, len(arms) + 1)) if rows else None


def _facts(state: StudyState, arm: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in state.runs_of(arm):
        for name, value in (run.collected or {}).get("facts", {}).items():
            found.setdefault(name, []).append(float(value))
    return found


def _unsaid(state: StudyState, evidence: Evidence, arm: str) -> Counter[str]:
    runs = (evidence.runs[run.run_id] for run in state.runs_of(arm) if run.run_id in evidence.runs)
    return sum((Counter(run.unsaid) for run in runs), Counter[str]())


def _told(values: Sequence[float], lacking: int) -> str:
    mean = number(fmean(values)) if values else NONE
    return f"{mean} (of {plural(lacking, 'play')} not said)" if lacking else mean


def _without_collapses(state: StudyState, design: Design) -> Table | None:
    judged = {verdict.hypothesis for verdict in state.verdicts}
    rows = [_row(state, design, h)[:3] for h in _of_two_arms(design) if h.id in judged]
    columns = ("Hypothesis", "Hedges' g", "A treatment run beats a control run")
    return table(columns, rows, numeric=(1, 2), cards=True) if rows else None


def _of_two_arms(design: Design) -> list[Hypothesis]:
    return [claim for claim in design.hypotheses if claim.kind == "difference"]


def _row(state: StudyState, design: Design, hypothesis: Hypothesis) -> list[Cell]:
    names = [design.arm_with(hypothesis.variable, value).name for value in (hypothesis.control, hypothesis.treatment)]
    control, treatment = (_analysed(state, design, name) for name in names)
    sides = (control, treatment) if design.metric.higher_is_better else (treatment, control)
    return [
        cell(hypothesis.id), cell(signed(hedges_g(control, treatment), 2)),
        cell(number(beats(*sides), 2)),
        cell(_collapsed(state, design, names[1])), cell(_collapsed(state, design, names[0])),
    ]  # fmt: skip


def beats(control: Sequence[float], treatment: Sequence[float]) -> float | None:
    """Return the share of pairs of runs that the treatment wins, ties counted half; None where there is no pair."""
    if not control or not treatment:
        return None
    return fmean((b > a) + (b == a) / 2 for a, b in product(control, treatment))


def _analysed(state: StudyState, design: Design, arm: str) -> list[float]:
    """Return an arm's values, without those of runs that collapsed by the locked rule."""
    if design.collapse is None:
        return list(state.values(arm).values())
    return gather(state, look=max(1, len(design.looks)))[arm].kept().numbers


def _collapsed(state: StudyState, design: Design, arm: str) -> str:
    """Return how many of an arm's runs collapsed, with Wilson's 95 % interval of the rate."""
    before, after = state.values(arm, f"{design.metric.key}/initial"), state.values(arm)
    fell = sum(after[run] < before[run] for run in after.keys() & before.keys())
    broke = sum(run.invalid is not None and run.invalid[0] in design.counted_as_worst for run in state.runs_of(arm))
    n = len(after) + broke
    found = rate_interval(fell + broke, n)
    return NONE if found is None else f"{fell + broke} of {n} ({number(found.low, 2)} to {number(found.high, 2)})"
