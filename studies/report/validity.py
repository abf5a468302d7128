"""Checks and threats to validity, observed noise.

Each rule looks at the state and the evidence and says nothing when it does not apply. `passed` is a check that
held, `failed` one that did not, `threat` something that weakens the conclusion, `note` something to know.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Final, Literal

from studies.checks.conditions import find_confounders
from studies.checks.training import (
    count_without_signal,
    describe_zero_lr_run,
    find_fault,
    find_zero_lr_run,
    list_unreported,
)
from studies.log.study import StudyState
from studies.records.design import SUCCESS, Design
from studies.records.runs import Conditions
from studies.records.statements import metric_name
from studies.report.claims import protocol_deviations, warn_generated_rewards
from studies.report.design_tables import what_differs
from studies.report.elements import Remark, note, threat
from studies.report.evidence import BEFORE, Evidence
from studies.report.measures import warn_measure
from studies.report.run_tables import warn_custom_environments, warn_sandboxes
from studies.report.wording import capital, format_signed, number, one_line, percent, plural, span
from studies.statistics.comparison import is_constant, spread_interval
from studies.verdicts.judge import find_violations, gather

SMALL_ARM: Final = 10
"""Runs per arm below which a report says that the sample is small."""
_CEILING: Final = 0.95
_NOT_COMPARED: Final = frozenset({"stopped_by", "drawn_tasks", "course", "signal_steps", "probs_diff", "stillness"})
"""Conditions that say how a run went, and are no terms of a comparison."""


@dataclass(frozen=True, slots=True)
class ObservedNoise:
    """The spread between seeds within arms, pooled over all of them."""

    planned: float
    seen: float
    low: float
    high: float
    """Ends of the 95 % interval of what is behind `seen`, for normal noise."""

    @property
    def ratio(self) -> float:
        return self.seen / self.planned


def noise_observed(state: StudyState) -> ObservedNoise | None:
    """Return the noise that the runs of all arms showed; None where the bank said nothing, or no run can tell."""
    design = state.design
    if design is None or design.noise is None:
        return None
    arms = [
        list((data.drop_collapsed() if design.collapse is not None else data.runs(design.metric.worst)).numbers)
        for data in gather(state, look=max(1, len(design.looks))).values()
    ]
    told = [values for values in arms if len(values) > 1]
    if not told or all(is_constant(values) for values in told):
        return None
    df = sum(len(values) - 1 for values in told)
    squares = sum(math.fsum((value - fmean(values)) ** 2 for value in values) for values in told)
    low, high = spread_interval(squares, df)
    return ObservedNoise(design.noise.sd, math.sqrt(squares / df), low, high)


def checks(state: StudyState, evidence: Evidence) -> tuple[Remark, ...]:
    """Return what was checked and how it came out."""
    return tuple(chain.from_iterable(rule(state, evidence) for rule in _CHECKS))


def threats(state: StudyState, evidence: Evidence) -> tuple[Remark, ...]:
    """Return what weakens the conclusion, and what is to be known beside it."""
    of_design = () if state.design is None else (rule(state, state.design, evidence) for rule in _DESIGN_THREATS)
    return tuple(chain(*of_design, *(rule(state, evidence) for rule in _THREATS)))


def _check_lock(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Check the lock, and that arms and runs differ in what it says and in nothing else."""
    if evidence.lock_error is not None:
        yield Remark("failed", f"{capital(evidence.lock_error)}.")
    if state.locked and state.first_launch and state.locked.seq < state.first_launch.seq:
        yield Remark(
            "passed",
            f"The design was locked (event {state.locked.seq}) before the first launch "
            f"(event {state.first_launch.seq}), and every run carries its hash.",
        )
    if state.design is None or not state.runs:
        return
    between = find_confounders(state)
    for name, fields in between.items():
        yield Remark("failed", f"The arms of {name} differ in more than its variable: {', '.join(fields)}.")
    if not between:
        what = "resolved jobs and rewards" if state.design.code else "resolved jobs"
        variables = what_differs(state.design)
        yield Remark("passed", f"The {what} of compared arms differ in {variables} and in nothing else.")


