"""What to ask next, by rules, as one command that can be typed: it follows from the verdict, never from a planner."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from studies.log.study_state import StudyState
from studies.records.base import JsonValue
from studies.records.design import BUILT_IN, CONFIGURATION, REWARD, SUCCESS, Design, Hypothesis
from studies.records.verdict import Verdict
from studies.report.headline.practice import fewest, sight
from studies.report.parts.wording import value_of

_MOST_LONGER: Final = 8.0
"""A study that would take more than so many times its budget is not proposed."""
_SAFELY: Final = 0.9
"""Part of what trainings ended at that a threshold they reach may have."""
_GRAIN: Final = 0.05
"""What thresholds are rounded down to."""
_SMALL: Final = 0.1
"""A number below it is taken to be a rate or a coefficient that may be scaled up once more."""


@dataclass(frozen=True, slots=True)
class NextQuestion:
    """What is worth doing next, in a clause, and the command that does it."""

    why: str
    command: str


def ask_next(state: StudyState) -> NextQuestion:
    """Return what to ask next."""
    if (going_on := _go_on(state)) is not None:
        return going_on
    if state.declined:
        return NextQuestion("the question in other words, as the planner declined it", "ajet study plan '...'")
    design = state.design
    judged = [(design.hypothesis(verdict.hypothesis), verdict) for verdict in state.verdicts] if design else []
    if design is None or not judged:
        return NextQuestion("the same question with more time", _again(state, 2.0))
    claim, verdict = min(judged, key=lambda entry: _URGENCY.index(entry[1].verdict))
    return _after(state, design, claim, verdict)


def _go_on(state: StudyState) -> NextQuestion | None:
    """Return how an unfinished study goes on; None for one that is concluded."""
    resume = f"ajet study resume {state.id}"
    if state.stopped_reason is not None and state.concluded_reason is None:
        if state.denial is not None or "budget" not in state.stopped_reason:
            return NextQuestion("the rest of this study", resume)
        more = f'ajet study amend {state.id} --budget {_budget(2 * state.budget_s)} --reason "more time"'
        return NextQuestion("the rest of this study, with more time", f"{more} && {resume}")
    if state.status == "paused":
        return NextQuestion("the rest of this study", resume)
    if state.status == "waiting":
        return NextQuestion("what this study waits for, once it is approved", f"ajet study approve {state.id}")
    if state.status in ("planning", "running"):
        return NextQuestion("nothing before this study ends", f"ajet study watch {state.id}")
    return None


def _after(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> NextQuestion:
    match verdict.verdict:
        case "supported":
            further = _untried(design, claim)
            if further is None:
                return NextQuestion("whether it holds again, on fresh seeds", _compare(state, design, claim))
            return NextQuestion(
                f"whether {value_of(further)} goes further", _compare(state, design, claim, claim.treatment, further)
            )
        case "refuted":
            return NextQuestion(
                "whether the opposite holds, as a claim of its own on fresh seeds",
                _compare(state, design, claim, claim.treatment, claim.control),
            )
        case "equivalent":
            further = _untried(design, claim)
            if further is None:
                return NextQuestion("something else: here nothing that matters was left to find", _again(state, 1.0))
            return NextQuestion("a larger contrast", _compare(state, design, claim, claim.control, further))
        case "inconclusive":
            return _with_more(state, design, claim, verdict)
        case _:
            return NextQuestion("the same again, once what made it invalid is mended", _again(state, 1.0))


def _with_more(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> NextQuestion:
    if verdict.reached and verdict.estimate is None and (nearer := _nearer(state, design, claim)) is not None:
        return NextQuestion(
            f"which is faster to {nearer:g}, which most trainings reach", _compare(state, design, claim, to=nearer)
        )
    found = sight(design, claim, verdict)
    runs = fewest(verdict)
    longer = max(2.0, found.seeds / runs) if found is not None and found.seeds is not None else 2.0
    if longer > _MOST_LONGER and (further := _untried(design, claim)) is not None:
        return NextQuestion(
            "a larger contrast: this one needs too many seeds", _compare(state, design, claim, claim.control, further)
        )
    longer = min(longer, _MOST_LONGER)
    return NextQuestion("the same comparison with more seeds", _compare(state, design, claim, longer=longer))


def _compare(
    state: StudyState,
    design: Design,
    claim: Hypothesis,
    control: JsonValue = None,
    treatment: JsonValue = None,
    *,
    longer: float = 1.0,
    to: float | None = None,
) -> str:
    """Return the command that compares two values of the claim's variable; of the claim itself where none is given.

    `to` is another threshold than the design's.
    """
    whole = claim.sought == "equivalence" or claim.kind != "difference"
    if not _is_plain(claim) or (treatment is None and whole):
        return _again(state, longer)
    values = (claim.control, claim.treatment) if treatment is None else (control, treatment)
    left, right = (value_of(value) for value in values)
    steps = design.base_job.get("steps")
    trained = f" with {steps} training steps" if isinstance(steps, int) and claim.variable != "steps" else ""
    matched = " at the same number of episodes" if claim.matched == "episodes" else ""
    brought = design.environment in {known.name for known in design.environments}
    where, flag = ("", f" --env {shlex.quote(design.environment)}") if brought else (f" on {design.environment}", "")
    topic = f"{claim.variable} {left} vs {right}{where}{trained}{matched}"
    promise = f" --effect {design.promise.effect:g}" if design.promise is not None else ""
    return (
        f"ajet research {shlex.quote(topic)}{flag}{_base(state)}{_metric(design, to)}{promise} "
        f"--budget {_budget(longer * state.budget_s)}"
    )


def _metric(design: Design, to: float | None) -> str:
    """Return the flag that names the metric; nothing for what is compared anyhow."""
    metric = design.metric
    if not metric.kind:
        return ""
    threshold = metric.threshold if to is None else to
    of = metric.of or ("" if threshold is None else f"{threshold:g}")
    return f" --metric {shlex.quote(metric.kind + (f':{of}' if of else ''))}"


def _nearer(state: StudyState, design: Design, claim: Hypothesis) -> float | None:
    """Return a threshold that most trainings of both arms ended above; None where there is none below the design's."""
    names = (design.control_arm, design.arm_with(claim.variable, claim.treatment).name)
    ended = [sorted(state.values(name, SUCCESS).values()) for name in names]
    if not all(ended):
        return None
    most = min(values[len(values) // 4] for values in ended)
    nearer = math.floor(_SAFELY * most / _GRAIN) * _GRAIN
    return round(nearer, 2) if _GRAIN <= nearer < (design.metric.threshold or 0.0) else None


def _base(state: StudyState) -> str:
    """Return the flags of the study's command that say which job lies under all arms."""
    words = [str(word) for word in state.command] if isinstance(state.command, list | tuple) else []
    found = []
    for flag in ("--job", "--model-path"):
        found += [f"{flag}={word.removeprefix(f'{flag}=')}" for word in words if word.startswith(f"{flag}=")]
        found += [f"{flag}={words[at + 1]}" for at, word in enumerate(words[:-1]) if word == flag]
    return "".join(f" {shlex.quote(flag)}" for flag in found)


def _again(state: StudyState, longer: float) -> str:
    """Return the study's own command with `longer` times its budget."""
    command = state.command
    if isinstance(command, str) or not isinstance(command, list | tuple):
        return str(command)
    words, budget = [str(word) for word in command], _budget(longer * state.budget_s)
    if "--budget" in words[:-1]:
        words[words.index("--budget") + 1] = budget
        return shlex.join(words)
    kept = [word for word in words if not word.startswith("--budget=")]
    return shlex.join([*kept, "--budget", budget]) if longer != 1.0 or kept != words else shlex.join(words)


def _is_plain(claim: Hypothesis) -> bool:
    """Whether a topic in words can name both values."""
    values = (claim.control, claim.treatment)
    return claim.variable not in (REWARD, CONFIGURATION) and not any(
        value == BUILT_IN or isinstance(value, bool | Mapping | list) or value is None for value in values
    )


def _untried(design: Design, claim: Hypothesis) -> Any:
    """Return a further value that the design has no arm for; None where there is none."""
    further = _further(claim)
    tried = [arm.overrides.get(claim.variable) for arm in design.arms]
    return None if further in tried else further


def _further(claim: Hypothesis) -> Any:
    """Return the next value in the direction from control to treatment; None where that is no safe guess."""
    control, treatment = claim.control, claim.treatment
    if isinstance(control, bool) or isinstance(treatment, bool):
        return None
    if isinstance(control, int) and isinstance(treatment, int) and min(control, treatment) > 0:
        ratio, rest = divmod(max(control, treatment), min(control, treatment))
        up = treatment > control
        if rest or (not up and treatment % ratio):
            return None
        return treatment * ratio if up else treatment // ratio
    if isinstance(control, float) and isinstance(treatment, float) and min(control, treatment) > 0:
        value = treatment * treatment / control
        return float(f"{value:.3g}") if max(value, treatment) < _SMALL else None
    return None


def _budget(seconds: float) -> str:
    """Return seconds as `--budget` takes them, rounded up to whole minutes."""
    return f"{math.ceil(seconds / 60)}m"


_URGENCY: Final = ("invalid", "inconclusive", "supported", "refuted", "equivalent")
"""Which of several verdicts the next question is about: what is open first."""
