"""Runs of a study, or of all that train now: their curves, and a table that is filtered and sorted by its address."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from research.controller.progress import format_success
from research.installation.servers import servers
from research.runs.files import AttemptFolder, AttemptProgress, read_progress
from research.ui.charts import Chart, Look
from research.ui.curves import CurveReader, PlottedRun, RunCurves, metric_chart
from research.ui.site import Page, Site, View, paged
from studies import RunState, StudyState
from studies.report.evidence import REWARDS, SUCCESS
from studies.report.wording import duration, number

ROWS: Final = 200
"""Rows of one page of the table."""
MOST_CHARTS: Final = 6
FILTERS: Final = ("round", "phase", "arm", "status")


@dataclass(frozen=True, slots=True)
class PlacedRun(PlottedRun):
    """A run of a study with its round."""

    round: int

    @property
    def facets(self) -> tuple[str, ...]:
        """What it is filtered by."""
        return str(self.round), self.run.spec.phase, self.run.spec.arm, self.run.status


def placed_runs(state: StudyState, *, apart: bool = True) -> list[PlacedRun]:
    """Return all runs of a study; unless `apart`, an arm is one group in all rounds. Arms of designs come first, as in
    its report, so that they have the same colours."""
    rounds = state.every_round
    names = [arm.name for entry in rounds if entry.design is not None for arm in entry.design.arms]
    names += [run.spec.arm for entry in rounds for run in entry.all_runs.values()]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    found = []
    for entry in rounds:
        later = f", round {entry.round}" if apart and len(rounds) > 1 else ""
        for run in entry.all_runs.values():
            arm, phase = run.spec.arm, run.spec.phase
            group = f"{arm}{'' if phase == 'confirm' else f', {phase}'}{later}"
            found.append(PlacedRun(state.id, run, group, places[arm], entry.round))
    return found


SORTS: Final[Mapping[str, Callable[[PlacedRun], Any]]] = {
    "run": lambda each: each.run.run_id,
    "arm": lambda each: (each.place, each.round, each.run.spec.seed),
    "seed": lambda each: each.run.spec.seed,
    "status": lambda each: each.run.status,
    "try": lambda each: -len(each.run.attempts),
    "hidden": lambda each: -_measured(each.run),
    "seconds": lambda each: -each.run.seconds,
}


def _measured(run: RunState) -> float:
    found = run.measurements.get(run.spec.metric.key)
    return -math.inf if found is None else found.value


def page(site: Site, view: View) -> Page:
    study = view.path.get("study", "")
    states = [site.state(study)] if study else list(_training(site))
    asked = {name: view.get(name) for name in FILTERS}
    if study and not view.static and not view.query.keys() & asked.keys():  # one question at a time, as in a report
        begun = [entry.round for entry in states[0].every_round if entry.all_runs]
        asked["round"] = str(max(begun)) if len(begun) > 1 else ""
    every = [each for state in states for each in placed_runs(state, apart=not asked["round"])]
    if not study:
        every = list(_running(every))
    shown = select(every, asked, view.get("sort"))
    part = paged(view, shown, max(1, len(shown)) if view.static else ROWS)
    beside = select(every, {"round": asked["round"]})
    charts, names = _charts(site.curves, beside, shown, view)
    values = {
        "study": study, "total": len(every), "asked": asked, "sorts": tuple(SORTS),
        "filters": {
            name: dict(sorted(Counter(each.facets[at] for each in every).items())) for at, name in enumerate(FILTERS)
        },
        "charts": charts, "metrics": [chart.label for chart in charts], "names": sorted(names),
        "steps": view.get("x") == "steps",
        "servers": [] if study else list(_servers(site)),
        **part, "rows": [_row(site, each) for each in part["rows"]],
    }  # fmt: skip
    return Page("runs.html.jinja", f"Runs of {study}" if study else "What trains now", values, study or "*")


def _training(site: Site) -> Iterator[StudyState]:
    """Yield the studies of which something trains now."""
    for each in site.listing():
        if each.summary["runs"].get("running"):
            yield site.state(each.summary["study"])


def _running(every: Iterable[PlacedRun]) -> Iterator[PlacedRun]:
    """Yield the runs that train now, arms of different studies apart."""
    places = dict[str, int]()
    for each in every:
        if each.run.active is not None:
            group = f"{each.study}: {each.group}"
            yield replace(each, group=group, place=places.setdefault(group, len(places)))


def _servers(site: Site) -> Iterator[tuple[str, RunCurves]]:
    """Yield the swarm servers of this installation that run, by name, with what they say."""
    for name, process in servers(site.home):
        if process is not None:
            yield name or "-", site.curves.server(process.folder)


def select(every: Iterable[PlacedRun], asked: Mapping[str, str], sort: str = "") -> list[PlacedRun]:
    """Return the runs with these facets, those that are not empty; as planned unless there is a way to `sort`."""
    wanted = [(at, asked[name]) for at, name in enumerate(FILTERS) if asked.get(name)]
    found = [each for each in every if all(each.facets[at] == value for at, value in wanted)]
    return sorted(found, key=SORTS[sort]) if sort in SORTS else found


def _charts(
    curves: CurveReader, every: Sequence[PlacedRun], shown: Sequence[PlacedRun], view: View
) -> tuple[list[Chart], set[str]]:
    """Return a chart of each metric that is asked for, of the usual one where none is, and the names of all."""
    chosen = {each.run.run_id for each in shown}
    drawn = [each for each in every if each.run.run_id in chosen]  # whatever the order of the table
    draw = partial(metric_chart, curves, every, drawn, steps=view.get("x") == "steps")
    asked = list(dict.fromkeys(name for name in view.query.get("metric", ()) if name))[:MOST_CHARTS]
    first, names = draw(asked[0] if asked else SUCCESS)
    if not asked and names and SUCCESS not in names:
        first, names = draw(REWARDS if REWARDS in names else min(names))
    return [first, *(draw(metric)[0] for metric in asked[1:])], names


def _row(site: Site, each: PlacedRun) -> dict[str, Any]:
    run, collected = each.run, each.run.collected or {}
    conditions = collected.get("conditions") or {}
    step, solved = conditions.get("steps"), (conditions.get("course") or {}).get("last")
    hidden, seconds, remark = format_success(run), run.seconds, ": ".join(filter(None, run.invalid or ()))
    progress: AttemptProgress | None = None
    if run.active is not None:
        folder = AttemptFolder(site.home.attempt(each.study, run.run_id, run.active.number))
        progress, found = read_progress(folder), site.curves.read(each.study, run)
        waits = [wait.text for wait in found.snapshot.waits[:2]] if found.snapshot else []
        remark = "; ".join(waits) or found.fault
    elif run.status == "ended":
        remark = ": ".join(filter(None, (run.attempts[-1].code, run.attempts[-1].reason)))
    if progress is not None:
        step, solved, seconds = progress.step, progress.train_success, seconds + progress.seconds
        hidden = f"{number(progress.hidden_success)} → …"
    key = run.spec.metric.key
    if run.status == "collected" and not key.endswith("/success") and key in run.measurements:
        hidden += f"; {key} {number(run.measurements[key].value, unit=run.spec.metric.unit)}"
    return {
        "study": each.study, "id": run.run_id, "arm": each.group, "look": Look.at(each.place), "seed": run.spec.seed,
        "round": each.round, "status": run.status, "tries": len(run.attempts), "hidden": hidden, "remark": remark,
        "step": "" if step is None else f"{step} of {run.spec.job.get('steps', '?')}",
        "solved": "" if solved is None else number(solved), "seconds": duration(seconds) if run.attempts else "",
    }  # fmt: skip