def _check_conditions(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    recorded = [seen for run in state.runs_in("confirm") if (seen := run.conditions) not in (None, Conditions())]
    if state.design is None or not recorded:
        return
    clean = bool(state.verdicts)
    for verdict in state.verdicts:
        for violation in find_violations(state, verdict.hypothesis, gather(state, look=verdict.look)):
            clean = False
            said = f"{verdict.hypothesis}: {violation.sentence} ({violation.code})."
            yield Remark("failed" if violation.blocks else "threat", said)
    compared = [name for name in Conditions.model_fields if name not in _NOT_COMPARED]
    known = {name for name in compared if any(getattr(seen, name) is not None for seen in recorded)}
    if clean:
        alike = ", ".join(name.replace("_", " ") for name in compared if name in known)
        yield Remark("passed", f"The runs of compared arms were alike in {alike}.")
    if unknown := [name.replace("_", " ") for name in compared if name not in known]:
        yield note(f"No run says anything about {', '.join(unknown)}; the arms were not compared in it.")


def _check_numbers(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Tell what was computed again, how the arms began, and whether a training at a rate of 0 changed nothing."""
    if evidence.files:
        numbers = sum(len(run.recomputed) for run in evidence.runs.values())
        yield Remark(
            "passed",
            f"{plural(evidence.files, 'file')} matched the sha256 written when it was collected; "
            f"{plural(numbers, 'measurement')} computed again from the episodes gave the same values.",
        )
    if judged := len(state.verdicts) + len(state.replications):
        again = f"{plural(judged, 'verdict')} computed again from the runs listed here came out the same."
        yield Remark("passed", again)
    arms = state.design.arms if state.design is not None else ()
    before = {arm.name: list(state.values(arm.name, BEFORE).values()) for arm in arms}
    if before and all(before.values()):
        ranges = "; ".join(f"{arm} {number(min(vs))} to {number(max(vs))}" for arm, vs in before.items())
        yield note(f"Before training, hidden success of the arms' runs stood at: {ranges}.")
    run = find_zero_lr_run(state)
    if run is not None and run.status == "collected":
        level: Literal["failed", "note", "passed"] = "note" if list_unreported(run.conditions) else "passed"
        yield Remark("failed" if find_fault(run.conditions) else level, f"{capital(describe_zero_lr_run(run))}.")


def _warn_logs(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Tell of late amendments, of the watchdog's alarms, and of copies at W&B, on which nothing rests."""
    yield from map(threat, protocol_deviations(state))
    for run in state.runs.values():
        for alarm in (run.collected or {}).get("alarms", ()):
            where = f"The watchdog in run {run.run_id} of {run.spec.arm}, step {alarm['step']}"
            yield threat(f"{where}: {alarm['sentence']} ({alarm['code']}).")
    for run in state.runs.values():
        for attempt in (attempt for attempt in run.attempts if attempt.standing == "failed"):
            which = f"W&B's copy of run {run.run_id}, attempt {attempt.number}"
            yield note(f"{which} was not whole when last looked at: {one_line(attempt.standing_reason)}.")


def _warn_invalid(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    given_up = [run for run in state.runs_in("confirm") if run.invalid is not None]
    if unbegun := sum(not run.attempts for run in given_up):
        yield note(f"{plural(unbegun, 'planned run')} never began: no result of theirs is left out.")
    codes = Counter((run.spec.arm, run.invalid[0]) for run in given_up if run.invalid is not None and run.attempts)
    counted = state.design.counted_as_worst if state.design else ()
    worst, left_out = (
        ", ".join(
            f"{plural(n, 'run')} of {arm} by {code}"
            for (arm, code), n in codes.items()
            if (code in counted) == is_worst
        )
        for is_worst in (True, False)
    )
    if worst:
        yield note(f"Runs that broke down by their own training count with the worst value ({worst}).")
    if left_out:
        yield threat(
            f"Invalid runs are left out of the analysis ({left_out}). If they were lost because of their arm, what is "
            "left of it looks better than it is."
        )


def _warn_retries(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    retried = [run for run in state.runs.values() if len(run.attempts) > 1]
    if anew := [run for run in retried if len(run.lineage) == 1]:
        tries = ", ".join(f"{run.run_id}: {len(run.attempts)}" for run in anew)
        yield threat(
            f"{plural(len(anew), 'run')} needed more than one attempt ({tries}); "
            "a retry starts from nothing with the same seed, and only the attempt that finished counts."
        )
    told = []
    for run in (run for run in retried if len(run.lineage) > 1):
        steps = [attempt.resumed_at for attempt in run.lineage if attempt.resumes is not None]
        known = " and ".join(str(step) for step in steps if step is not None)
        after = f", after step {known}" if known else ""
        told.append(f"{run.run_id}: {plural(len(run.attempts), 'attempt')}{after}")
    if told:
        yield note(
            f"{plural(len(told), 'run')} went on where an earlier attempt had ended ({', '.join(told)}). Each batch is "
            "learned once: what was trained after the last checkpoint is learned again from the same recorded tokens. "
            "On a CPU the weights are then bit-equal to those of the same batches learned without interruption; on an "
            "accelerator they may differ by rounding."
        )


def _warn_peeking(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Tell of verdicts that came before the data were whole, and of runs that had nothing to learn from."""
    if state.superseded:
        yield threat(
            f"{plural(len(state.superseded), 'earlier verdict')} came before the data were complete. Looking before "
            "the end raises the chance of a false finding if the study could have ended there."
        )
    if counts := count_without_signal(state):
        said = ", ".join(f"{none} of {runs} with {arm}" for arm, (none, runs) in counts.items())
        yield threat(
            f"Runs that had nothing to learn from: {said}. In none of their steps did rewards differ within a group, "
            "so that they show what the model was and not what training does."
        )


def warn_noise(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    found = noise_observed(state)
    if found is None or found.low <= found.planned <= found.high or state.design is None:
        return
    unit = state.design.metric.unit
    times = f"{found.ratio:.1f} times as large" if found.ratio > 1 else f"{1 / found.ratio:.1f} times smaller"
    yield Remark(
        "threat" if found.ratio > 1 else "note",
        f"Planned on a noise between seeds of {number(found.planned, unit=unit)}; the runs show "
        f"{number(found.seen, unit=unit)} (95 % interval {number(found.low, unit=unit)} to "
        f"{number(found.high, unit=unit)}), {times}.",
    )


def warn_collapsed(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    if state.design is None or state.design.collapse is None:
        return
    for arm, data in gather(state, look=max(1, len(state.design.looks))).items():
        if data.broken:
            of = len(data.values) + len(data.worst)
            said = f"{data.broken} of {plural(of, 'training')} with {arm} collapsed, no part of its mean"
            yield threat(f"{said}: what is claimed is about those that did not.")


def warn_miscalibrated(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    for verdict in state.verdicts if state.design is not None else ():
        if verdict.within_prediction is False and state.design is not None:
            predicted, metric = state.design.hypothesis(verdict.hypothesis).prediction, state.design.metric
            yield note(
                f"The observed difference in {metric_name(metric)} "
                f"({format_signed(verdict.estimate, unit=metric.unit)}) fell outside the interval predicted for "
                f"{verdict.hypothesis} ({span(predicted.low, predicted.high, unit=metric.unit)}): "
                "the planner's picture of the effect was off, whatever the verdict."
            )


def _warn_few_runs(state: StudyState, design: Design, evidence: Evidence) -> Iterator[Remark]:
    """Tell of runs that are missing, of confounds that were feared, and of small or unequal arms."""
    runs = state.runs_in("confirm")
    planned = len(runs) if len(design.looks) > 1 and runs else len(design.arms) * len(design.seeds)
    finished = sum(run.status == "collected" for run in runs)
    if finished < planned:
        why = f" ({state.stopped_reason})" if state.stopped_reason else ""
        yield threat(f"The study is partial: {finished} of {planned} designed runs were collected{why}.")
    for claim in (claim for claim in design.hypotheses if claim.confounds):
        said = "; ".join(one_line(confound) for confound in claim.confounds)
        yield threat(
            f'Feared for {claim.id} before the data, quoted from its lock, and not ruled out by the design: "{said}".'
        )
    counts = {arm.name: len(state.values(arm.name)) for arm in design.arms}
    if min(counts.values()) < SMALL_ARM:
        said = ", ".join(f"{n} with {arm}" for arm, n in counts.items())
        yield threat(f"Few runs per arm ({said}): one unusual seed can move a mean.")


def _warn_design(state: StudyState, design: Design, evidence: Evidence) -> Iterator[Remark]:
    """Tell of claims without a correction, and of arms near an end of the range."""
    k = len(design.hypotheses)
    if k > 1 and design.multiplicity == "none":
        risk = percent(round(1 - (1 - design.alpha) ** k, 2))
        yield threat(
            f"{k} hypotheses were tested without correction: if none were true, the chance that at least one interval "
            f"still excludes zero would be up to about {risk}."
        )
    for arm in design.arms if design.metric.key == SUCCESS else ():
        values = state.values(arm.name).values()
        level = fmean(values) if values else 0.5
        if level > _CEILING:
            said = "nearly all hidden tasks: near the ceiling"
            yield threat(f"{arm.name} solves {said}, differences look smaller.")
        elif level < 1 - _CEILING:
            said = "hardly any hidden task: near the floor"
            yield threat(f"{arm.name} solves {said}, differences look smaller.")


def _warn_setting(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    if state.design is None:
        return
    model = state.design.base_job.get("model")
    tiny = isinstance(model, dict) and model.get("kind", "tiny") == "tiny"
    said = "a tiny language model made on the spot" if tiny else "one model"
    yield threat(
        f"One environment ({state.design.environment}) and {said}: the verdict holds for this setting; whether it "
        "carries over to others was not tested."
    )
    yield threat(
        "Every other field was held at one value and not tuned for each arm: an arm may be better at its own best "
        "settings than it looks here."
    )


_Rule = Callable[[StudyState, Evidence], Iterator[Remark]]
_CHECKS: Final[tuple[_Rule, ...]] = (_check_lock, _check_conditions, _check_numbers)
_THREATS: Final[tuple[_Rule, ...]] = (
    _warn_logs, warn_generated_rewards, _warn_invalid, _warn_retries, _warn_peeking, warn_collapsed, warn_noise,
    warn_miscalibrated, warn_sandboxes, warn_custom_environments, warn_measure, _warn_setting,
)  # fmt: skip
_DESIGN_THREATS: Final = (_warn_few_runs, _warn_design)
