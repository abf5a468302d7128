"""Every run and second, collapses, isolation.

Of attempts whose sandbox the log does not tell, nothing is said of where they ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any, Final

from studies.log.study import ApprovalAnswer, AttemptState, PlannerNote, RunState, StudyState
from studies.records.design import Arm, Design
from studies.records.statements import metric_name, value_of
from studies.records.verdict import ORIGINS
from studies.report.elements import (
    Cell,
    Fact,
    Remark,
    Table,
    arm_interval,
    cell,
    format_mean,
    format_reached,
    format_spread,
    hash_cell,
    pairs,
    table,
)
from studies.report.evidence import AFTER, BEFORE, Evidence
from studies.report.theme import ARMS
from studies.report.wording import NONE, duration, moment, number, one_line, plural
from studies.verdicts.judge import find_collapsed_runs

PROCESS = "process"


def warn_sandboxes(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield where the attempts' clients and evaluators ran, and what their containers were refused."""
    places = _places(state)
    yield from (_remark(place, count) for place, count in sorted(places.items()))
    if len(places) > 1:
        yield Remark(
            "threat",
            f"Attempts ran in {len(places)} different sandboxes: what ran in them may have changed during the study.",
        )
    refused = sum((Counter(attempt.refused) for attempt in _attempts(state)), Counter[str]())
    if refused:
        said = "; ".join(f"{one_line(why)} ({count})" for why, count in sorted(refused.items()))
        yield Remark(
            "note", f"{plural(sum(refused.values()), 'request')} of containers were refused, and had no effect: {said}."
        )


