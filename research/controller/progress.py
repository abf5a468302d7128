"""How far a study is, and a study told in lines, for the CLI, logs and Prefect.

Progress is runs that are over, of the most that the locked design may come to (every look, the whole screen, the
replication); a study that ends early needs fewer. Of an inquiry, rounds before count with what they took, those to come
not at all. Each line has a key that names it once and for all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from research.scheduler import required_runs as need
from research.scheduler.approvals import describe_cost, how_to_answer
from research.scheduler.steps import SHRINK_RULE
from studies import RunState, StudyState
from studies.checks.conditions import describe_zero_lr_run, had_no_signal
from studies.log.study import LOOK_RULE
from studies.records.runs import PLUMBING_ARM, UNTRAINED_RUN
from studies.records.verdict import Verdict
from studies.report.claims import describe_length, describe_sizing
from studies.report.prose import last_words, why_asked
from studies.verdicts.wording import question_of

_ALMOST = 99.0
"""Most per cent before a study is concluded: what is left after the last run is to judge and to report."""
NONE_DOUBTED: Final[Mapping[str, str]] = {}
"""Every verdict follows, as far as anybody looked."""


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """Runs `done` of at most `most`, of all rounds so far; `most` is None while the round has no plan of any run."""

    done: int
    most: int | None
    concluded: bool
    design_open: bool
    """Whether the design is not locked yet, so that what is counted is the runs before it."""
    round: int = 1
    rounds: int = 1
    """Most rounds."""
    before: int = 0
    """Runs of other rounds, among those done."""
    sizing_open: bool = False
    """Whether a pilot has yet to size the design, so that what is counted is its runs."""

    @property
    def percent(self) -> float:
        """Per cent of the most runs, of an inquiry of the most rounds; 100 for a concluded study alone."""
        if self.concluded:
            return 100.0
        runs = max(1, (self.most or 0) - self.before)
        done = 0 if self.sizing_open or (self.rounds > 1 and self.design_open) else self.done - self.before
        return min(_ALMOST, 100.0 * ((self.round - 1) * runs + done) / (runs * self.rounds))

    def __str__(self) -> str:
        if self.concluded:
            rounds = "" if self.rounds == 1 else f" in {self.round} {'round' if self.round == 1 else 'rounds'}"
            return f"{self.done} runs done{rounds}, concluded"
        where = "" if self.rounds == 1 else f"round {self.round} of at most {self.rounds}: "
        if self.most is None:
            return f"{where}planning"
        made, of = self.done - self.before, self.most - self.before
        if self.sizing_open:
            return f"{where}{made} of {of} runs done that say how many it takes"
        if self.design_open:
            return f"{where}{made} of {of} runs done, the design comes after them"
        return f"{where}{self.done} of at most {self.most} runs done{' in all rounds so far' if self.before else ''}"


def progress_of(state: StudyState) -> StudyProgress:
    began = {name: bool(run.attempts) and need.is_over(run) for name, run in state.every_run.items()}
    done = sum(map(began.__getitem__, state.runs))
    before = sum(began.values()) - done
    concluded = state.concluded_reason is not None
    design, noise = state.design, state.noise_plan
    most: int | None = None
    if concluded:
        most = done
    elif design is not None and design.screen is not None:
        most = max(done, sum(need.is_over(run) for run in state.runs_in("noise")) + design.price.runs)
    elif design is not None:
        most = done + len(need.unmet_runs(state, set(need.later_runs(state, design))))
    elif state.explored is not None:
        most = len(state.explored.arms)
    elif exploring := need.exploration_runs(state):
        most = done + len(need.unmet_runs(state, set(exploring)))
    elif noise is not None:
        most = done + len(need.unmet_runs(state, set(need.noise_runs(noise))))
    return StudyProgress(
        done + before, None if most is None else most + before, concluded,
        design_open=state.locked_design is None and state.explored is None, round=state.round,
        rounds=state.most_rounds, before=before, sizing_open=state.awaits_sizing,
    )  # fmt: skip


def progress_lines(state: StudyState, doubts: Mapping[str, str] = NONE_DOUBTED) -> Iterator[tuple[str, str]]:
    """Yield (key, line) for all that happened, roughly in order, round by round; a key's line never changes. `doubts`
    says by its `verdict_key` why a verdict does not follow: it is not told then."""
    yield "created", f"study {state.id}"
    yield "asked", f"asked: {question_of(state).asked}"
    rounds = [line for entry in state.every_round for line in _round_lines(entry, doubts)]
    yield from {key: (key, line) for key, line in rounds}.values()  # what was amended is so in all rounds that follow
    for asked in state.questions:
        said = f"waits for approval: {asked.question.would} ({describe_cost(asked)}); {how_to_answer(state)}"
        yield f"asked-{asked.digest}", said
    for answer in state.approvals:
        note = f" ({answer.note})" if answer.note else ""
        yield f"answered-{answer.asked.digest}", f"{answer.describe()}{note}"
    for number, (before, after) in enumerate(pairwise(state.answered_by)):
        yield f"model-{number}", f"the planner's endpoint answers by another model: {after}, until now {before}"
    if state.concluded_reason is not None:
        yield "concluded", f"concluded: {state.concluded_reason}"
    if state.said is not None:
        yield "said", last_words(state)
    if state.report is not None:
        yield f"report-{state.report['html']['sha256']}", "report built"


def _round_lines(state: StudyState, doubts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    question, later = question_of(state), "" if state.round == 1 else f"round-{state.round}-"
    if state.round > 1:
        why = f', asked as: "{why_asked(state)}"' if state.why_asked else ""
        yield f"{later}begun", f"round {state.round} of at most {state.most_rounds}{why}"
    yield from ((claim.id, f"hypothesis {claim.id}: {claim.statement}") for claim in state.hypotheses)
    yield from ((f"not-tested-{left}", f"not tested: {left}") for left in question.not_tested)
    if (plan := state.noise_plan) is not None:
        alike = f"A/A runs first: {len(plan.seeds)} seeds of one job, to learn what seeds alone do"
        first = alike if plan.plumbing is None else f"{alike}; before them {UNTRAINED_RUN}"
        yield f"{later}noise", first if plan.seeds else f"first {UNTRAINED_RUN}"
    if (design := state.locked_design) is not None and state.design_hash is not None:
        most = "at most " if len(design.looks) > 1 else ""
        seeds = f"{most}{len(design.seeds)}" if design.pilot is None else f"first {design.pilot.seeds}"
        compared = f"{len(design.arms)} arms x {seeds} seeds"
        if (screen := design.screen) is not None:
            compared = f"{screen.candidates} candidates are screened, {screen.confirmed} confirmed with "
            compared += f"{seeds} seeds"
        of = "" if state.most_rounds == 1 else f", round {state.round} of at most {state.most_rounds}"
        of += "".join(f"; repaired: {issue.describe()}" for issue in state.abandoned[-1:])
        yield f"{later}lock{len(state.abandoned) or ''}", f"design locked: {compared}, {state.design_hash[:16]}{of}"
        yield from ((f"{later}tested-{sentence}", f"tested: {sentence}") for sentence in question.tested)
    for tried in state.explorations:
        names = ", ".join(arm.name for arm in tried.plan.arms)
        yield f"exploration-{tried.seq}", f"explores, which tests nothing: {names}, {tried.plan.runs_told}"
    for run in state.all_runs.values():
        yield from _run_lines(run)
    yield from ([(f"{later}length", f"length: {describe_length(state).strip()}")] if state.length is not None else ())
    if (told := describe_sizing(state)) and not state.awaits_sizing:
        yield f"{later}sized", f"size: {told}"
    for decision in state.decisions:
        if decision.rule in (SHRINK_RULE, LOOK_RULE):
            lead = "to " if decision.rule == SHRINK_RULE else ""
            yield f"decision-{decision.seq}", f"{lead}{decision.rule}: {decision.action}: {decision.reason}"
    if state.selection is not None:
        yield f"{later}selection", f"the screen keeps {', '.join(state.selection.kept)}: {state.selection.reason}"
    for verdict in (*state.interim, *state.verdicts, *state.replications):
        analyses = len(state.design.looks) if state.design else 0
        at = f" at look {verdict.look}" if analyses > 1 else ""
        again = " in the other setting" if verdict.phase == "replicate" else ""
        key = verdict_key(verdict)
        outcome = f"{verdict.verdict}{at}: {verdict.reason}"
        if key in doubts:
            outcome = f"the verdict does not follow{at}: {doubts[key]}"
        yield key, f"{verdict.hypothesis}{again} {outcome}"
    for amended in state.amendments:
        yield f"amended-{amended.seq}", f"amended by {amended.actor}: {amended.amendment.reason}"
    for name, veto in state.vetoed.items():
        yield f"veto-{name}", f"{name} vetoed by {veto.actor}: {veto.reason}"


def verdict_key(verdict: Verdict) -> str:
    return f"verdict-{verdict.hypothesis}-{verdict.phase}-{verdict.inputs_sha256}"


def format_success(run: RunState) -> str:
    """Return `before → after` of a measured run, or nothing."""
    key = f"{run.spec.metric.split}/success"
    before, after = run.measurements.get(f"{key}/initial"), run.measurements.get(key)
    return f"{before.value:.2f} → {after.value:.2f}" if before is not None and after is not None else ""


def describe_result(run: RunState) -> str:
    if run.spec.arm == PLUMBING_ARM:
        return describe_zero_lr_run(run)
    nothing = (
        "; it had nothing to learn from: in no step did rewards differ within a group" if had_no_signal(run) else ""
    )
    return f"{run.spec.metric.split} success {format_success(run)}{nothing}"


def _run_lines(run: RunState) -> Iterator[tuple[str, str]]:
    phase = "" if run.spec.phase == "confirm" else f"{run.spec.phase} "
    name = f"{phase}run {run.run_id[:8]} ({run.spec.arm} seed {run.spec.seed})"
    for attempt in run.attempts:
        key = f"{run.run_id}-{attempt.number}"
        goes_on = "" if attempt.resumes is None else f", going on from try {attempt.resumes}"
        yield key, f"{name}: try {attempt.number} started{goes_on}"
        if attempt.status not in (None, "finished"):
            yield f"{key}-end", f"{name}: try {attempt.number} {attempt.status}: {attempt.reason}"
    if run.status == "collected" and format_success(run):
        yield f"{run.run_id}-done", f"{name}: {describe_result(run)}"
    if run.invalid is not None:
        yield f"{run.run_id}-invalid", f"{name} is invalid: {run.invalid[0]}: {run.invalid[1]}"
