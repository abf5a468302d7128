"""From a study's state to a verdict: which runs a claim rests on, what speaks against it.

Study loop and report call the same function, so a verdict can be computed again from the log alone. A look sees the
runs of its own seeds only; a hypothesis settled at an earlier look enters with its verdict.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from studies.checks.conditions import CollectError, detect_collapse, has_started, pairs_of, read_collected
from studies.checks.confounders import Violation, lint_conditions, lint_jobs
from studies.log import event_log
from studies.log.entries import RunState, VerdictContext
from studies.log.study import StudyState
from studies.records.design import GAIN, SUCCESS, Design
from studies.records.procedure import Phase, RunLength, Sizing
from studies.records.runs import Conditions
from studies.records.verdict import Verdict
from studies.statistics.power import decide_steps, size_design
from studies.verdicts.inputs import ArmData, JudgeInput, find_claim
from studies.verdicts.rules import invalid, judge

NO_RESULT = "no_result"
"""Stands for the code of a run that was launched and has neither a value nor a code: no lock excludes it."""
_TURNED: Final = "subgroup"
"""Code of a rule that is gone: the effect turns around in every kind of task. What it found in older logs stands."""
_NUMBERS: Final = ("estimate", "low", "high", "p", "p_adjusted")
DOES_NOT_FOLLOW: Final = "does not follow"


def judge_hypothesis(
    state: StudyState, hypothesis: str, *, look: int, phase: Phase = "confirm", lock_error: str | None = None,
    stored: Verdict | None = None,
) -> Verdict:  # fmt: skip
    """Return the verdict on `hypothesis` from the runs of the state up to `look`; `stored` is the verdict that is
    computed anew, `lock_error` what makes it invalid. Raise ValueError for what the state's design does not have."""
    if (known := state.context_of(hypothesis, look, phase)) is not None:
        state = replace(state, design=known.design, runs=known.runs if hypothesis in state.stands else state.runs)
    design = state.design
    if design is None:
        raise ValueError(f"study {state.id} has no design to judge by")
    data = gather(state, look=look, phase=phase)
    if lock_error is not None:
        return invalid(JudgeInput(state.alpha_allocation, hypothesis, data, look, phase=phase), lock_error)
    turned = (line.partition(": ") for line in (stored.violations if stored is not None else ()))
    found = (
        *find_violations(state, hypothesis, data),
        *(Violation(code, sentence, blocks=True) for code, _, sentence in turned if code == _TURNED),
    )
    arms = [data[name] for name in design.contrast_of(find_claim(design, hypothesis))]
    codes = {code for arm in arms for code in (*arm.excluded.values(), *arm.cut.values())}
    obstacles = {v.code for v in found if v.blocks} | (codes - set(design.exclusions))
    # What was accepted after the conclusion, or after the verdict, changes it no more.
    touching = [
        amended for amended in state.amendments
        if amended.amendment.kind == "accept" and not amended.after_conclusion
        and (known is None or amended.seq < known.seq) and amended.amendment.target in obstacles
    ]  # fmt: skip
    accepted = {amended.amendment.target for amended in touching}
    before_data = {amended.amendment.target for amended in touching if not amended.after_data}
    blocking = [v for v in found if v.blocks and v.code not in accepted]
    others = [h.id for h in design.hypotheses if h.id != hypothesis]
    earlier, barred = dict[str, Verdict](), list[str]()
    if phase == "confirm":
        before = (v for v in state.verdicts if v.hypothesis in others and v.look < look)
        settled = (v for v in before if state.is_settled(v.hypothesis))
        # Of one judged again it is as it was then: a later veto changes no level.
        earlier = {v.hypothesis: v for v in settled} if known is None else dict(known.earlier)
        if design.multiplicity != "none":  # whatever was accepted for them since
            barred = [name for name in others if any(v.blocks for v in find_violations(state, name, data))]
    return judge(JudgeInput(
        state.alpha_allocation, hypothesis, data, look, phase=phase,
        violations=[v.line for v in blocking], threats=[v.line for v in found if v not in blocking],
        accepted=sorted(accepted), earlier=earlier, barred=barred,
        ended=state.ended_by(hypothesis) if known is None else known.ended,
        exploratory=bool(accepted - before_data) or _is_chosen_moment(state, hypothesis, look, phase, known),
    ))  # fmt: skip


