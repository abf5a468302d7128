"""What to ask next, by rules, as one command that can be typed: it follows from the verdict, never from a planner.

Whether a command can be had is for the design compiler to say, which this room does not know: `leads` are what may be
asked, and `study.concluded` holds the first of them that was compiled.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from studies.log.study_state import StudyState
from studies.records.base import JsonValue
from studies.records.design import BUILT_IN, CONFIGURATION, MODEL, REWARD, SUCCESS, Design, Hypothesis
from studies.records.verdict import Verdict
from studies.report.headline.practice import fewest, sight
from studies.report.parts.wording import value_of

_MOST_LONGER: Final = 8.0
"""A study that would take more than so many times its budget is not proposed."""
_SAFELY: Final = 0.9
"""Part of what trainings ended at that a threshold they reach may have."""
_GRAIN: Final = 0.05
"""What thresholds are rounded down to."""
_MOST_TIMES: Final = 4
"""A value further on is at most so many times the last one that was tried."""
_SMALL: Final = 0.1
"""A number below it is taken to be a rate or a coefficient that may be scaled up once more."""


@dataclass(frozen=True, slots=True)
class AskedStudy:
    """What a proposed command asks: as much as it takes to compile it."""

    budget_s: float
    topic: str | None = None
    """None for the study's own question, with all that its flags say."""
    environment: str | None = None
    """What a flag names; None for what the topic names."""
    metric: str = ""
    effect: float | None = None


@dataclass(frozen=True, slots=True)
class NextQuestion:
    """What is worth doing next, in a clause, and the command that does it; empty where there is none."""

    why: str
    command: str
    asks: AskedStudy | None = None
    """None for a command that begins no study."""


def ask_next(state: StudyState) -> NextQuestion:
    """Return what to ask next: what was compiled when the study ended; of older studies a plan, which runs nothing."""
    if (going_on := _go_on(state)) is not None:
        return going_on
    if state.asked_next is not None:
        return NextQuestion(state.asked_next["why"], state.asked_next["command"])
    first = leads(state)[0]
    return replace(first, command=first.command.replace("ajet research", "ajet study plan", 1))


def leads(state: StudyState) -> tuple[NextQuestion, ...]:
    """Return what may be asked next, the best first. Only the compiler knows whether it can be had."""
    if state.declined:
        return (NextQuestion("the question in other words, as the planner declined it", "ajet study plan '...'"),)
    design = state.design
    judged = [(design.hypothesis(verdict.hypothesis), verdict) for verdict in state.verdicts] if design else []
    if design is None or not judged:
        return (_again(state, "the same question with more time", 2.0),)
    judged.sort(key=lambda entry: _URGENCY.index(entry[1].verdict))
    return tuple(lead for claim, verdict in judged for lead in _after(state, design, claim, verdict))


def _go_on(state: StudyState) -> NextQuestion | None:
    """Return how an unfinished study goes on; None for one that is concluded."""
    resume = f"ajet study resume {state.id}"
    if state.stopped_reason is not None and state.concluded_reason is None:
        if state.denial is not None or "budget" not in state.stopped_reason:
            return NextQuestion("the rest of this study", resume)
        more = f'ajet study amend {state.id} --budget {_minutes(2 * state.budget_s)}m --reason "more time"'
        return NextQuestion("the rest of this study, with more time", f"{more} && {resume}")
    if state.status == "paused":
        return NextQuestion("the rest of this study", resume)
    if state.status == "waiting":
        return NextQuestion("what this study waits for, once it is approved", f"ajet study approve {state.id}")
    if state.status in ("planning", "running"):
        return NextQuestion("nothing before this study ends", f"ajet study watch {state.id}")
    return None


