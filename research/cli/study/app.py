"""`ajet study`: look at studies, watch them, stop, pause and resume them, read their reports."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from research.cli.once import NamingOnce
from research.cli.output import console, print_json, warn
from research.cli.study.amend import amend, veto
from research.cli.study.approve import approve, deny
from research.cli.study.listing import ListedStudy, listed
from research.cli.study.plan import plan
from research.cli.study.proof import export, verify
from research.cli.study.request import Detach
from research.cli.study.run import conduct, detached, isolating, watching
from research.cli.study.summary import (
    answered_of,
    changed_lock,
    ending,
    generated_rewards,
    opening,
    report_paths,
    summary,
)
from research.errors import NoReport, NotRunning, StudyBusy
from research.installation.home import Home
from research.isolation.mode import sandboxing_of
from research.requests import isolation_again, planner_again
from research.scheduling.next_step import is_done
from research.serving.handing import worker_of
from research.study.one_controller import controlling
from research.study.progress import progress_of
from research.study.session import find_study
from research.study.stop import request_continue, request_pause, request_stop
from studies import EventLog, EventType, HeadMoved, RunState, StudyLog, StudyState, fold
from studies.log.fold import SERVED, WORKED
from studies.proof.reports import before_report
from studies.report import build_report, draw_metric
from studies.report.parts.kept import written

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str | None, typer.Argument(help="Study id or its beginning; the newest when left out.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@app.callback()
def study() -> None:
    """Studies: plan, list, show, watch, approve, deny, pause, stop, resume, amend, veto, report, verify, export."""


app.command(cls=NamingOnce)(plan)
app.command()(amend)
app.command()(veto)
app.command()(approve)
app.command()(deny)
app.command()(verify)
app.command()(export)


@app.command("list")
def list_studies(json: Json = False) -> None:
    """List all studies, newest first; one whose log cannot be read is shown as `corrupt`, with the reason.

    What nothing was added to since the last list is not read again; `ajet study verify` reads all of a study.

    Examples:

        ajet study list

        ajet study list --json
    """
    home, log = _open()
    studies = _every_line(home, log, json)
    if json:
        print_json([line.summary for line in studies])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("study", "status", "runs", "verdicts", "created", "topic"):
        table.add_column(column, header_style="dim", no_wrap=column != "topic")
    for line in studies:
        table.add_row(*map(Text, line.row))
    console().print(table if studies else 'no study yet; begin one with: ajet research "..."')


def _every_line(home: Home, log: EventLog, json: bool) -> list[ListedStudy]:
    if json or not console().is_terminal:
        return listed(home, log)
    with console().status("reading studies") as status:
        return listed(home, log, lambda done, of: status.update(Text(f"reading study {done + 1} of {of}")))


@app.command()
def show(name: Name = None, json: Json = False) -> None:
    """Show one study: hypotheses, design, runs, verdicts.

    Examples:

        ajet study show

        ajet study show larger-group --json
    """
    home, _, state = _find(name)
    if json:
        print_json({**summary(state, home.study(state.id)), **_details(state)})
        return
    out = console()
    if (changed := changed_lock(state, home.study(state.id))) is not None:
        out.print(Text(changed, "bold red"))
    # Topics and statements are people's and models' words: never read as markup.
    out.print(Text.assemble((state.id, "bold"), f"  {state.status}"))
    for line in opening(state):
        out.print(line)
    if state.design is not None:
        arms = " vs ".join(arm.name for arm in state.design.arms)
        most = "at most " if len(state.design.looks) > 1 else ""
        said = f"{arms}, {most}{len(state.design.seeds)} seeds each, locked as {(state.design_hash or '')[:16]}"
        out.print(f"design  {said}")
    for line in generated_rewards(state):
        out.print(line)
    out.print(f"sandbox  {sandboxing_of(state.settings).described()}")
    out.print(f"progress  {progress_of(state)}")
    out.print(_runs(state))
    out.print(ending(state, home.study(state.id)))


@app.command()
def watch(name: Name = None) -> None:
    """Follow a study until it ends; it is not stopped when you leave.

    Example:

        ajet study watch
    """
    home, log, state = _find(name)
    observer, shown = watching(home, state)
    with shown:
        while not is_done(state):
            observer.observe(state)
            time.sleep(1.0)
            state = fold(log.read(state.id))
        observer.observe(state)
    console().print(ending(state, home.study(state.id)))


@app.command()
def resume(
    name: Name = None,
    prefect: Annotated[bool, typer.Option(help="Show the study in a local Prefect server.")] = True,
    detach: Detach = False,
    json: Json = False,
) -> None:
    """Go on with a study that was paused or stopped, or whose controller was killed; runs that go on are adopted.

    Exit codes: 0 concluded; 2 bad input, or a machine that cannot do it; 3 stopped by its budget (what was measured is
    judged; `ajet study amend --budget` gives it more); 130 stopped by a person.

    Examples:

        ajet study resume

        ajet study resume larger-group --no-prefect

        ajet study resume larger-group --detach
    """
    home, log, state = _find(name)
    if state.status == "concluded" and is_done(state):
        _show_end(home, state, json)
        return
    home.prepare()
    if detach:
        detached(worker_of(home), state.id, json)
        return
    planner = planner_again(home, log, state)
    command = ["ajet", *sys.argv[1:]]
    isolation = isolating(json, lambda note: isolation_again(home, state, note))
    try:
        with controlling(home, log, state.id, warn) as lease:
            said = {"command": command, WORKED: 0.0, SERVED: False}
            StudyLog(log, state.id).change(lambda state: (EventType.STUDY_RESUMED, said), actor="user")
            conduct(home, log, state.id, planner, lease=lease, isolation=isolation, prefect=prefect, json=json)
    except StudyBusy:
        if not request_continue(log, state.id, command):
            raise
        _show_end(home, fold(log.read(state.id)), json)
        if not json:
            console().print(
                f"study {state.id} goes on under the controller that has it; follow it with: "
                f"ajet study watch {state.id}"
            )


@app.command()
def pause(name: Name = None, json: Json = False) -> None:
    """Let a study begin nothing new, while the runs that are under way finish; `resume` lets it go on.

    Time in which nothing runs is not charged to its budget.

    Example:

        ajet study pause
    """
    home, log, state = _find(name)
    if not request_pause(log, state.id):
        raise NotRunning(f"expected a study that goes on; {state.id} is {state.status}; there is nothing to pause")
    _show_end(home, fold(log.read(state.id)), json)


@app.command()
def stop(name: Name = None, json: Json = False) -> None:
    """Stop a study: its runs are ended, what was collected is kept, `resume` goes on.

    Example:

        ajet study stop
    """
    home, log, state = _find(name)
    request_stop(home, log, state.id, note=warn)
    _show_end(home, fold(log.read(state.id)), json)


@app.command()
def report(
    name: Name = None,
    build: Annotated[bool, typer.Option("--build", help="Build it again.")] = False,
    plot: Annotated[
        list[str] | None,
        typer.Option(help="Draw this logged metric of every run, such as actor/entropy; give it again for another."),
    ] = None,
    json: Json = False,
) -> None:
    """Say where a study's report is; with --build, make it again from the log and the hashed files.

    A page that was changed by hand is kept under another name. Whether a report holds says `ajet study verify`.

    With --plot METRIC, draw any metric that was logged instead, as SVG and PNG in the study's folder `plots`.

    Examples:

        ajet study report

        ajet study report larger-group --build --json

        ajet study report --plot actor/entropy --plot actor/ppo_kl
    """
    home, log, state = _find(name)
    folder = home.study(state.id)
    if plot:
        _plotted(state, folder, plot, json)
        return
    paths = _built(log, state, folder) if build else report_paths(state, folder)
    if paths is None:
        raise NoReport(f"study {state.id} has no report yet (it is {state.status}); `ajet study resume` finishes it")
    if missing := [path for path in paths.values() if not Path(path).exists()]:
        raise NoReport(f"expected the report at {missing[0]}; it is gone; `ajet study report {state.id} --build`")
    if json:
        print_json({"study": state.id, **paths})
    else:
        console().print("\n".join(paths.values()))


def _plotted(state: StudyState, folder: Path, metrics: list[str], json: bool) -> None:
    """Draw metrics and say where the pictures are."""
    drawn = {metric: [str(path) for path in draw_metric(state, folder, metric)] for metric in metrics}
    if json:
        print_json({"study": state.id, "plots": drawn})
    else:
        console().print("\n".join(path for paths in drawn.values() for path in paths))


def _built(log: EventLog, state: StudyState, folder: Path) -> dict[str, str]:
    """Build the report of all that happened before a report did, and have the log know it unless it does already."""
    record = StudyLog(log, state.id)
    while True:
        state = record.state()
        shown = fold(before_report(log.read(state.id)[: state.event_count]))
        made = build_report(replace(shown, newest_report=state.newest_report), folder)
        for line in made.said():
            warn(line)
        payload = made.payload(folder)
        try:
            if written(state.newest_report) != written(payload):
                record.append(EventType.REPORT_BUILT, {**payload, WORKED: 0.0}, actor="user")
        except HeadMoved:
            continue
        return {"markdown": str(made.markdown), "html": str(made.html)}


def _show_end(home: Home, state: StudyState, json: bool) -> None:
    if json:
        print_json(summary(state, home.study(state.id)))
    else:
        console().print(ending(state, home.study(state.id)))


def _open() -> tuple[Home, EventLog]:
    home = Home.locate().for_reading()
    return home, EventLog(home.database)


def _find(name: str | None) -> tuple[Home, EventLog, StudyState]:
    home, log = _open()
    return home, log, fold(log.read(find_study(log, name)))


def _details(state: StudyState) -> dict[str, Any]:
    return {
        "hypotheses": [hypothesis.model_dump(mode="json") for hypothesis in state.hypotheses],
        "design": state.design.model_dump(mode="json") if state.design else None,
        "sandbox": sandboxing_of(state.settings).model_dump(mode="json"),
        "approvals": [answered_of(entry) for entry in state.approvals],
        "run_table": [
            {
                "run": run.run_id, "arm": run.spec.arm, "seed": run.spec.seed, "status": run.status,
                "attempts": len(run.attempts), "seconds": run.seconds,
                **{key: measurement.value for key, measurement in run.measurements.items()},
                **_copied(run),
            }
            for run in state.runs.values()
        ],
    }  # fmt: skip


def _copied(run: RunState) -> dict[str, str]:
    """Return where the log of a run's last attempt is shown at W&B, and how that copy stands; nothing for none."""
    last = run.attempts[-1] if run.attempts else None
    return {"wandb": last.url, "wandb_copy": last.standing} if last is not None and last.url else {}


def _runs(state: StudyState) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("run", "arm", "seed", "status", "tries", "hidden before", "hidden after", "seconds"):
        table.add_column(column, header_style="dim", no_wrap=True)
    for run in state.runs.values():
        values = [run.measurements.get(key) for key in ("hidden/success/initial", "hidden/success")]
        shown = [f"{value.value:.3f}" if value else "" for value in values]
        table.add_row(
            run.run_id,
            run.spec.arm,
            str(run.spec.seed),
            run.status,
            str(len(run.attempts)),
            *shown,
            f"{run.seconds:.0f}",
        )
    return table