def warn_custom_environments(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield what clients held of each environment that is not built in."""
    for known in state.design.environments if state.design is not None else ():
        if known.hidden_apart:
            yield Remark(
                "note",
                f"{known.name} was brought from {one_line(known.reference)}: its code is its author's own. Training "
                f"clients held that code and its training tasks{_out_of_reach(_places(state))}.",
            )
        else:
            yield Remark(
                "threat",
                f"{known.name} was brought from {one_line(known.reference)}, and its code makes its hidden tasks by "
                "itself, or holds them: training clients held that code, so that nothing but its own honesty keeps "
                "them apart.",
            )


def _out_of_reach(places: Collection[str]) -> str:
    """Return what kept hidden tasks from clients, as far as the log tells where these ran."""
    if not places:
        return "; hidden tasks were handed to evaluators alone"
    if PROCESS not in places:
        return ", in containers which could not read the hidden tasks"
    some = "" if len(places) == 1 else "where they were "
    return (
        f"; hidden tasks were handed to evaluators alone, but nothing stopped clients, {some}processes of this "
        "machine, from looking for them on its disk"
    )


def has_mixed_sandboxes(state: StudyState) -> bool:
    """Return whether attempts ran in different sandboxes, so that each run has to say in which."""
    return len(_places(state)) > 1


def image_cell(run: RunState) -> Cell:
    place = _place(run.attempts[-1]) if run.attempts else ""
    return cell(place) if place in ("", PROCESS) else hash_cell(place.removeprefix("sha256:"))


def _attempts(state: StudyState) -> list[AttemptState]:
    return [attempt for run in state.runs.values() for attempt in run.attempts]


def _places(state: StudyState) -> Counter[str]:
    return Counter(place for attempt in _attempts(state) if (place := _place(attempt)))


def _place(attempt: AttemptState) -> str:
    return str(attempt.sandbox.get("image") or attempt.sandbox.get("kind") or "")


def _remark(place: str, count: int) -> Remark:
    who = f"Client and evaluators of {plural(count, 'attempt')}"
    if place == PROCESS:
        return Remark("note", f"{who} ran as processes of this machine, which isolates nothing: they were trusted.")
    return Remark(
        "note",
        f"{who} ran in containers of image {place}, with no network but a gateway to the run's own server; the "
        "list of hidden tasks was handed to evaluators alone.",
    )


RUN_COLUMNS: Final = (
    "Run", "Arm", "Seed", "Outcome", "Attempts", "Time", "Hidden before", "Hidden after", "Snapshot",
)  # fmt: skip


def arm_mark(design: Design, arm: str) -> str:
    """Return the name of an arm's colour and marker, by its place in the design; none for what is not confirmed."""
    names = [a.name for a in design.arms]
    return f"arm-{names.index(arm) % ARMS}" if arm in names else ""


def arm_table(state: StudyState) -> Table | None:
    if state.design is None or not any(state.values(arm.name) for arm in state.design.arms):
        return None
    before = "Success before" if state.design.metric.kind else "Before"
    timed = ("Got there",) if state.design.metric.cut_at is not None else ()
    columns = ("Arm", "Runs", before, *timed, f"Mean {metric_name(state.design.metric)}", "SD between runs")
    rows = [_short_row(state, state.design, arm) for arm in state.design.arms]
    return table(columns, rows, numeric=range(1, len(columns)), cards=True)


def whole_arm_table(state: StudyState) -> Table | None:
    if state.design is None:
        return None
    columns = ("Arm", "n", f"Mean {metric_name(state.design.metric)}", "95 % interval", "SD", "Each run")
    rows = [_arm_row(state, state.design, arm) for arm in state.design.arms]
    return table(columns, rows, numeric=(1, 2, 3, 4), cards=True)


def run_table(state: StudyState) -> Table | None:
    if state.design is None or not state.runs:
        return None
    columns = [*RUN_COLUMNS]
    rows = [run_row(state.design, run) for run in state.runs.values()]
    if state.design.metric.kind:
        columns.append(metric_name(state.design.metric))
        own = (cell(format_measurement(run, run.spec.metric.key)) for run in state.runs.values())
        rows = [[*row, value] for row, value in zip(rows, own, strict=True)]
    if any(run.spec.phase != "confirm" for run in state.runs.values()):
        columns.append("For")
        rows = [[*row, cell(run.spec.phase)] for row, run in zip(rows, state.runs.values(), strict=True)]
    if has_mixed_sandboxes(state):
        columns.append("Image")
        rows = [[*row, image_cell(run)] for row, run in zip(rows, state.runs.values(), strict=True)]
    return table(columns, rows, numeric=(2, 5, 6, 7), cards=True)


def count_runs(state: StudyState) -> str:
    if not state.runs:
        return "No run was planned."
    counts = Counter(run.status for run in state.runs.values())
    unfinished = len(state.runs) - counts["collected"] - counts["invalid"]
    attempts = sum(len(run.attempts) for run in state.runs.values())
    return (
        f"{plural(len(state.runs), 'planned run')} = {counts['collected']} collected + {counts['invalid']} invalid + "
        f"{unfinished} not finished. They took {plural(attempts, 'attempt')}; all of them are listed."
    )


def file_table(evidence: Evidence) -> Table | None:
    rows = [
        [cell(run.run_id, "mono"), cell(path, "mono long"), cell(sha256, "mono long")]
        for run in evidence.runs.values()
        for path, sha256 in run.files
    ]
    return table(("Run", "File", "sha256"), rows) if rows else None


def copy_table(state: StudyState) -> Table | None:
    rows = [
        [cell(run.run_id, "mono"), cell(str(attempt.number)), cell(attempt.url, "page"),
         cell(": ".join(filter(None, (_STANDINGS[attempt.standing], one_line(attempt.standing_reason)))))]
        for run in state.runs.values()
        for attempt in run.attempts
        if attempt.url
    ]  # fmt: skip
    return table(("Run", "Attempt", "Page", "The copy there"), rows, numeric=(1,)) if rows else None


def decision_table(state: StudyState) -> Table | None:
    rows = [[cell(moment(d.ts)), cell(d.rule), cell(d.action), cell(one_line(d.reason))] for d in state.decisions]
    return table(("When", "Rule", "Decision", "Why"), rows, cards=True) if rows else None


def approval_table(state: StudyState) -> Table | None:
    answers = {answer.asked.digest: answer for answer in state.approvals}
    rows = [
        [
            cell(moment(asked.ts)), cell(one_line(asked.question.would)),
            cell(f"{plural(asked.question.runs, 'run')}, {duration(asked.question.seconds)}"),
            *_answer_cells(answers.get(asked.digest), asked == state.open_question),
        ]
        for asked in state.questions
    ]  # fmt: skip
    columns = ("Asked", "To begin", "At most", "Answer", "When", "Note")
    return table(columns, rows, cards=True) if rows else None


def _answer_cells(answer: ApprovalAnswer | None, is_open: bool) -> list[Cell]:
    if answer is None:
        return [cell("open" if is_open else "not needed any more"), cell(""), cell("")]
    said = f"{'approved' if answer.granted else 'denied'} {ORIGINS[answer.by]}"
    return [cell(said), cell(moment(answer.ts)), cell(one_line(answer.note))]


def planner_table(state: StudyState) -> Table | None:
    rows = [
        [
            cell(act.action), cell(str(act.tries)), cell(f"{sum(act.tokens.values()):,}"),
            cell(one_line("; ".join(act.rejected))), cell(one_line(act.note)),
        ]
        for act in state.planner_acts
    ]  # fmt: skip
    columns = ("Asked for", "Tries", "Tokens", "Sent back", "Note")
    return table(columns, rows, numeric=(1, 2), cards=True) if rows else None


def notebook_table(state: StudyState) -> Table | None:
    """Return what the planner wrote down beside its actions, quoted as its voice; None where it wrote nothing."""
    told = ((str(n.round), n.id, _WRITTEN[n.kind].format(n.about), one_line(_words(n))) for n in state.notebook)
    rows = [[*map(cell, texts)] for texts in told]
    return table(("Round", "Called", "Is", "In its words"), rows, numeric=(0,), cards=True) if rows else None


_WRITTEN = {"note": "a thought", "revise": "a revision of {}", "ask": "a question to the user"}


def _words(note: PlannerNote) -> str:
    if note.kind != "revise":
        return f"“{note.text}”"
    said = f"“{note.text}”" if note.text else "withdrawn"
    return f"{said}, because “{note.reason}”"


def cost_table(state: StudyState) -> Table:
    runs = sum(run.seconds for run in state.runs.values())
    prompt, completion = (sum(act.tokens.get(kind, 0) for act in state.planner_acts) for kind in _TOKENS)
    facts = [
        Fact("Wall clock, first to last event", duration(state.elapsed_s)),
        Fact("Time worked, pauses left out", duration(state.worked_s)),
        Fact("Time in runs, all attempts added up", duration(runs)),
        Fact("Planner tokens", f"{prompt:,} in prompts, {completion:,} in answers"),
    ]
    if state.model is not None:
        facts.append(Fact("Making or finding the model", duration(state.model["seconds"])))
    return pairs([*facts, *_price_facts(state)])


def run_phase_s(state: StudyState) -> float | None:
    ends = [
        datetime.fromisoformat(attempt.launched).timestamp() + attempt.seconds
        for run in state.runs.values()
        for attempt in run.attempts
        if attempt.seconds is not None
    ]
    if not ends or state.first_launch is None:
        return None
    return max(0.0, max(ends) - datetime.fromisoformat(state.first_launch.ts).timestamp())


_TOKENS = ("prompt", "completion")
_STANDINGS = {"sending": "not whole yet", "sent": "sent", "failed": "not whole"}


def _price_facts(state: StudyState) -> list[Fact]:
    if state.design is None:
        return []
    price, paid = state.design.price, run_phase_s(state)
    said = (
        f"{duration(price.total_s)} for {plural(price.runs, 'run')} of {duration(price.seconds_per_run)}, "
        f"{price.parallel} at once ({one_line(price.basis)})"
    )
    budget = state.design.budget
    limit = f"{duration(budget.wall_clock_s)}" + (f", {plural(budget.max_runs, 'run')}" if budget.max_runs else "")
    return [
        Fact("Runs: predicted", said),
        Fact("Runs: paid, first launch to last end", duration(paid)),
        Fact("Budget", limit),
    ]


def _short_row(state: StudyState, design: Design, arm: Arm) -> list[Cell]:
    values, collapsed = state.values(arm.name), find_collapsed_runs(state)
    before, after = list(state.values(arm.name, BEFORE).values()), _drop_collapsed(values, collapsed)
    return [
        cell(arm.name, arm_mark(design, arm.name)), cell(_format_count(values, after)),
        cell(number(fmean(before)) if before else NONE),
        *([cell(format_reached(design.metric, after))] if design.metric.cut_at is not None else []),
        cell(format_mean(design.metric, after)),
        cell(format_spread(design.metric, after)),
    ]  # fmt: skip


def _drop_collapsed(values: Mapping[str, float], collapsed: Collection[str]) -> list[float]:
    return [value for run, value in values.items() if run not in collapsed]


def _format_count(values: Mapping[str, float], kept: Sequence[float]) -> str:
    return str(len(kept)) if len(kept) == len(values) else f"{len(kept)} + {len(values) - len(kept)} collapsed"


def _arm_row(state: StudyState, design: Design, arm: Arm) -> list[Cell]:
    values, collapsed = state.values(arm.name), find_collapsed_runs(state)
    ordered = _drop_collapsed(values, collapsed)
    interval = arm_interval(design.metric, ordered)
    unit = design.metric.unit
    said = {run: number(value, unit=unit) for run, value in values.items()}
    each = ", ".join(f"{text}{' (collapsed)' if run in collapsed else ''}" for run, text in said.items())
    seeds = "; ".join(f"seed {state.runs[run_id].spec.seed}: {text}" for run_id, text in said.items())
    return [
        cell(arm.name, arm_mark(design, arm.name)), cell(_format_count(values, ordered)),
        cell(format_mean(design.metric, ordered)),
        cell(f"{number(interval.low, unit=unit)} to {number(interval.high, unit=unit)}" if interval else NONE),
        cell(format_spread(design.metric, ordered)), cell(each, title=seeds),
    ]  # fmt: skip


def run_row(design: Design | None, run: RunState) -> list[Cell]:
    """Return the first cells of a run's row, as `run_table` has them; an arm that the design names has a colour."""
    key = run.spec.metric.key if design is None else design.metric.key
    snapshot = run.collected["snapshot"]["sha256"] if run.collected else ""
    return [
        cell(run.run_id, "mono"), cell(run.spec.arm, "" if design is None else arm_mark(design, run.spec.arm)),
        cell(str(run.spec.seed)),
        _outcome(run), cell(_story(run)),
        cell(duration(run.seconds) if run.seconds else NONE), cell(format_measurement(run, BEFORE)),
        cell(format_measurement(run, AFTER if AFTER in run.measurements else key)),
        hash_cell(snapshot) if snapshot else cell(NONE),
    ]  # fmt: skip


def _outcome(run: RunState) -> Cell:
    words = {"ended": "not finished", "running": "still running", "planned": "not launched"}
    if run.invalid is not None:
        return cell(f"{'invalid' if run.attempts else 'never begun'}: {run.invalid[0]}", "invalid")
    return cell(words.get(run.status, run.status), run.status)


def _story(run: RunState) -> str:
    told = [_attempt(attempt) for attempt in run.attempts]
    return "; ".join([*told, f"invalid: {one_line(run.invalid[1])}"] if run.invalid and told else told)


def _attempt(attempt: AttemptState) -> str:
    begun = f"{attempt.number}{_beginning(attempt)}"
    if attempt.status is None:
        return f"{begun} running"
    why = one_line(": ".join(part for part in (attempt.code, attempt.reason) if part))
    told = f" ({why})" if why and attempt.status != "finished" else ""
    return f"{begun} {attempt.status}{told}"


def _beginning(attempt: AttemptState) -> str:
    if attempt.resumes is None:
        return ""
    at = "" if attempt.resumed_at is None else f" after step {attempt.resumed_at}"
    return f" (went on from attempt {attempt.resumes}{at})"


def format_measurement(run: RunState, key: str) -> str:
    unit = run.spec.metric.unit if key == run.spec.metric.key else ""
    return number(run.measurements[key].value, unit=unit) if key in run.measurements else NONE


def constants(state: StudyState, design: Design) -> Table:
    """Return every job field that is the same in all arms; first those that the user's job fixed."""
    varied = {field for arm in design.arms for field in arm.overrides}
    given: Any = state.settings.get("base_fixed") or {}
    shared = {name: value for name, value in sorted(design.base_job.items()) if name not in varied}
    facts = [Fact(f"{name}, as given", value_of(value)) for name, value in shared.items() if name in given]
    facts += [Fact(name, value_of(value)) for name, value in shared.items() if name not in given]
    return pairs(facts)


def design_arms(design: Design) -> Table:
    rows = [
        [
            cell(arm.name, arm_mark(design, arm.name)),
            cell("control" if arm.name == design.control_arm else "treatment"),
            cell(", ".join(f"{name} = {value_of(value)}" for name, value in arm.overrides.items()) or "the base job"),
        ]
        for arm in design.arms
    ]
    return table(("Arm", "Role", "Sets"), rows)


def lock_proof(state: StudyState) -> str:
    """Return when the design was locked, and the events that show it was before any run."""
    if state.locked is None:
        return "No design was locked."
    said = f"The design was locked as event {state.locked.seq} at {moment(state.locked.ts)}"
    if state.first_launch is None:
        return f"{said}; no run has been launched."
    lead = datetime.fromisoformat(state.first_launch.ts) - datetime.fromisoformat(state.locked.ts)
    return (
        f"{said}, {duration(lead.total_seconds())} before the first run was launched (event {state.first_launch.seq}). "
        "The order is part of the hash chain."
    )
