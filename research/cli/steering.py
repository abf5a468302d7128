"""Watch, resume, reproduce, pause, stop, approve, amend, veto, challenge, prune, remove."""

import shutil
import sys
import time
from contextlib import ExitStack, nullcontext
from typing import Annotated, Any

import typer

from research.cli import research
from research.cli.app import Json, Name, answer, console, open_installation, open_study, print_json
from research.cli.reports import open_verified
from research.cli.studies import render_ending, render_question
from research.controller import interventions
from research.controller.options import Detach, reopen_isolation, reopen_planner
from research.controller.session import PLANNER_OPTIONS, has_controller, hold_lease, request_reproduction, require_files
from research.design.known_findings import load_findings
from research.errors import BadInput
from research.files import size_of
from research.installation.home import Home
from research.installation.studies import find_study
from research.orchestration.handover import find_worker
from research.planners.rules import RulesPlanner
from research.runs.files import Keep, prune_runs
from research.scheduler.next_step import is_done
from research.scheduler.required_runs import attempts_running
from research.shown.listing import read_listing
from research.shown.study import answer_json, describe_resume, summary
from research.text import format_seconds, format_size, warn
from sandboxes import ProcessSandbox
from studies import Event, EventLog, EventType, LeaseHeld, StudyLog, StudyState, fold
from studies.log.fold import SERVED, WORKED

Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the report.")]


def amend(
    name: Name = None,
    accept: Annotated[str | None, typer.Option(help="Code of a violation, or of a run's end, to let pass.")] = None,
    budget: Annotated[str | None, typer.Option(help="New budget: 2h, 1h30m or 20USD (docs/machines.md).")] = None,
    note: Annotated[str | None, typer.Option(help="What a reader, and the planner, should know.")] = None,
    reason: Reason = None,
    json: Json = False,
) -> None:
    """Amend a study in the open: accept a violation, change its budget (before the lock too), or add a note.

    What is accepted after the first result makes verdicts exploratory; another budget leaves a last look less level.

    Examples:
        ajet study amend larger-group --accept co_tenancy --reason "a backup ran beside both arms"
        ajet study amend larger-group --budget 2h --reason "the machine is slower than priced"
        ajet study amend larger-group --note "the machine was moved on Tuesday"
        ajet study amend larger-group --note "Yes, arith matters to us as much as guess."
    """
    record = _find(name)
    given = {"--accept": accept, "--budget": budget, "--note": note}
    named = [flag for flag, value in given.items() if value is not None]
    if len(named) != 1:
        raise BadInput(f"expected one of --accept, --budget and --note; found {', '.join(named) or 'none'}")
    if note is not None and reason is not None:
        raise BadInput("expected a note without --reason; found both; the note is its own reason")
    if accept is not None:
        event = interventions.accept_violation(record, accept, reason)
    elif budget is not None:
        seconds = interventions.read_budget(Home.locate(), record.state(), budget)
        event = interventions.change_budget(record, seconds, reason)
    else:
        event = interventions.add_note(record, note or "")
    _answer_amendment(record, event, json)


def challenge(
    claim: Annotated[str, typer.Argument(help="A claim as `ajet findings` names it: STUDY/ROUND/CLAIM.")],
    evidence: Annotated[str, typer.Option(help="What speaks against it: STUDY, or STUDY/ROUND/CLAIM.")],
    reason: Annotated[str, typer.Option(help="Why, for whoever reads the claim.")],
    json: Json = False,
) -> None:
    """Write evidence against a claim into its study; its verdict stays, and is shown with the challenge from then on.

    Example:
        ajet study challenge larger-group-5d2c/1/h1 --evidence again-81aa/1/h1 --reason "not so with 3 times the seeds"
    """
    home, log = open_installation()
    known = {finding.name: finding for finding in load_findings(home, log).findings}
    (target, *place), (other, *rest) = (name.split("/") for name in (claim, evidence))
    claim, evidence = ("/".join([find_study(log, name), *more]) for name, more in ((target, place), (other, rest)))
    if claim not in known or claim.count("/") != 2:
        raise BadInput(f"expected a claim with a verdict, as STUDY/ROUND/CLAIM; found {claim:.80}; see: ajet findings")
    if claim == evidence or not any(name == evidence or name.startswith(f"{evidence}/") for name in known):
        raise BadInput(f"expected --evidence of another claim with a verdict; found {evidence:.80}; see: ajet findings")
    if known[claim].replications.get(evidence.split("/")[0]) == "replicated":
        raise BadInput(f"expected --evidence against {claim}; found {evidence:.80}, which replicates it; name another")
    record = _find(claim.split("/")[0])
    _answer_amendment(record, interventions.add_note(record, reason, claim=place[1], evidence=evidence), json)


