"""Checks and threats to validity, and other measures of the same runs.

Each rule looks at the state and the evidence and says nothing when it does not apply. `passed` is a check that held,
`failed` one that did not, `threat` something that weakens the conclusion, `note` something to know.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Final, Literal

from studies.checks import conditions
from studies.checks.conditions import describe_zero_lr_run, find_fault, find_zero_lr_run, list_unreported
from studies.log.study import StudyState
from studies.records.design import REWARD, SUCCESS, Design, Hypothesis, Metric
from studies.records.runs import TRAINING_AREA, Conditions
from studies.records.statements import metric_name
from studies.records.verdict import PlannerMessage, Verdict, one_line, planner_label
from studies.report import elements
from studies.report.claims import warn_generated_rewards
from studies.report.elements import Remark, Table, count_of, is_mostly_cut, is_rate, note, table, threat
from studies.report.evidence import BEFORE, Evidence
from studies.report.prose import quote_held
from studies.report.tables import warn_custom_environments, warn_sandboxes, what_differs
from studies.report.wording import NONE, capital, format_signed, in_unit, number, percent, plural, setting, span
from studies.statistics.comparison import contrast, is_constant, spread_interval, welch
from studies.statistics.proportions import difference as exact_difference
from studies.verdicts.judge import find_violations, gather
from studies.verdicts.scope import find_unobserved_misses

SMALL_ARM: Final = 10
"""Runs per arm below which a report says that the sample is small."""
_CEILING: Final = 0.95
_LEAST_TASKS: Final = 8
"""Hidden tasks from which on it is told how a difference varies between them."""
_SURELY = 3.0
"""Standard errors by which arms lie apart before they are trained for it to be told."""
_NOT_COMPARED: Final = frozenset({
    "stopped_by", "drawn_tasks", "untrained", "course", "signal_steps", "probs_diff", "stillness",
})  # fmt: skip
"""Conditions that say how a run went, and are no terms of a comparison."""
SIMULATED_KINDS: Final = frozenset({"", "success", "gain", "area", "episodes", "seconds", "collapse"})
"""Kinds on which somebody measured how often a verdict is wrong; the empty one is of old designs."""
LEVEL = 0.95
_WHY_EXPLORATORY: Final = (
    "an amendment made after the first result let pass what the locked rules would have stopped, or cut the budget so "
    "that its look came early.",
    "its look was judged before, on what a budget had carried, and its level was spent then.",
)
Arms = dict[str, list[float]]


def remarks(state: StudyState, evidence: Evidence) -> tuple[Remark, ...]:
    """Return what was checked and how it came out, what weakens the conclusion, and what is to be known beside it."""
    found = list[Remark]()
    for rule in _RULES:
        if rule not in _OF_DESIGN:
            found += rule(state, evidence)
        elif state.design is not None:
            found += rule(state, evidence, state.design)
    return tuple(found)


def _check_lock(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    if evidence.lock_error is not None:
        yield Remark("failed", f"{capital(evidence.lock_error)}.")
    if state.locked and state.first_launch and state.locked.seq < state.first_launch.seq:
        yield Remark(
            "passed",
            f"The design was locked (event {state.locked.seq}) before the first launch under it "
            f"(event {state.first_launch.seq}), and every run carries its hash.",
        )
    if state.design is None or not state.runs:
        return
    between = conditions.find_confounders(state)
    for name, fields in between.items():
        yield Remark("failed", f"The arms of {name} differ in more than its variable: {', '.join(fields)}.")
    if not between:
        rewards = any(REWARD in arm.slots for arm in state.design.arms)
        beside = " and rewards" if rewards else " and code" if state.design.code else ""
        what = f"resolved jobs{beside} of compared arms"
        yield Remark("passed", f"The {what} differ in {what_differs(state.design)} and in nothing else.")


def _check_conditions(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    recorded = [seen for run in state.runs_in("confirm") if (seen := run.conditions) not in (None, Conditions())]
    if not recorded:
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
    if files := sum(len(run.files) for run in evidence.runs.values()):
        numbers = sum(len(run.recomputed) for run in evidence.runs.values())
        yield Remark(
            "passed",
            f"{plural(files, 'file')} matched the sha256 written when it was collected; "
            f"{plural(numbers, 'measurement')} computed again from the episodes gave the same values.",
        )
    if judged := len(state.verdicts) + len(state.replications):
        again = f"{plural(judged, 'verdict')} computed again from the runs listed here came out the same."
        yield Remark("passed", again)
    arms = state.design.arms if state.design is not None else ()
    confirmed = [run for run in state.runs_in("confirm") if run.status == "collected"]
    sharing = Counter(run.untrained for run in confirmed if run.untrained)
    for source, count in sharing.items():
        untrained = state.every_run[source].measurements.get(BEFORE)
        if untrained is not None:
            yield note(
                f"The untrained policy was evaluated once, by run {source}: hidden success {number(untrained.value)} "
                f"on {plural(untrained.n, 'episode')}. It stands before training in {count} of "
                f"{plural(len(confirmed), 'run')}, so that what chance there is in it is the same for all of them."
            )
    before = {
        arm.name: [value for run, value in state.values(arm.name, BEFORE).items() if not state.runs[run].untrained]
        for arm in arms
    }
    before = {arm: values for arm, values in before.items() if values or not sharing}
    if before and all(before.values()):
        ranges = "; ".join(f"{arm} {number(min(vs))} to {number(max(vs))}" for arm, vs in before.items())
        yield note(f"Before training, hidden success of the arms' runs stood at: {ranges}.")
    if (run := find_zero_lr_run(state)) is not None and run.status == "collected":
        level: Literal["failed", "note", "passed"] = "note" if list_unreported(run.conditions) else "passed"
        yield Remark("failed" if find_fault(run.conditions) else level, f"{capital(describe_zero_lr_run(run))}.")


def _warn_logs(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    for verdict in (verdict for verdict in (*state.verdicts, *state.replications) if verdict.exploratory):
        short = state.is_judged_short(verdict.hypothesis, verdict.look, verdict.phase)
        yield threat(f"The verdict on {verdict.hypothesis} is exploratory: {_WHY_EXPLORATORY[short]}")
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
    worst, left_out = list[str](), list[str]()
    for (arm, code), n in codes.items():
        counts = state.design is not None and code in state.design.counted_as_worst
        (worst if counts else left_out).append(f"{plural(n, 'run')} of {arm} by {code}")
    if worst:
        yield note(f"Runs that broke down by their own training count with the worst value ({', '.join(worst)}).")
    if left_out:
        yield threat(
            f"Invalid runs are left out of the analysis ({', '.join(left_out)}). If they were lost because of their "
            "arm, what is left of it looks better than it is."
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
    if state.superseded:
        yield threat(
            f"{plural(len(state.superseded), 'earlier verdict')} came before the data were complete. Looking before "
            "the end raises the chance of a false finding if the study could have ended there."
        )
    if counts := conditions.count_without_signal(state):
        said = ", ".join(f"{none} of {runs} with {arm}" for arm, (none, runs) in counts.items())
        yield threat(
            f"Runs that had nothing to learn from: {said}. In none of their steps did rewards differ within a group, "
            "so that they show what the model was and not what training does."
        )


def warn_noise(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    """Tell of a spread between seeds, pooled over arms, with a 95 % interval for normal noise that lacks the bank's."""
    if design.noise is None or design.pilot is not None:  # of a pilot its own runs told it, blind
        return
    data = gather(state, look=max(1, len(design.looks))).values()
    arms = [arm.drop_collapsed() if design.collapse is not None else arm.runs(design.metric.worst) for arm in data]
    told = [arm.numbers for arm in arms if len(arm.values) > 1]
    if not told or all(is_constant(values) for values in told):
        return
    df = sum(len(values) - 1 for values in told)
    squares = sum(math.fsum((value - fmean(values)) ** 2 for value in values) for values in told)
    low, high = spread_interval(squares, df)
    if low <= design.noise.sd <= high:
        return
    seen, unit = math.sqrt(squares / df), design.metric.unit
    ratio = seen / design.noise.sd
    times = f"{ratio:.1f} times as large" if ratio > 1 else f"{1 / ratio:.1f} times smaller"
    yield Remark(
        "threat" if ratio > 1 else "note",
        f"Planned on a noise between seeds of {number(design.noise.sd, unit=unit)}; the runs show "
        f"{number(seen, unit=unit)} (95 % interval {number(low, unit=unit)} to {number(high, unit=unit)}), {times}.",
    )


