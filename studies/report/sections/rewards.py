"""What a report says about generated rewards: the code, who wrote it, and how training reward and hidden success went.

The source is shown as it was locked and is nowhere run. Each reward has a scale of its own: training rewards are
never put beside one another, only beside the hidden success of the same runs.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from statistics import fmean

from studies.log.study_state import BUDGET_EXHAUSTED, StudyState
from studies.records.design import BUILT_IN, Arm
from studies.report.parts.evidence import BEFORE, REWARDS, Evidence
from studies.report.parts.parts import Code, Remark
from studies.report.parts.wording import number


def codes(state: StudyState) -> tuple[Code, ...]:
    """Return every reward function of the locked design, with the arms that trained on it."""
    if state.design is None:
        return ()
    arms = state.design.arms
    return tuple(
        Code(
            name=name,
            arms=", ".join(arm.name for arm in arms if arm.reward == name),
            sha256=hashlib.sha256(source.encode()).hexdigest(),
            source=source,
        )
        for name, source in sorted(state.design.code.items())
    )


def written(state: StudyState) -> str:
    """Return who wrote the code and where it ran, in sentences."""
    model = state.planner.get("model")
    author = f"the planner's language model ({model})" if model else "the planner"
    return (
        f"Written by {author} before the data, and locked with the design. {_ran(state)} The verdicts rest on the "
        "environment's own evaluator, which was never given it. Hidden tasks follow from public code, which it could "
        "read: so a sample of the training episodes of each of its runs was played again from what the server had "
        "recorded. A run is invalid (foreign_training) where more than a few of them were no plays of its training "
        "tasks; what is rare may have been missed. A run that it may have ended itself was not tried again."
    )


def _ran(state: StudyState) -> str:
    """Return where the code ran, by the log of the attempts that had it."""
    attempts = [attempt for run in state.runs.values() if run.spec.code for attempt in run.attempts]
    if not attempts:
        return "It has not run."
    if all(attempt.sandbox.get("kind") == "docker" for attempt in attempts):
        return "It ran in containers only, on training episodes."
    return "Where it ran is not recorded."


def generated(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
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
        yield from _reaches(state, arm)
        yield from _lost(state, arm)
        yield from _went(state, evidence, arm)


def reach(source: str) -> tuple[str, ...]:
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


def _reaches(state: StudyState, arm: Arm) -> Iterator[Remark]:
    assert state.design is not None
    found = reach(state.design.code[arm.reward])
    if found:
        yield Remark(
            "threat",
            f"The reward {arm.reward} names {', '.join(found)}, by which it may do more than judge a play. It ran in "
            "the training client, on whose word alone training success rests. Read its source before relying on its "
            "arm.",
        )


def _lost(state: StudyState, arm: Arm) -> Iterator[Remark]:
    codes = [run.invalid[0] for run in state.runs_of(arm.name) if run.invalid is not None]
    lost = sorted({code for code in codes if code != BUDGET_EXHAUSTED})
    if lost and state.values(arm.name):
        yield Remark(
            "threat",
            f"Runs of {arm.name} were lost ({', '.join(lost)}) and others count. Its code could see how a training "
            "went and end it: which of its runs count may be its own choice. Do not rely on what is said of this arm.",
        )


def _went(state: StudyState, evidence: Evidence, arm: Arm) -> Iterator[Remark]:
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