def veto(
    name: Annotated[str, typer.Argument(help="Study id or its beginning.")],
    hypothesis: Annotated[str, typer.Argument(help="Id of the hypothesis, such as h1.")],
    reason: Reason = None,
    json: Json = False,
) -> None:
    """Give a hypothesis up: its runs are ended, no more are begun, and it is judged on what is there.

    Example:
        ajet study veto larger-group h2 --reason "its reward is known to be hacked"
    """
    record = _find(name)
    _answer_amendment(record, interventions.veto_hypothesis(record, hypothesis, reason), json)


def _find(name: str | None) -> StudyLog:
    _, log, state = open_study(name)
    return StudyLog(log, state.id)


def _answer_amendment(record: StudyLog, event: Event, json: bool) -> None:
    state = record.state()
    amended = next((change for change in state.amendments if change.seq == event.seq), None)
    if amended is None:
        details = dict(event.payload)
        sentence = f"hypothesis {event.payload['hypothesis']} of study {state.id} is vetoed; it gets no more runs"
    else:
        details = {"amendment": amended.amendment, "after_data": amended.after_data}
        sentence = f"noted in study {state.id}"
        if amended.amendment.kind == "budget":
            sentence = f"study {state.id} now has a budget of {format_seconds(state.budget_s)}"
            if state.design is not None and state.design.spending == "reached" and state.budget_touched:
                sentence += "; should it end between two looks, a last look has the level of the part that was reached"
        elif amended.amendment.kind == "accept":
            late = ", after the first result: verdicts that it touches are exploratory" if amended.after_data else ""
            sentence = f"study {state.id} now accepts {amended.amendment.target}{late}"
    stopped = [describe_resume(state)] if state.status == "stopped" else []
    payload = {"study": event.study, "seq": event.seq, "type": event.type.value, **details}
    answer(json, payload, sentence, *stopped)


AskingStudy = Annotated[str | None, typer.Argument(help="Study id or its beginning; the one that asks when left out.")]
Note = Annotated[str, typer.Option(help="What to say with it, for the report.", show_default=False)]


def approve(name: AskingStudy = None, note: Note = "", json: Json = False) -> None:
    """Approve what a study waits for (`ajet research --approve`), after showing what it is and what it costs.

    Of answers that come at once one counts. Where nothing is asked, nothing happens, and the exit code is 2.

    Examples:
        ajet study approve
        ajet study approve larger-group --note "within this week's hours"
    """
    _answer_question(name, note, json, granted=True)


def deny(name: AskingStudy = None, note: Note = "", json: Json = False) -> None:
    """Deny what a study waits for: it stops, and its verdicts so far stand. `ajet study resume` asks again.

    Examples:
        ajet study deny
        ajet study deny larger-group --note "too dear for what it would tell"
    """
    home, log, state = _answer_question(name, note, json, granted=False)
    if any(attempts_running(state)):
        interventions.end_attempts(home, log, StudyLog(log, state.id), warn)


def _answer_question(name: str | None, note: str, json: bool, *, granted: bool) -> tuple[Home, EventLog, StudyState]:
    home, log = open_installation()
    if name is None:  # the study that asks; of several none, as each costs something
        several = [line.summary["study"] for line in read_listing(home, log) if line.summary["asks"] is not None]
        if len(several) > 1:
            found = ", ".join(several)
            raise BadInput(f"expected the name of one of the studies that wait for approval; found {found}")
        name = several[0] if several else None
    record = StudyLog(log, find_study(log, name))
    asked = interventions.require_question(state := record.state())
    if not json:
        console().print(render_question(state, how=False))
    given = interventions.answer_question(record, asked.digest, "command", note, granted=granted)
    state = record.state()
    resume, driven = f"ajet study resume {state.id}", has_controller(home, log, state.id)
    if state.denial is not None:
        told = state.design is None or driven  # a controller that lives builds it
        report = "" if told else f"; its report: ajet study report {state.id} --build"
        following = f"study {state.id} stops; to be asked again: {resume}{report}"
    elif state.stopped_reason is not None or not driven:
        following = f"nobody works on study {state.id} now; go on with: {resume}"
    elif state.paused_reason is not None:
        following = f"study {state.id} is paused; go on with: {resume}"
    else:
        following = f"study {state.id} goes on under its controller"
    answer(json, {"study": state.id, "seq": given.seq, **answer_json(given)}, f"{given.describe()}; {following}")
    return home, log, state


