"""`ajet study show`, and what is told of a study in lists, at its end and as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from research.cli.app import Json, Name, console, make_table, open_study, print_json
from research.controller.progress import progress_of
from research.isolation.mode import read_sandboxing
from research.planners.history import sanitize_line
from research.scheduler.approvals import describe_cost, how_to_answer
from research.scheduler.required_runs import open_hypotheses, runs_left
from research.text import format_flag
from studies import RunState, StudyState
from studies.log.entries import ApprovalAnswer, LoggedApprovalRequest, PlannerNote
from studies.log.event_log import lock_error
from studies.log.study import ASK_RULE
from studies.proof import DOES_NOT_FOLLOW, verdict_fault
from studies.records.design import is_expression
from studies.records.statements import metric_name
from studies.records.verdict import Verdict
from studies.report.prose import last_words
from studies.report.summary import HeadlineAnswer, headline
from studies.report.tables import planner_facts, values_at_own
from studies.verdicts.wording import question_of

_STYLES = {
    "supported": "bold green", "refuted": "bold red", "equivalent": "bold blue", "inconclusive": "bold yellow",
    "invalid": "bold red", DOES_NOT_FOLLOW: "bold red",
}  # fmt: skip


def summary(state: StudyState, folder: Path) -> dict[str, Any]:
    """Return what a script wants to know: status, counts, verdicts, report paths; of an inquiry, which round it is."""
    far, runs = progress_of(state), state.every_run
    return {
        **round_progress(state),
        "study": state.id,
        "topic": state.topic,
        "status": state.status,
        "reason": state.stopped_reason or state.paused_reason or state.concluded_reason,
        "asks": None if state.open_question is None else question_json(state.open_question),
        "planner_asks": [{"id": note.id, "text": note.text, "ts": note.ts} for note in planner_questions(state)],
        "declined": state.declined,
        "said": None if state.said is None else state.said.model_dump(mode="json"),
        "planner": dict(state.planner),
        "planner_spent": [dict(act.spent) for act in state.planner_acts if act.spent],
        "design_hash": state.design_hash,
        "runs": {"planned": len(runs), **Counter(run.status for run in runs.values() if run.status != "planned")},
        "progress": {"done": far.done, "at_most": far.most, "percent": round(far.percent, 1)},
        "verdicts": [
            {**round_number(each), **_verdict_json(each, folder, verdict)}
            for each in state.rounds
            for verdict in each.verdicts
        ],
        **({} if state.explored is None else {"explored": list(_explored_json(state)), "next": state.asked_next}),
        "head": state.head_hash,
        "report": report_paths(state, folder),
        "elapsed_s": state.elapsed_s,
    }


def _explored_json(state: StudyState) -> Iterator[dict[str, Any]]:
    assert state.explored is not None
    runs = {run.spec.arm: run for run in state.runs_in("explore")}
    metric = state.explored.metric
    for arm in state.explored.arms:
        run = runs.get(arm.name)
        known = {} if run is None else run.measurements
        values = (known.get(key) for key in ("search/success/initial", "search/success", metric.key))
        before, after, scored = (None if value is None else value.value for value in values)
        yield {
            "arm": arm.name, "status": "not begun" if run is None else run.status, "before": before, "after": after,
            "metric": metric_name(metric), "value": scored, "seconds": 0.0 if run is None else run.seconds,
        }  # fmt: skip


def round_number(state: StudyState) -> dict[str, Any]:
    return {} if state.most_rounds == 1 else {"round": state.round}


def round_progress(state: StudyState) -> dict[str, Any]:
    return {} if state.most_rounds == 1 else {"round": state.round, "most_rounds": state.most_rounds}


def planner_questions(state: StudyState) -> list[PlannerNote]:
    return [note for note in state.notebook if note.kind == "ask"]


def _verdict_json(state: StudyState, folder: Path, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as a script gets it: all of it, or that it does not follow, and nothing that it claims."""
    if (reason := verdict_fault(state, folder, verdict)) is None:
        speaks = None if verdict.verdict == "invalid" else verdict.scope
        return {**verdict.model_dump(mode="json"), "scope": speaks, "by_margin": verdict.by_margin}
    said = f"{reason}; ajet study verify {state.id}"
    return {"hypothesis": verdict.hypothesis, "verdict": DOES_NOT_FOLLOW, "reason": said}