def gather(state: StudyState, *, look: int, phase: Phase = "confirm") -> dict[str, ArmData]:
    """Return the runs of each arm of the design that a look of a phase sees, by the arm's name."""
    design = state.design
    assert design is not None
    if phase == "replicate":
        if design.replication is None:
            raise ValueError("the design has no replication to judge")
        drawn = design.replication.seeds
    elif phase != "confirm":
        raise ValueError(f"runs of the phase {phase} feed no claim; expected confirm or replicate")
    elif not 1 <= look <= max(1, len(design.looks)):
        raise ValueError(f"the look must lie between 1 and {max(1, len(design.looks))}; found {look}")
    else:
        drawn = design.seeds[: design.looks[look - 1].seeds] if design.looks else design.seeds
    seeds = {arm.name: frozenset(design.seeds_of(arm.name, drawn)) for arm in design.arms}
    runs = {name: [run for run in state.runs_of(name, phase) if run.spec.seed in own] for name, own in seeds.items()}
    return {name: _arm(design, own) for name, own in runs.items()}


def size_study(state: StudyState, affordable: int) -> Sizing:
    design = state.design
    if design is None:
        raise ValueError(f"study {state.id} has no design to size")
    arms = gather(state, look=1).values()
    if design.collapse is None:
        return size_design(design, [arm.runs(design.metric.worst).numbers for arm in arms], affordable)
    kept = [arm.drop_collapsed().numbers for arm in arms]
    return size_design(design, kept, affordable, sum(arm.broken for arm in arms))


def decide_length(state: StudyState, carried: bool) -> RunLength:
    """Return how long a study's runs are by those of its pilot; `carried`: whether there is time for it once more."""
    design, most = state.design, state.settings.get("max_runs")
    if design is None or (extension := design.extension) is None:
        raise ValueError(f"study {state.id} has no design whose runs may be longer")
    arms = list(gather(state, look=1).values())
    of = sum(len(arm.seeds) for arm in arms)
    fits = most is None or int(most) - len(state.every_run) >= of
    sides = [(arm.beside[extension.before], arm.beside[extension.last]) for arm in arms]
    pairs = [(before[run], last[run]) for before, last in sides for run in before.keys() & last.keys()]
    carried = fits and not state.crashed and (carried or state.budget_touched)
    return decide_steps(extension, int(design.base_job["steps"]), pairs, of, carried)


def seeds_by_runs(state: StudyState) -> int:
    assert state.design is not None
    assert state.design.pilot is not None
    pilot, most = state.design.pilot, state.settings.get("max_runs")
    left = math.inf if most is None else max(0, int(most) - len(state.every_run)) // len(state.design.arms)
    return int(min(pilot.most, pilot.seeds + left))


def find_collapsed_runs(state: StudyState) -> Mapping[str, str]:
    """Return how each measured run of the confirmation that collapsed did, by the locked rule; nothing without one."""
    if state.design is None or state.design.collapse is None:
        return {}
    arms = gather(state, look=max(1, len(state.design.looks))).values()
    return {run: how for arm in arms for run, how in arm.collapsed.items()}


def find_violations(state: StudyState, hypothesis: str, data: Mapping[str, ArmData]) -> tuple[Violation, ...]:
    """Return what the confound linter finds in the runs that count; nothing where none has recorded conditions."""
    design = state.design
    assert design is not None
    pairs, violations = pairs_of(design, find_claim(design, hypothesis)), dict[Violation, None]()
    for names in pairs:
        arms = [[state.runs[run] for run in data[name].values] for name in names]
        control, treatment = ({run.run_id: seen for run in arm if (seen := run.conditions) is not None} for arm in arms)
        if control and treatment:
            jobs = [[run.spec.job for run in arm] for arm in arms]
            violations |= dict.fromkeys(lint_conditions(design, hypothesis, control, treatment, names))
            violations |= dict.fromkeys(lint_jobs(design, hypothesis, jobs[0], jobs[1], names))
    if len(pairs) == 1:
        return tuple(violations)
    told = {violation.code: violation for violation in reversed(violations)}  # of threats between many pairs the first
    return tuple(v for v in violations if v.blocks or v is told[v.code])