def watch(name: Name = None) -> None:
    """Follow a study until it ends; it is not stopped when you leave.

    Example:
        ajet study watch
    """
    home, log, state = open_study(name)
    observer, shown = research.make_observer(home, state)
    record = StudyLog(log, state.id)  # reads only what is new
    with shown:
        while not (is_done(state) or (state.concluded_reason is not None and state.newest_report is not None)):
            observer.observe(state)
            time.sleep(1.0)
            state = record.state()
        observer.observe(state)
    console().print(render_ending(state, home.study(state.id)))


def resume(
    name: Name = None,
    prefect: Annotated[bool, typer.Option(help="Show the study in a local Prefect server.")] = True,
    detach: Detach = False,
    planner_max_tokens: Annotated[int | None, typer.Option(help="A larger cap on its planner's tokens.")] = None,
    planner_max_cost: Annotated[float | None, typer.Option(help="The same in money.")] = None,
    json: Json = False,
) -> None:
    """Go on with a study that was paused or stopped, or whose controller was killed; runs that go on are adopted.

    Exit codes: 0 concluded, or judged on what its budget carried; 2 bad input, or a machine that cannot do it; 3
    stopped by its budget with nothing to judge (`ajet study amend --budget` gives it more); 130 stopped by a person.

    Examples:
        ajet study resume
        ajet study resume larger-group --no-prefect
        ajet study resume larger-group --detach
        ajet study resume larger-group --planner-max-tokens 400000
    """
    caps = {"planner_max_tokens": planner_max_tokens, "planner_max_cost": planner_max_cost}
    raised = {name: most for name, most in caps.items() if most is not None}
    if raised and detach:
        raise BadInput("expected a larger cap without --detach, as a worker takes a study as it is; found both")
    home, log, state = open_study(name)
    if state.status == "concluded" and is_done(state):
        _show_end(home, log, state.id, json)
        return
    home.prepare()
    command = ["ajet", *sys.argv[1:]]
    ongoing = f"study {state.id} goes on under the controller that has it; follow it with: ajet study watch {state.id}"
    if detach:
        research.require_detachable(prefect=prefect)
        if state.stopped_reason is None and has_controller(home, log, state.id, local=True):
            interventions.request_continue(log, state.id, command)
            _show_end(home, log, state.id, json, ongoing)
        else:
            research.tell_handed_over(home, state.id, find_worker(home)(state.id), json=json)
        return
    planner = reopen_planner(home, log, state, raised)
    isolation = research.choose_isolation(json, lambda note: reopen_isolation(home, state, note))
    try:
        with hold_lease(home, log, state.id, warn) as lease:
            said = {"command": command, WORKED: 0.0, SERVED: False, **({PLANNER_OPTIONS: raised} if raised else {})}
            StudyLog(log, state.id).change(lambda state: (EventType.STUDY_RESUMED, said), actor="user")
            research.conduct(home, log, state.id, planner, lease=lease, isolation=isolation, prefect=prefect, json=json)
    except LeaseHeld:
        if raised or not interventions.request_continue(log, state.id, command):
            raise
        _show_end(home, log, state.id, json, ongoing)


def reproduce(
    name: Annotated[str, typer.Argument(metavar="ID|EXPORT", help="Study id or its beginning, or an export's folder.")],
    claims: Annotated[str, typer.Option(help="Claims of one round, such as h1,h2; else all it decided.")] = "",
    budget: Annotated[str | None, typer.Option(help="As of `ajet research`; else what that study had.")] = None,
    prefect: Annotated[bool, typer.Option(help="Show the study in a local Prefect server.")] = True,
    detach: Detach = False,
    json: Json = False,
) -> None:
    """Put claims of a study to the test again: a new study under its lock, with new seeds and no planner.

    Arms, jobs, metric, number of seeds, looks, rule and level are those of the lock. It ends with a verdict on each
    claim, `replicated`, `not replicated` or `inconclusive`, both intervals side by side; nothing is pooled.

    Exit codes: as of `ajet research`; 2 also for a study that does not verify, goes on, or decided nothing.

    Examples:
        ajet study reproduce larger-group
        ajet study reproduce exports/larger-group --claims h1 --budget 2h --json
    """
    named, home = claims.replace(",", " ").split(), Home.locate().prepare()
    request = request_reproduction(home, state := open_verified(name), named, budget)
    cluster = [(each.design.base_job.get("verl") or {}).get("address") for each in state.rounds if each.design]
    if away := sorted({*state.settings.get("servers", ()), *filter(None, cluster)}):
        warn(f"study {state.id} trained on {', '.join(away)}; this one trains on this machine")
    research.begin(request, RulesPlanner(), None, prefect=prefect, detach=detach, json=json)