def _after(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> Iterator[NextQuestion]:
    if claim.open and verdict.verdict == "refuted":  # no side was named: what is better is what goes on
        turned = claim.model_copy(update={"control": claim.treatment, "treatment": claim.control})
        better = verdict.model_copy(update={"verdict": "supported", "collapses": verdict.collapses[::-1]})
        yield from _after(state, design, turned, better)
        return
    further = _untried(state, design, claim, verdict)
    if verdict.verdict == "inconclusive":
        yield from _with_more(state, design, claim, verdict, further)
    elif verdict.verdict == "supported":
        if further is not None:
            why = f"whether {value_of(further)} goes further"
            yield _compare(state, design, claim, why, (claim.treatment, further))
        yield _compare(state, design, claim, "whether it holds again, on fresh seeds")
    elif verdict.verdict == "refuted":
        why = "whether the opposite holds, as a claim of its own on fresh seeds"
        yield _compare(state, design, claim, why, (claim.treatment, claim.control))
    elif verdict.verdict == "equivalent" and further is not None:
        yield _compare(state, design, claim, "a larger contrast", (claim.control, further))
    elif verdict.verdict == "invalid":
        yield _again(state, "the same again, once what made it invalid is mended", 1.0)
    if any(rate.count for rate in verdict.collapses):
        yield _compare(state, design, claim, "which of them collapses more often", metric="collapse")
    elif verdict.verdict == "equivalent" and further is None:
        yield NextQuestion("something else: here nothing that matters was left to find", "ajet study plan '...'")


def _with_more(
    state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict, further: Any
) -> Iterator[NextQuestion]:
    if verdict.reached and verdict.estimate is None and (nearer := _nearer(state, design, claim)) is not None:
        why = f"which is faster to {nearer:g}, which most trainings reach"
        yield _compare(state, design, claim, why, metric=f"{design.metric.kind}:{nearer:g}")
    found = sight(design, claim, verdict)
    runs = fewest(verdict)
    longer = max(2.0, found.seeds / runs) if found is not None and found.seeds is not None else 2.0
    if longer > _MOST_LONGER and further is not None:
        why = "a larger contrast: this one needs too many seeds"
        yield _compare(state, design, claim, why, (claim.control, further))
    longer = min(longer, _MOST_LONGER)
    yield _compare(state, design, claim, "the same comparison with more seeds", longer=longer)


def _compare(
    state: StudyState,
    design: Design,
    claim: Hypothesis,
    why: str,
    values: tuple[JsonValue, JsonValue] | None = None,
    *,
    longer: float = 1.0,
    metric: str = "",
) -> NextQuestion:
    """Return a comparison of two values of the claim's variable; of the claim itself where none are given.

    `metric` is another one than the design's.
    """
    whole = claim.sought == "equivalence" or claim.kind != "difference"
    if not _is_plain(claim) or (values is None and whole and not metric):
        return _again(state, why, longer)
    left, right = (value_of(value) for value in values or (claim.control, claim.treatment))
    steps = design.base_job.get("steps")
    trained = f" with {steps} training steps" if isinstance(steps, int) and claim.variable != "steps" else ""
    matched = " at the same number of episodes" if claim.matched == "episodes" else ""
    brought = design.environment in {known.name for known in design.environments}
    asked = AskedStudy(
        budget_s=60.0 * _minutes(longer * state.budget_s),
        topic=f"{claim.variable} {left} vs {right}{'' if brought else f' on {design.environment}'}{trained}{matched}",
        environment=design.environment if brought else None,
        metric=metric or _metric(design),
        effect=design.promise.effect if design.promise is not None and metric != "collapse" else None,
    )
    return NextQuestion(why, _typed(state, asked), asked)


def _typed(state: StudyState, asked: AskedStudy) -> str:
    """Return the command that asks it."""
    where = f" --env {shlex.quote(asked.environment)}" if asked.environment else ""
    metric = f" --metric {shlex.quote(asked.metric)}" if asked.metric else ""
    effect = "" if asked.effect is None else f" --effect {asked.effect:g}"
    budget = f" --budget {_minutes(asked.budget_s)}m"
    return f"ajet research {shlex.quote(asked.topic or '')}{where}{_base(state)}{metric}{effect}{budget}"


def _metric(design: Design) -> str:
    """Return the metric as a flag names it; nothing for what is compared anyhow."""
    metric = design.metric
    of = metric.of or ("" if metric.threshold is None else f"{metric.threshold:g}")
    return metric.kind + (f":{of}" if metric.kind and of else "")


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


def _again(state: StudyState, why: str, longer: float) -> NextQuestion:
    """Return the study's own command with `longer` times its budget."""
    command, budget = state.command, f"{_minutes(longer * state.budget_s)}m"
    if isinstance(command, str) or not isinstance(command, list | tuple):
        return NextQuestion(why, str(command), AskedStudy(state.budget_s))
    words = [str(word) for word in command]
    kept = [word for word in words if not word.startswith("--budget=")]
    if "--budget" in words[:-1]:
        kept = words
        kept[words.index("--budget") + 1] = budget
    elif longer != 1.0 or kept != words:
        kept += ["--budget", budget]
    return NextQuestion(why, shlex.join(kept), AskedStudy(longer * state.budget_s))


def _is_plain(claim: Hypothesis) -> bool:
    """Whether a topic in words can name both values."""
    values = (claim.control, claim.treatment)
    return claim.variable not in (REWARD, CONFIGURATION, MODEL) and not any(
        value == BUILT_IN or isinstance(value, bool | Mapping | list) or value is None for value in values
    )


def _untried(state: StudyState, design: Design, claim: Hypothesis, verdict: Verdict) -> Any:
    """Return a value further on; None where there is none, one as far was tried, or the way there collapses."""
    further = _further(claim)
    if further is None or any(rate.count for rate in verdict.collapses[1:]):
        return None
    designs = (each.design for each in state.rounds if each.design is not None)
    here = [each for each in designs if each.environment == design.environment]
    tried = (arm.overrides.get(claim.variable) for each in here for arm in each.arms)
    beyond = (value for value in tried if isinstance(value, int | float))
    return None if any((v - claim.treatment) * (further - claim.treatment) > 0 for v in beyond) else further


def _further(claim: Hypothesis) -> Any:
    """Return the next value in the direction from control to treatment; None where that is no safe guess."""
    control, treatment = claim.control, claim.treatment
    if isinstance(control, bool) or isinstance(treatment, bool):
        return None
    if isinstance(control, int) and isinstance(treatment, int) and min(control, treatment) > 0:
        ratio, rest = divmod(max(control, treatment), min(control, treatment))
        ratio, up = min(ratio, _MOST_TIMES), treatment > control
        if rest or (not up and treatment % ratio):
            return None
        return treatment * ratio if up else treatment // ratio
    if isinstance(control, float) and isinstance(treatment, float) and min(control, treatment) > 0:
        value = treatment * min(max(treatment / control, 1 / _MOST_TIMES), _MOST_TIMES)
        return float(f"{value:.3g}") if max(value, treatment) < _SMALL else None
    return None


def _minutes(seconds: float) -> int:
    """Return seconds in whole minutes, as `--budget` takes them, rounded up."""
    return math.ceil(seconds / 60)


_URGENCY: Final = ("invalid", "inconclusive", "supported", "refuted", "equivalent")
"""Which of several verdicts the next question is about: what is open first."""
