"""`ajet study show`, and what a terminal tells of a study at its end."""

from hashlib import sha256
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from research.cli.app import Json, Name, console, make_table, open_study, print_json
from research.controller.progress import progress_of
from research.design.known_findings import load_findings
from research.installation.shared_files import FilesAway
from research.isolation.mode import read_sandboxing
from research.planners.history import sanitize_line
from research.scheduler.approvals import describe_cost, how_to_answer
from research.shown import study
from research.text import warn
from studies import StudyState
from studies.log.event_log import lock_error
from studies.log.study import ASK_RULE
from studies.proof import DOES_NOT_FOLLOW, verdict_fault
from studies.records.design import is_expression
from studies.report.prose import last_words
from studies.report.summary import HeadlineAnswer, headline
from studies.report.tables import planner_facts
from studies.verdicts.wording import list_replications, question_of

_STYLES = {
    "supported": "bold green", "refuted": "bold red", "equivalent": "bold blue", "inconclusive": "bold yellow",
    "invalid": "bold red", DOES_NOT_FOLLOW: "bold red",
}  # fmt: skip


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


def render_ending(state: StudyState, folder: Path, replications: str = "") -> RenderableType:
    lines: list[RenderableType] = []
    for each in (*state.rounds_before, state):
        head = headline(each, lock_error(each, folder))
        lines += [Text(line, "bold red") for line in head.warnings]
        for answer in head.answers if each is not state or state.verdicts else ():
            name = f"{answer.hypothesis}: " if len(head.answers) > 1 or state.rounds_before else ""
            lines += _answer_lines(each, folder, answer, name if each is state else f"round {each.round}, {name}")
    for again in list_replications(state):
        lines.append(Text("{outcome}  {of}: there {there}; here {here}".format(**again), "bold"))
    if state.explored is not None:
        lines += [Text(f"{answer.label}: {answer.sentence}", "bold") for answer in head.answers]
        lines += [Text(f"explored  {study.describe_explored(entry)}") for entry in study.explored_json(state)]
    if state.said is not None:
        lines.append(Text(f"{'declined' if state.declined else 'said'}  {last_words(state)}"))
    doubted = head.warnings or any(verdict_fault(each, folder, one) for each in state.rounds for one in each.verdicts)
    if state.most_rounds > 1:
        asked_on = (decision.reason for decision in state.decisions if decision.rule == ASK_RULE)
        lines += [Text(f"no further question: {reason}") for reason in asked_on]
    if state.status == "concluded" and not doubted:
        follow = f"{head.next.why}{f': {head.next.command}' if head.next.command else ''}"
        lines.append(Text(f"ask next, {replications if replications and 'holds again' in follow else follow}"))
    if state.status == "stopped":
        lines.append(Text(f"stopped: {state.stopped_reason}; {study.describe_resume(state)}", "yellow"))
    if state.status == "paused":
        lines.append(Text(study.describe_pause(state), "yellow"))
    if state.open_question is not None:
        lines.append(render_question(state))
    for kind, path in (study.report_paths(state, folder) or {}).items():
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


def _answer_lines(state: StudyState, folder: Path, answer: HeadlineAnswer, name: str) -> list[RenderableType]:
    verdict = state.verdict_on(answer.hypothesis)
    told = study.verdict_json(state, folder, verdict) if verdict is not None else None
    if told is not None and told["verdict"] == DOES_NOT_FOLLOW:
        return [Text.assemble(name, (DOES_NOT_FOLLOW, _STYLES[DOES_NOT_FOLLOW]), f": {told['reason']}")]
    said = Text.assemble(name, (answer.label, _STYLES.get(answer.verdict, "bold")), f": {answer.sentence}")
    return [said] if verdict is None else [said, Text(f"in practice: {answer.practice}")]


def render_question(state: StudyState, *, how: bool = True) -> Text:
    """Say what a study asks to be approved, what it costs, and `how` it is answered; empty where it asks nothing."""
    if (asked := state.open_question) is None:
        return Text()
    lines = [f"asks to begin: {asked.question.would}", describe_cost(asked), f"answer: {how_to_answer(state)}"]
    return Text("\n  ".join(lines if how else lines[:2]), "bold yellow")


def show(name: Name = None, json: Json = False) -> None:
    """Show one study: hypotheses, design, runs, verdicts.

    Examples:
        ajet study show
        ajet study show larger-group --json
    """
    home, log, state = open_study(name)
    try:
        home.files.pull(log, state.id)
    except FilesAway as away:
        warn(str(away))
    again = [one for one in load_findings(home, log).findings if one.study == state.id and one.replications]
    if json:
        told = {"replications": {one.name: one.replications for one in again}}
        print_json({**study.summary(state, home.study(state.id)), **study.details(state), **told})
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
    if servers := state.settings.get("servers"):
        out.print(f"servers  {', '.join(servers)}")
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
    for note in (questions := study.planner_questions(state)):
        out.print(Text(f"planner asks  {sanitize_line(note.text)}", "bold yellow"))
    if questions:
        out.print(Text(f'answer: ajet study amend {state.id} --note "..."'))
    out.print(render_ending(state, folder, "; ".join(f"what goes beyond {one.name}{one.standing}" for one in again)))