def _arm(design: Design, runs: list[RunState]) -> ArmData:
    values, begins, unstarted = dict[str, float](), dict[str, float](), set[str]()
    beside: dict[str, dict[str, float]] = {name: {} for name in design.metric.beside}
    codes, cut, collapsed = dict[str, str](), dict[str, str](), dict[str, str]()
    for run in runs:
        if run.status == "collected" and run.spec.metric.key in run.measurements:
            name, seen = run.run_id, run.conditions or Conditions()
            values[name] = run.measurements[run.spec.metric.key].value
            for mediator, metric in design.metric.beside.items():
                if (measured := run.measurements.get(metric.key)) is not None:
                    beside[mediator][name] = measured.value
            if design.collapse is not None and (how := detect_collapse(seen, design.collapse)) is not None:
                collapsed[name] = how
            if design.start is not None:
                begun = {} if seen.course is None else {SUCCESS: seen.course.start, GAIN: 0.0}
                begins[name] = begun.get(design.metric.key, design.metric.worst)  # that no evaluation then gives
                unstarted |= set() if name in collapsed or has_started(seen, design.start) else {name}
        elif run.cut:
            cut[run.run_id] = run.code
        elif run.attempts:  # what was given up before it began is no launched run
            codes[run.run_id] = run.code or NO_RESULT
    worst = {name: code for name, code in codes.items() if code in design.counted_as_worst}
    return ArmData(
        values, seeds={run.run_id: run.spec.seed for run in runs}, worst=worst, cut=cut, collapsed=collapsed,
        excluded={name: code for name, code in codes.items() if name not in worst}, begins=begins,
        unstarted=frozenset(unstarted), beside=beside,
    )  # fmt: skip


def _is_chosen_moment(
    state: StudyState, hypothesis: str, look: int, phase: Phase, known: VerdictContext | None
) -> bool:
    short = state.is_judged_short(hypothesis, look, phase)
    if short or (state.design is not None and state.design.spending == "reached"):  # then the level pays for the moment
        return short
    since, until = state.locked.seq if state.locked else 0, known.seq if known else state.event_count + 1
    lowered = any(a.amendment.lowers and a.after_data and since < a.seq < until for a in state.amendments)
    return lowered and (phase != "confirm" or bool(state.missing_runs(hypothesis, look)))


def verdict_follows(state: StudyState, verdict: Verdict) -> bool:
    """Return whether computing `verdict` anew gives the same inputs and numbers; if invalid, also with its reason."""
    if state.design is None:
        return False
    name, look, phase = verdict.hypothesis, verdict.look, verdict.phase
    for reason in (None, verdict.reason) if verdict.verdict == "invalid" else (None,):
        found = judge_hypothesis(state, name, look=look, phase=phase, lock_error=reason, stored=verdict)
        pairs = [(getattr(verdict, name), getattr(found, name)) for name in _NUMBERS]
        close = all(x is y if None in (x, y) else math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) for x, y in pairs)
        both = [(v.verdict, v.inputs_sha256, [entry.result for entry in v.mediators]) for v in (verdict, found)]
        if close and both[0] == both[1]:
            return True
    return False


def verdict_fault(state: StudyState, folder: Path, verdict: Verdict) -> str | None:
    """Return why a current verdict does not follow from log, lock and evaluations; None where it does."""
    if folder.is_dir() and verdict.verdict != "invalid":
        if (fault := event_log.lock_error(state, folder)) is not None:
            return fault
        for run in state.runs_in(verdict.phase):
            if run.status == "collected" and run.collected is not None:
                try:
                    read_collected(folder, run.collected["evaluation"])
                except CollectError as error:
                    return error.reason
    try:
        follows = verdict_follows(state, verdict)
    except ValueError as error:
        return f"the log holds what cannot be judged ({type(error).__name__})"
    return None if follows else "the runs in the log come to something else"
