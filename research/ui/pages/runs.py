"""Runs of a study, or of all that train now: their curves, and a table that is filtered and sorted by its address."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException

from research.controller.progress import format_success
from research.installation.servers import servers
from research.runs.files import AttemptFolder, read_progress
from research.ui.curves import NOTHING, Chart, CurveReader, Look, PlottedRun, RunCurves, metric_chart
from research.ui.site import Page, Site, View, paged
from studies import RunState, StudyState
from studies.errors import StudiesError
from studies.report.evidence import REWARDS, SUCCESS
from studies.report.wording import duration, number

T = TypeVar("T")
ROWS: Final = 200
MOST_CHARTS: Final = 6
FILTERS: Final[Mapping[str, Callable[[PlottedRun], str]]] = {
    "round": lambda each: str(each.round), "phase": lambda each: each.run.spec.phase,
    "arm": lambda each: each.run.spec.arm, "status": lambda each: each.run.status,
}  # fmt: skip
SORTS: Final[Mapping[str, Callable[[PlottedRun], Any]]] = {
    "run": lambda each: each.run.run_id, "arm": lambda each: (each.place, each.round, each.run.spec.seed),
    "seed": lambda each: each.run.spec.seed, "status": lambda each: each.run.status,
    "try": lambda each: -len(each.run.attempts), "hidden": lambda each: -_measured(each.run),
    "seconds": lambda each: -each.run.seconds,
}  # fmt: skip


def _measured(run: RunState) -> float:
    found = run.measurements.get(run.spec.metric.key)
    return -math.inf if found is None else found.value


def placed_runs(state: StudyState, *, apart: bool = True) -> Iterator[PlottedRun]:
    """Yield all runs of a study; unless `apart`, an arm is one group in all rounds. Arms of designs come first, as in
    its report, so that they have the same colours."""
    rounds = state.every_round
    names = [arm.name for entry in rounds if entry.design is not None for arm in entry.design.arms]
    names += [run.spec.arm for entry in rounds for run in entry.all_runs.values()]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    for entry in rounds:
        later = f", round {entry.round}" if apart and len(rounds) > 1 else ""
        for run in entry.all_runs.values():
            arm, phase = run.spec.arm, run.spec.phase
            group = f"{arm}{'' if phase == 'confirm' else f', {phase}'}{later}"
            yield PlottedRun(state.id, run, group, places[arm], entry.round)


def count(every: Sequence[T], filters: Mapping[str, Callable[[T], str]]) -> dict[str, dict[str, int]]:
    """Return what each filter has to offer, with how many there are of it."""
    return {name: dict(sorted(Counter(map(of, every)).items())) for name, of in filters.items()}


def select(every: Iterable[T], filters: Mapping[str, Callable[[T], str]], asked: Mapping[str, str]) -> list[T]:
    """Return what has the values that are asked for, those that are not empty."""
    wanted = [(filters[name], value) for name, value in asked.items() if value]
    return [each for each in every if all(of(each) == value for of, value in wanted)]


def page(site: Site, view: View) -> Page:
    study = view.path.get("study", "")
    asked = {name: view.get(name) for name in FILTERS}
    if study:
        state = site.state(study)
        if not view.static and not view.query.keys() & asked.keys():  # one question at a time, as in a report
            begun = [entry.round for entry in state.every_round if entry.all_runs]
            asked["round"] = str(max(begun)) if len(begun) > 1 else ""
        every = list(placed_runs(state, apart=not asked["round"]))
    else:
        every = list(_running(site))
    drawn = select(every, FILTERS, asked)
    shown = sorted(drawn, key=SORTS[view.get("sort")]) if view.get("sort") in SORTS else drawn
    cut = paged(view, shown, ROWS)
    training = [each for each in cut["rows"] if each.run.active is not None]
    told = {each.run.run_id: found for each, found in zip(training, site.curves.read_all(training), strict=True)}
    charts, names = _charts(site.curves, select(every, FILTERS, {"round": asked["round"]}), drawn, view)
    values = {
        **cut, "study": study, "count": len(every), "shown": len(shown), "asked": asked, "sorts": tuple(SORTS),
        "filters": count(every, FILTERS), "charts": charts, "metrics": [chart.label for chart in charts],
        "names": sorted(names), "steps": view.get("x") == "steps",
        "servers": [] if study else [
            (name or "-", site.curves.server(process.folder)) for name, process in servers(site.home) if process
        ],
        "rows": [_row(site, each, told.get(each.run.run_id, NOTHING)) for each in cut["rows"]],
    }  # fmt: skip
    return Page("runs.html.jinja", f"Runs of {study}" if study else "What trains now", values, study or "*")


def _running(site: Site) -> Iterator[PlottedRun]:
    """Yield the runs that train now, of studies that can be read; arms of different studies apart."""
    places = dict[str, int]()
    for study in [each.summary["study"] for each in site.listing() if each.summary["runs"].get("running")]:
        with suppress(StudiesError, HTTPException):
            for each in placed_runs(site.state(study)):
                if each.run.active is not None:
                    group = f"{study}: {each.group}"
                    yield each._replace(group=group, place=places.setdefault(group, len(places)))


def _charts(
    curves: CurveReader, every: Sequence[PlottedRun], drawn: Sequence[PlottedRun], view: View
) -> tuple[list[Chart], set[str]]:
    """Return a chart of each metric that is asked for, of the usual one where none is, and the names of all."""
    draw = partial(metric_chart, curves, every, drawn, steps=view.get("x") == "steps")
    asked = list(dict.fromkeys(name for name in view.query.get("metric", ()) if name))[:MOST_CHARTS]
    first, names = draw(asked[0] if asked else SUCCESS)
    if not asked and names and SUCCESS not in names:
        first, names = draw(REWARDS if REWARDS in names else min(names))
    return [first, *(draw(metric)[0] for metric in asked[1:])], names


def _row(site: Site, each: PlottedRun, told: RunCurves) -> dict[str, Any]:
    run, collected = each.run, each.run.collected or {}
    conditions = collected.get("conditions") or {}
    step, solved = conditions.get("steps"), (conditions.get("course") or {}).get("last")
    hidden, seconds, remark = format_success(run), run.seconds, ": ".join(filter(None, run.invalid or ()))
    if run.active is not None:
        remark = "; ".join(wait.text for wait in told.snapshot.waits[:2]) if told.snapshot else told.fault
        if now := read_progress(AttemptFolder(site.home.attempt(each.study, run.run_id, run.active.number))):
            step, solved, seconds = now.step, now.train_success, seconds + now.seconds
            hidden = f"{number(now.hidden_success)} → …"
    elif run.status == "ended":
        remark = ": ".join(filter(None, (run.attempts[-1].code, run.attempts[-1].reason)))
    key = run.spec.metric.key
    if run.status == "collected" and not key.endswith("/success") and key in run.measurements:
        hidden += f"; {key} {number(run.measurements[key].value, unit=run.spec.metric.unit)}"
    return {
        "study": each.study, "id": run.run_id, "arm": each.group, "look": Look.at(each.place), "seed": run.spec.seed,
        "round": each.round, "status": run.status, "tries": len(run.attempts), "hidden": hidden, "remark": remark,
        "step": "" if step is None else f"{step} of {run.spec.job.get('steps', '?')}",
        "solved": "" if solved is None else number(solved), "seconds": duration(seconds) if run.attempts else "",
    }  # fmt: skip
