"""`ajet study report`: where it is, built again, other metrics drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from research.cli.output import console, print_json, warn
from research.cli.study.shown.finding import Json, Name, found
from research.cli.study.shown.summary import report_paths
from research.errors import NoReport
from research.study.one_controller import require_files
from studies import EventLog, EventType, HeadMoved, StudyLog, StudyState, fold
from studies.log.fold import WORKED
from studies.proof.reports import before_report
from studies.report import build_report, draw_metric
from studies.report.parts.kept import written


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
    home, log, state = found(name)
    folder = home.study(state.id)
    require_files(home, log, state.id)
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