def report_paths(state: StudyState, folder: Path) -> dict[str, str] | None:
    if state.report is None:
        return None
    return {kind: str(folder / state.report[kind]["path"]) for kind in ("markdown", "html")}


def render_opening(state: StudyState) -> list[Text]:
    question = question_of(state)
    return [
        Text(f"asked  {question.asked}"),
        *(
            Text(f"tested{round_suffix(each)}  {sentence}")
            for each in state.rounds
            for sentence in question_of(each).tested
        ),
        *(Text(f"not tested  {left}", "yellow") for left in question.not_tested),
    ]


def round_suffix(state: StudyState) -> str:
    return "" if state.most_rounds == 1 else f" in round {state.round}"


def render_ending(state: StudyState, folder: Path) -> RenderableType:
    lines: list[RenderableType] = []
    for each in (*state.rounds_before, state):
        head = headline(each, lock_error(each, folder))
        lines += [Text(line, "bold red") for line in head.warnings]
        for answer in head.answers if each is not state or state.verdicts else ():
            name = f"{answer.hypothesis}: " if len(head.answers) > 1 or state.rounds_before else ""
            lines += _answer_lines(each, folder, answer, name if each is state else f"round {each.round}, {name}")
    if state.explored is not None:
        lines += [Text(f"{answer.label}: {answer.sentence}", "bold") for answer in head.answers]
        lines += [Text(f"explored  {_describe_explored(entry)}") for entry in _explored_json(state)]
    if state.said is not None:
        lines.append(Text(f"{'declined' if state.declined else 'said'}  {last_words(state)}"))
    doubted = head.warnings or any(
        verdict_fault(each, folder, found) for each in state.rounds for found in each.verdicts
    )
    if state.most_rounds > 1:
        asked_on = (decision.reason for decision in state.decisions if decision.rule == ASK_RULE)
        lines += [Text(f"no further question: {reason}") for reason in asked_on]
    if state.status == "concluded" and not doubted:
        lines.append(Text(f"ask next, {head.next.why}{f': {head.next.command}' if head.next.command else ''}"))
    if state.status == "stopped":
        lines.append(Text(f"stopped: {state.stopped_reason}; {describe_resume(state)}", "yellow"))
    if state.status == "paused":
        lines.append(Text(describe_pause(state), "yellow"))
    if state.open_question is not None:
        lines.append(render_question(state))
    for kind, path in (report_paths(state, folder) or {}).items():
        edit = ""
        try:
            if state.report is not None and sha256(Path(path).read_bytes()).hexdigest() != state.report[kind]["sha256"]:
                edit = f"  (changed after it was written; see: ajet study verify {state.id})"
        except OSError as error:
            edit = f"  (it cannot be read: {error.strerror})"
        lines.append(Text(f"report  {path}{edit}"))
    if state.status in ("concluded", "stopped"):
        kept = f"keep it: ajet study verify {state.id} --head {state.head_hash[:16]}"
        lines.append(Text(f"head  {state.head_hash}  ({kept})"))
    return Group(*lines)


def _describe_explored(entry: Mapping[str, Any]) -> str:
    if entry["before"] is None or entry["after"] is None:
        return f"{entry['arm']}: {entry['status']}"
    said = f"{entry['arm']}: {entry['before']:.3f} → {entry['after']:.3f} of search tasks, in {entry['seconds']:.0f} s"
    known = entry["value"] is not None and entry["value"] != entry["after"]
    return f"{said}; {entry['metric']} {entry['value']:.3f}" if known else said