def pause(name: Name = None, json: Json = False) -> None:
    """Let a study begin nothing new, while the runs that are under way finish; `resume` lets it go on.

    Time in which nothing runs is not charged to its budget.

    Example:
        ajet study pause
    """
    home, log, state = open_study(name)
    if not interventions.request_pause(log, state.id):
        raise BadInput(f"expected a study that goes on; {state.id} is {state.status}; there is nothing to pause")
    _show_end(home, log, state.id, json)


def stop(name: Name = None, json: Json = False) -> None:
    """Stop a study: its runs are ended, what was collected is kept, `resume` goes on.

    Example:
        ajet study stop
    """
    home, log, state = open_study(name)
    interventions.request_stop(home, log, state.id, note=warn)
    _show_end(home, log, state.id, json)


def _show_end(home: Home, log: EventLog, study: str, json: bool, *more: str) -> None:
    state, folder = fold(log.read(study)), home.study(study)
    if json:
        print_json(summary(state, folder))
    else:
        answer(json, None, render_ending(state, folder), *more)


def prune(
    names: Annotated[list[str], typer.Argument(metavar="ID...", help="Study ids or their beginnings.")],
    keep: Annotated[Keep, typer.Option(help="Checkpoints of each run that stay.")] = "last",
    tokens: Annotated[bool, typer.Option("--tokens", help="Stores of tokens go too: no export without.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
) -> None:
    """Remove checkpoints of runs that nobody goes on with: collected, given up, or of a concluded study.

    `last` leaves a run's last weights without the optimiser's state, as is done by itself once a run is collected. No
    report, proof or verdict needs any of it; exported models are copies.

    Example:
        ajet study prune larger-group another-study --keep none --tokens --dry-run
    """
    home, log = open_installation()
    told = list[dict[str, Any]]()
    for study in dict.fromkeys(find_study(log, name) for name in names):
        require_files(home, log, study)
        with nullcontext() if dry_run else hold_lease(home, log, study, warn):
            pruned = prune_runs(home.study(study), fold(log.read(study)), keep, stores=tokens, dry=dry_run)
        told.append({"study": study, **pruned})
    line = "{study}  {checkpoints} checkpoints, {stores} stores, {size} " + ("would be freed" if dry_run else "freed")
    answer(json, {"studies": told, "dry_run": dry_run}, *(line.format(size=format_size(t["bytes"]), **t) for t in told))


def remove(
    names: Annotated[list[str], typer.Argument(metavar="ID...", help="Study ids, whole.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also where another study names it.")] = False,
    json: Json = False,
) -> None:
    """Remove whole studies for good: log, reviews, reports, runs and evidence. Nothing of it can come back.

    Refused (exit code 2) while it is driven or an attempt runs, where another study names it (follows its claim), and
    without --yes where nobody can be asked. Prices and noise that it measured go; copies at W&B and exports stay.

    Example:
        ajet study remove larger-group-5d2c another-study-81aa --yes
    """
    home, log = open_installation()
    if unknown := {*names} - {*log.studies()}:
        raise BadInput(f"expected whole ids of studies; found {min(unknown)!r:.80}; see: ajet study list")
    sizes = {study: size_of(home.study(study)) for study in names}
    lines = [f"{study} ({format_size(size)})" for study, size in sizes.items()]
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise BadInput(f"expected --yes to remove {', '.join(lines)}, as nobody can be asked here")
        typer.confirm(f"Remove {', '.join(lines)}? It cannot come back.", abort=True, err=True)
    with ExitStack() as held:
        for study in sizes:
            require_files(home, log, study)
            held.enter_context(hold_lease(home.prepare(), log, study, warn))
        held.enter_context(home.creation_lock())  # a study that begins may follow one of them
        for handle in ProcessSandbox(home.sandboxes).list():
            if (study := handle.labels.get("study", "")) in sizes and handle.poll() is None:
                raise BadInput(f"expected no attempt that runs; found {handle.name}; end it: ajet study stop {study}")
        if (others := log.naming(sizes)) and not force:
            raise BadInput(f"expected no study that names one of them; found {', '.join(others)}; say --force")
        for study in sizes:  # again where it was killed; what ran when stays known by the sandboxes' records
            if home.study(study).exists():
                shutil.rmtree(home.study(study))
            log.remove(study)
    answer(json, {"removed": sizes}, *(f"removed  {line}" for line in lines))