def warn_collapsed(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    for arm, data in gather(state, look=max(1, len(design.looks))).items() if design.collapse is not None else ():
        if data.broken:
            count = f"{data.broken} of {plural(len(data.values) + len(data.worst), 'training')} with {arm}"
            yield threat(f"{count} collapsed, no part of its mean: what is claimed is about those that did not.")


def warn_miscalibrated(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    for verdict in state.verdicts:
        if verdict.within_prediction is False:
            predicted, unit = design.hypothesis(verdict.hypothesis).prediction, design.metric.unit
            yield note(
                f"The observed difference in {metric_name(design.metric)} "
                f"({format_signed(verdict.estimate, unit=unit)}) fell outside the interval predicted for "
                f"{verdict.hypothesis} ({span(predicted.low, predicted.high, unit=unit)}): the planner's picture of "
                "the effect was off, whatever the verdict."
            )


def _warn_design(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    runs = state.runs_in("confirm")
    cut = any(verdict.last is not None for verdict in state.verdicts)
    planned = len(runs) if len(design.looks) > 1 and runs and not cut else len(design.arms) * len(design.seeds)
    finished = sum(run.status == "collected" for run in runs)
    if finished < planned:
        why = f" ({state.stopped_reason})" if state.stopped_reason else ""
        yield threat(f"The study is partial: {finished} of {planned} designed runs were collected{why}.")
    by = planner_label(str(state.planner["name"]), state.planner.get("model"))
    for claim in design.hypotheses:
        variables = tuple(f"{name}: " for name in claim.varied)  # code begins so, and lets no planner's words do
        told = [[line for line in claim.confounds if line.startswith(variables) is own] for own in (True, False)]
        if known := "; ".join(told[0]):
            yield threat(f"What comes with the variable of {claim.id}, and is not ruled out by the design: {known}.")
        if feared := "; ".join(told[1]):
            who = f"By {by}, for {claim.id}, before the data, and not ruled out by the design"
            words = PlannerMessage(by=who, text=feared, unfounded=())
            yield Remark("feared", f"{quote_held(words, state.rounds_before)}.")
    counts = {arm.name: len(state.values(arm.name)) for arm in design.arms}
    if min(counts.values()) < SMALL_ARM:
        said = ", ".join(f"{n} with {arm}" for arm, n in counts.items())
        yield threat(f"Few runs per arm ({said}): one unusual seed can move a mean.")
    k = len(design.hypotheses)
    if k > 1 and design.multiplicity == "none":
        risk = percent(round(1 - (1 - design.alpha) ** k, 2))
        yield threat(
            f"{k} hypotheses were tested without correction: if none were true, the chance that at least one interval "
            f"still excludes zero would be up to about {risk}."
        )
    for arm in design.arms if design.metric.key == SUCCESS else ():
        level = fmean(state.values(arm.name).values() or [0.5])
        if level > _CEILING:
            yield threat(f"{arm.name} solves nearly all hidden tasks: near the ceiling, differences look smaller.")
        elif level < 1 - _CEILING:
            yield threat(f"{arm.name} solves hardly any hidden task: near the floor, differences look smaller.")


def _warn_setting(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    model = design.base_job.get("model")
    tiny = isinstance(model, dict) and model.get("kind", "tiny") == "tiny"
    said = "a tiny language model made on the spot" if tiny else "one model"
    hidden = evidence.runs.values() if design.metric.kind != TRAINING_AREA else ()
    count = len({task for run in hidden for task in run.tasks})
    tasks = f", {plural(count, 'hidden task')} of it" if count else ""
    these = " and these tasks" if count else ""
    yield threat(
        f"One environment ({design.environment}){tasks} and {said}: the verdict holds for this setting{these}; "
        "whether it carries over to others was not tested."
    )
    yield threat(
        "Every other field was held at one value and not tuned for each arm: an arm may be better at its own best "
        "settings than it looks here."
    )


def _warn_tasks(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    for verdict in state.verdicts if design.metric.key == SUCCESS else ():
        data, names = gather(state, look=verdict.look), design.contrast_of(design.hypothesis(verdict.hypothesis))
        arms = [[evidence.runs[run].tasks for run in data[name].drop_collapsed().values] for name in names]
        if len(arms) > 2 or (found := task_spread(arms)) is None:
            continue
        sd, tasks = found
        error = math.sqrt(sum(variance(fmean(run.values()) for run in runs) / len(runs) for runs in arms))
        if (added := sd / math.sqrt(tasks)) > error / 2:
            yield threat(
                f"{verdict.hypothesis} is about these {plural(tasks, 'hidden task')}: the difference varies between "
                f"them (SD {number(sd)}), so that over other tasks of the environment its standard error would be "
                f"{number(math.hypot(error, added))}, not {number(error)}."
            )


def warn_begun(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    """Tell of arms that differ before they are trained: success after it holds a difference that no training made."""
    for verdict in state.verdicts if design.metric.key == SUCCESS else ():
        names = design.contrast_of(design.hypothesis(verdict.hypothesis))
        begun = [fmean(values) for name in names if (values := state.values(name, BEFORE).values())]
        if not len(names) == len(begun) == 2 or verdict.estimate is None:
            continue
        error = math.sqrt(sum(share * (1 - share) for share in begun) / design.metric.episodes)
        if abs(already := begun[1] - begun[0]) > _SURELY * error:
            yield threat(
                f"{verdict.hypothesis}: the arms differ before training already, {number(begun[1])} against "
                f"{number(begun[0])}, which success after training holds: of the difference of "
                f"{format_signed(verdict.estimate)}, training itself made {format_signed(verdict.estimate - already)}."
            )


def task_spread(arms: Sequence[Sequence[Mapping[str, float]]]) -> tuple[float, int] | None:
    """Return how much the difference of two arms varies between tasks beyond chance, and of how many."""
    tasks = sorted(arms[0][0]) if all(len(runs) > 1 for runs in arms) else []
    if len(tasks) < _LEAST_TASKS or any(run.keys() != set(tasks) for runs in arms for run in runs):
        return None
    about = [[{task: share - fmean(run.values()) for task, share in run.items()} for run in runs] for runs in arms]
    noise = fmean(sum(variance([run[task] for run in runs]) / len(runs) for runs in about) for task in tasks)
    control, treatment = ([fmean(run[task] for run in runs) for task in tasks] for runs in about)
    seen = variance([b - a for a, b in zip(control, treatment, strict=True)])
    if seen * (1 - 2 * math.sqrt(2 / (len(tasks) - 1))) <= noise:  # two standard errors of a variance
        return None
    return math.sqrt(seen - noise), len(tasks)


@dataclass(frozen=True, slots=True)
class OtherDifference:
    """Treatment less control in a measure that nobody asked for; the ends are None where no interval exists."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def apart(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def others_table(state: StudyState, evidence: Evidence) -> Table | None:
    """Return each other measure: the arms' means and spreads, the differences with intervals; None for none."""
    design, rows = state.design, []
    if design is None:
        return None
    for metric, arms in _list_measures(state, evidence, design):
        whole = metric.kind == "area" and metric.threshold is None
        row = [f"{metric_name(metric)} (speed and level together)" if whole else metric_name(metric)]
        for values in arms.values():
            mean, sd = elements.format_mean(metric, values), elements.format_spread(metric, values)
            row.append(mean if sd == NONE else f"{mean} ({sd})")
        found = (_contrast(design, claim, metric, arms) for claim in design.hypotheses)
        rows.append([*row, *(_format_difference(other, metric) for other in found)])
    columns = ["Measure", *(f"{arm.name}: mean (SD)" for arm in design.arms)]
    columns += [f"{claim.id}: difference, 95 % interval" for claim in design.hypotheses]
    return table(columns, rows, range(1, len(columns)))


def facts_table(state: StudyState) -> Table | None:
    arms = [arm.name for arm in state.design.arms] if state.design is not None else []
    values: dict[str, dict[str, list[float]]] = {}
    for arm in arms:
        for run in state.runs_of(arm):
            for name, value in (run.collected or {}).get("facts", {}).items():
                values.setdefault(name, {}).setdefault(arm, []).append(float(value))
    rows = [
        [name, *(number(fmean(known[arm])) if arm in known else NONE for arm in arms)]
        for name, known in sorted(values.items())
    ]
    return table(("Mean per play", *arms), rows, range(1, len(arms) + 1))


def surprises(state: StudyState, evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each verdict that other measures of its runs say something else than."""
    if (design := state.design) is None:
        return
    measures = list(_list_measures(state, evidence, design))
    for verdict in state.verdicts:
        claim = design.hypothesis(verdict.hypothesis)
        pairs = ((metric, _contrast(design, claim, metric, arms)) for metric, arms in measures)
        apart = [(metric, other) for metric, other in pairs if other is not None and other.apart]
        if against := [(metric, other) for metric, other in apart if _against(design, verdict, metric, other)]:
            differs = (f"{metric_name(metric)} differs by {_format_difference(o, metric)}" for metric, o in against)
            yield (
                f"{claim.id}: other measures of the same runs {_against(design, verdict, *against[0])}, with "
                f"{setting(claim, claim.treatment)}: {'; '.join(differs)}. None of them is in the lock, and one in "
                "twenty leaves zero out by chance."
            )


def _list_measures(state: StudyState, evidence: Evidence, design: Design) -> Iterator[tuple[Metric, Arms]]:
    own = {arm.name: state.values(arm.name) for arm in design.arms}
    seen = [[value for values in own.values() for value in values.values()]]
    for metric in evidence.others:
        others = {arm: [evidence.runs[run].others for run in runs] for arm, runs in own.items()}
        arms = {arm: [known[metric.key] for known in runs if metric.key in known] for arm, runs in others.items()}
        flat = [value for values in arms.values() for value in values]
        repeats = any(all(abs(x - y) < 1e-9 for x, y in zip(flat, other, strict=False)) for other in seen)
        if flat and len(flat) == len(seen[0]) and not repeats:
            seen.append(flat)
            yield metric, arms


def _contrast(design: Design, claim: Hypothesis, metric: Metric, arms: Arms) -> OtherDifference | None:
    if claim.kind != "difference":
        values = [arms[name] for name in design.contrast_of(claim)]
        if min(map(len, values)) < 2 or is_rate(metric) or any(is_mostly_cut(metric, numbers) for numbers in values):
            return None
        found = contrast(values, claim.weights)
        return None if found is None else OtherDifference(found.estimate, *found.interval(LEVEL))
    control, treatment = arms[design.control_arm], arms[design.arm_with(claim.variable, claim.treatment).name]
    if not control or not treatment or any(is_mostly_cut(metric, values) for values in (control, treatment)):
        return None
    estimate = fmean(treatment) - fmean(control)
    if is_rate(metric):
        return OtherDifference(estimate, *exact_difference(count_of(control), count_of(treatment), LEVEL))
    if min(len(control), len(treatment)) < 2 or (is_constant(control) and is_constant(treatment)):
        return OtherDifference(estimate)
    return OtherDifference(estimate, *welch(control, treatment).interval(LEVEL))


def _format_difference(found: OtherDifference | None, metric: Metric) -> str:
    if found is None:
        return NONE
    said = in_unit(format_signed(found.estimate, unit=metric.unit), metric)
    return said if found.low is None else f"{said} ({span(found.low, found.high, unit=metric.unit)})"


def _against(design: Design, verdict: Verdict, metric: Metric, found: OtherDifference) -> str:
    if verdict.verdict in ("inconclusive", "equivalent"):
        return "tell the arms apart, where the verdict does not"
    if verdict.verdict not in ("supported", "refuted") or verdict.estimate is None:
        return ""
    better = (verdict.estimate > 0) == design.metric.higher_is_better
    other = (found.estimate > 0) == metric.higher_is_better
    return "" if better == other else "point the other way than the verdict"


def warn_measure(state: StudyState, evidence: Evidence, design: Design) -> Iterator[Remark]:
    metric = design.metric
    if metric.kind == "area" and metric.threshold is None:
        yield threat(
            "The whole area under a curve confounds speed with the level that is reached: an arm that ends higher has "
            "more of it, however fast it was. Below a threshold (area:0.7) it is mostly of speed."
        )
    if metric.kind == TRAINING_AREA:
        yield threat(
            "What is compared is success on training tasks, as training played and learned them, with its exploration: "
            "speed and level together. That hidden tasks are solved sooner was not tested."
        )
    yield from _warn_cut(state, design) if metric.cut_at is not None else ()
    for verdict in state.verdicts if design.collapse is None else ():  # which has its own rates, and scope
        for one in find_unobserved_misses(metric, verdict):
            if one.breaking_share is not None and one.breaking_share <= one.upper:
                yield threat(
                    f"{verdict.hypothesis}: every run with {one.arm} got there. That the difference {one.undone} would "
                    f"not hold of all trainings if {percent(round(one.breaking_share, 3))} of them never did, and so "
                    f"few runs leave up to {percent(round(one.upper, 2))} open."
                )
    if metric.kind not in SIMULATED_KINDS:
        yield threat(
            f"How often a verdict on {metric_name(metric)} is wrong was not measured over simulated studies, as it was "
            "for hidden success: its error rate is that of the test's assumptions."
        )
    yield from (threat(said) for said in surprises(state, evidence))


def _warn_cut(state: StudyState, design: Design) -> Iterator[Remark]:
    for arm in design.arms:
        values = list(state.values(arm.name).values())
        if begun := sum(value <= 0 for value in values):
            count = f"{begun} of {plural(len(values), 'run')} with {arm.name}"
            yield threat(f"{count} stood at the threshold before training: of them the time says nothing.")
    cut = in_unit(f"{design.metric.cut_at:,.0f}", design.metric)
    for verdict in state.verdicts:
        missing = [rate for rate in verdict.reached if rate.count < rate.of]
        if len(missing) == 1 and (rate := missing[0]).count:
            yield threat(
                f"{verdict.hypothesis}: {rate.of - rate.count} of {plural(rate.of, 'run')} with {rate.arm} never got "
                f"there, and no run of the other arm: {cut} stand in for their time. The difference is in part one of "
                f"how often trainings get there (95 % limits with {rate.arm}: {number(rate.low, 2)} to "
                f"{number(rate.high, 2)}), and not of speed alone."
            )


_OF_DESIGN: Final[frozenset[Callable[..., Iterator[Remark]]]] = frozenset({
    _check_conditions, _warn_design, warn_collapsed, warn_noise, warn_miscalibrated, warn_measure, warn_begun,
    _warn_tasks, _warn_setting,
})  # fmt: skip
_RULES: Final[tuple[Callable[..., Iterator[Remark]], ...]] = (
    _check_lock, _check_conditions, _check_numbers, _warn_design, _warn_logs, warn_generated_rewards,
    _warn_invalid, _warn_retries, warn_collapsed, warn_noise, warn_miscalibrated, warn_sandboxes,
    warn_custom_environments, warn_measure, warn_begun, _warn_tasks, _warn_setting,
)  # fmt: skip