def _answer_lines(state: StudyState, folder: Path, answer: HeadlineAnswer, name: str) -> list[RenderableType]:
    verdict = state.verdict_on(answer.hypothesis)
    told = _verdict_json(state, folder, verdict) if verdict is not None else None
    if told is not None and told["verdict"] == DOES_NOT_FOLLOW:
        return [Text.assemble(name, (DOES_NOT_FOLLOW, _STYLES[DOES_NOT_FOLLOW]), f": {told['reason']}")]
    said = Text.assemble(name, (answer.label, _STYLES.get(answer.verdict, "bold")), f": {answer.sentence}")
    return [said] if verdict is None else [said, Text(f"in practice: {answer.practice}")]


def describe_pause(state: StudyState) -> str:
    said = "nothing new begins, what runs finishes; go on with"
    return f"paused: {state.paused_reason}; {said}: ajet study resume {state.id}"


def render_question(state: StudyState, *, how: bool = True) -> Text:
    """Say what a study asks to be approved, what it costs, and `how` it is answered; empty where it asks nothing."""
    if (asked := state.open_question) is None:
        return Text()
    lines = [f"asks to begin: {asked.question.would}", describe_cost(asked), f"answer: {how_to_answer(state)}"]
    return Text("\n  ".join(lines if how else lines[:2]), "bold yellow")


def question_json(asked: LoggedApprovalRequest) -> dict[str, Any]:
    return {**asked.question.model_dump(mode="json"), "digest": asked.digest, "ts": asked.ts}


def answer_json(entry: ApprovalAnswer) -> dict[str, Any]:
    told = {"granted": entry.granted, "by": entry.by, "note": entry.note, "ts": entry.ts}
    return {**told, "asked": question_json(entry.asked)}


def describe_resume(state: StudyState) -> str:
    """Say what makes more runs: a study whose budget is used up only concludes when it is resumed as it is."""
    resume = f"ajet study resume {state.id}"
    named = re.search(r"--budget (\w+)", state.stopped_reason or "")  # so that a sentence has one budget
    more = named[1] if named else format_flag(2 * state.budget_s)
    if state.budget_decision is None:
        planned = state.design is not None or state.noise_plan is not None or state.explorations
        if not planned and state.budget_amended < state.stopped_seq:
            return (
                f"plan again with: {resume}; where time was missing, give it more before: "
                f'ajet study amend {state.id} --budget {more} --reason "..."'
            )
        return f"go on with: {resume}"
    has_plan = state.design is not None or state.explored is not None
    if runs_left(state) == 0:
        return f"conclude with: {resume}" if has_plan else "start it again with a larger --max-runs"
    if state.design is not None and state.design.hypotheses and not open_hypotheses(state, state.design):
        return f"each hypothesis had its last look, so more time changes nothing; conclude with: {resume}"
    without = "concludes" if has_plan else "stops again"
    late = ", exploratory ones, as the level is spent" if any(verdict.last for verdict in state.verdicts) else ""
    return (
        f'for more runs{late}: ajet study amend {state.id} --budget {more} --reason "..." and then {resume}; '
        f"resumed without, it {without}"
    )


def list_row(state: StudyState, folder: Path) -> list[str]:
    """Return a study's id, status (with the round), runs, verdicts, when it was created, and its topic."""
    progress = progress_of(state)
    where = "" if state.most_rounds == 1 else f" (round {state.round}/{state.most_rounds})"
    status = f"{'declined' if state.declined else state.status}{where}"
    verdicts = (
        ", ".join(
            verdict.verdict if verdict_fault(each, folder, verdict) is None else DOES_NOT_FOLLOW
            for verdict in each.verdicts
        )
        for each in state.rounds
    )
    runs = f"{progress.done}/{progress.most or progress.done}"
    found = "nothing tested" if state.explores else " | ".join(filter(None, verdicts))
    return [state.id, status, runs, found, state.created[:16], state.topic]


def show(name: Name = None, json: Json = False) -> None:
    """Show one study: hypotheses, design, runs, verdicts.

    Examples:
        ajet study show
        ajet study show larger-group --json
    """
    home, _, state = open_study(name)
    if json:
        print_json({**summary(state, home.study(state.id)), **_details(state)})
        return
    out, folder, many = console(), home.study(state.id), state.most_rounds > 1
    errors = (lock_error(each, folder) for each in state.rounds if each.verdicts and folder.is_dir())
    if error := next(filter(None, errors), None):
        out.print(Text(f"{error}. No verdict follows from it; see: ajet study verify {state.id}", "bold red"))
    # Topics and statements are people's and models' words: never read as markup.
    now = f", round {state.round} of at most {state.most_rounds}" if many else ""
    out.print(Text.assemble((state.id, "bold"), f"  {state.status}{now}"))
    out.print(*render_opening(state), sep="\n")
    codes: dict[tuple[str, str], None] = {}  # a name may stand for another source in another round
    for one_round in state.rounds:
        if (design := one_round.design) is not None:
            arms, most = " vs ".join(arm.name for arm in design.arms), "at most " if len(design.looks) > 1 else ""
            lock = (one_round.design_hash or "")[:16]
            out.print(
                f"design{round_suffix(one_round)}  {arms}, {most}{len(design.seeds)} seeds each, locked as {lock}"
            )
            codes |= dict.fromkeys(design.code.items())
        for issue in one_round.abandoned:
            out.print(Text(f"repaired{round_suffix(one_round)}  {issue.describe()}"))
    for name, source in codes:
        digest = sha256(source.encode()).hexdigest()[:16]
        where = "an expression" if is_expression(source) else "Python; runs in containers only"
        out.print(Text(f"code {name}  {len(source.splitlines())} lines, sha256 {digest}; {where}"))
    out.print(f"sandbox  {read_sandboxing(state.settings).describe()}")
    out.print(f"progress  {progress_of(state)}")
    split = "search" if state.explores else "hidden"
    names = ("run", "arm", "seed", "status", "tries", f"{split} before", f"{split} after", "seconds")
    rows = []
    for one_round in state.every_round:
        for run in one_round.all_runs.values():
            values = (run.measurements.get(key) for key in (f"{split}/success/initial", f"{split}/success"))
            shown = (f"{value.value:.3f}" if value else "" for value in values)
            status = run.status if run.run_id in one_round.runs else "abandoned"
            about_run = (run.run_id, run.spec.arm, str(run.spec.seed), status, str(len(run.attempts)))
            rows.append((*about_run, *shown, f"{run.seconds:.0f}", *((str(one_round.round),) if many else ())))
    out.print(make_table((*names, "round") if many else names, rows))
    for name, spent in planner_facts(state) if any(act.spent for act in state.planner_acts) else ():
        out.print(f"{name.lower()}  {spent}")
    for note in (questions := planner_questions(state)):
        out.print(Text(f"planner asks  {sanitize_line(note.text)}", "bold yellow"))
    if questions:
        out.print(Text(f'answer: ajet study note {state.id} "..."'))
    out.print(render_ending(state, folder))


def _details(state: StudyState) -> dict[str, Any]:
    def plan(of: StudyState) -> dict[str, Any]:
        at_own = values_at_own(of)
        return {"hypotheses": of.hypotheses, "design": of.design} | ({"at_own_value": at_own} if at_own else {})

    def wandb(run: RunState) -> dict[str, str]:
        last = run.attempts[-1] if run.attempts else None
        return {"wandb": last.url, "wandb_copy": last.standing} if last is not None and last.url else {}

    rounds = [
        {**round_progress(each), "why_asked": each.why_asked, "design_hash": each.design_hash, **plan(each)}
        for each in state.rounds
    ]
    return {
        **({} if state.most_rounds == 1 else {"rounds": rounds}),
        **plan(state),
        "sandbox": read_sandboxing(state.settings),
        "approvals": [answer_json(entry) for entry in state.approvals],
        "run_table": [
            {
                **round_number(each), "run": run.run_id, "arm": run.spec.arm, "seed": run.spec.seed,
                **({} if run.run_id in each.runs else {"abandoned": True}),
                "status": run.status, "attempts": len(run.attempts), "seconds": run.seconds,
                **{key: measurement.value for key, measurement in run.measurements.items()},
                **wandb(run),
            }
            for each in state.every_round for run in each.all_runs.values()
        ],
    }  # fmt: skip
