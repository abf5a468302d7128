"""Run: its tries, curves, conditions, files, hidden plays and training episodes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from research.controller.session import require_here
from research.errors import NotReady
from research.files import read_json
from research.installation.servers import find_swarm
from research.runs.files import STAGES, AttemptFolder, Evaluation, read_progress
from research.ui.charts import Chart, Series, line_chart
from research.ui.episodes import hidden_plays
from research.ui.site import Page, Site, View
from studies import RunState, StudyState
from studies.log.entries import AttemptState
from studies.report.wording import duration
from swarm.errors import SwarmError
from swarm.wire import EpisodeSummary

USUAL: Final = (
    "critic/success/mean", "actor/entropy", "actor/ppo_kl", "actor/grad_norm", "response_length/mean",
    "training/rollout_probs_diff_max",
)  # fmt: skip
"""Metrics drawn unless others are asked for: what was reached, and what goes wrong first."""
MOST_CHARTS: Final = 12
ROWS: Final = 50
PLAYS: Final = 20


class FoundRun(NamedTuple):
    """A run of a study with its round and its neighbours as planned."""

    state: StudyState
    entry: StudyState
    run: RunState
    before: str
    after: str


def find_run(site: Site, view: View) -> FoundRun:
    """Return the run at an address; HTTPException (404) where the study has none of this name."""
    state, name = site.state(view.path["study"]), view.path["run"]
    every = [(entry, run) for entry in state.every_round for run in entry.all_runs.values()]
    at = next((at for at, (_, run) in enumerate(every) if run.run_id == name), None)
    if at is None:
        raise HTTPException(404, f"study {state.id} has no run {name[:80]}")
    names = ["", *(run.run_id for _, run in every), ""]
    return FoundRun(state, *every[at], names[at], names[at + 2])


def page(site: Site, view: View) -> Page:
    found = find_run(site, view)
    run, collected = found.run, found.run.collected or {}
    curves = site.curves.read(found.state.id, run, log=run.active is None)
    asked = tuple(dict.fromkeys(name for name in view.query.get("metric", ()) if name))
    metrics = asked or tuple(name for name in USUAL if name in curves.metrics) or curves.names[:1]
    threads = site.reviews(found.state.id).state().by_anchor()
    conditions = run.conditions.model_dump(exclude_none=True) if run.conditions is not None else {}
    files = [(kind, collected[kind]) for kind in ("snapshot", "evaluation") if kind in collected]
    values = {
        "study": found.state.id, "found": found, "run": run, "at": f"/s/{found.state.id}/runs/{run.run_id}",
        "charts": [_chart(name, curves.points(name)) for name in metrics[:MOST_CHARTS]], "asked": asked,
        "names": [name for name in curves.names if name not in metrics], "fault": curves.fault,
        "waits": [wait.text for wait in curves.snapshot.waits] if curves.snapshot else [],
        "alarms": collected.get("alarms", ()), "spec": list(_spec(run)), "sources": run.spec.sources,
        "conditions": list(_flat(conditions)), "files": files, "plays": _plays(site, view, found, threads),
        "threads": threads, "training": _episodes(site, view, found), "query": episode_query(view),
        "lines": sorted(_lines(site, found), key=lambda line: line[0]),
    }  # fmt: skip
    return Page(
        "run.html.jinja", f"Run {run.run_id[:8]}, {run.spec.arm}", values, found.state.id, found.state.head_hash
    )


def _chart(name: str, points: Sequence[tuple[float, float]]) -> Chart:
    series = [Series(name, tuple(points))] if points else []
    return line_chart(name, "step", series, height=130)


def _spec(run: RunState) -> Iterator[tuple[str, str]]:
    spec = run.spec
    yield from (("metric", spec.metric.key), ("split", spec.metric.split), ("design", spec.design_hash))
    yield from _flat(spec.job)


def _flat(fields: Mapping[str, Any], lead: str = "") -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{lead}{name}.")
        else:
            yield f"{lead}{name}", str(value)


def _plays(site: Site, view: View, found: FoundRun, threads: Container[str]) -> dict[str, Any]:
    """Return one evaluation's plays: what is commented on and kept in words first, then the worst; with a `fault` no
    number of it."""
    try:
        require_here(site.home, site.log, found.state)
        read = hidden_plays(site.folder(found.state.id), found.run)
    except NotReady as error:
        broken = found.run.collected is not None
        return {"fault": str(error) if broken else "", "none": str(error), "parts": {}, "rows": ()}
    during = {f"after step {each.policy_version}": each for each in read.during}
    own: dict[str, Evaluation | None] = {"before": read.initial, **during, "after": read.final, "elsewhere": read.other}
    parts = {name: each for name, each in own.items() if each is not None}
    name = view.get("plays") if view.get("plays") in parts else "after"
    chosen = parts[name]
    words = {(each.task_id, 0): each.messages for each in chosen.transcripts}
    named = f"play {found.run.run_id}/{{}}" if name == "after" else ""
    rows = [
        (each, words.get((each.task_id, each.sample)), named.format(number))
        for number, each in enumerate(chosen.episodes, 1)
    ]
    rows.sort(key=lambda row: (row[2] not in threads, row[1] is None, row[0].reward))
    most = len(rows) if view.get("plays") == "all" else PLAYS
    return {
        "fault": "", "none": "", "parts": {part: sum(e.success for e in each.episodes) for part, each in parts.items()},
        "of": {part: len(each.episodes) for part, each in parts.items()}, "name": name, "split": chosen.split,
        "words": words, "rows": rows[:most], "count": len(rows),
    }  # fmt: skip


def filter_episodes(listed: Sequence[EpisodeSummary], view: View) -> list[EpisodeSummary]:
    """Return the episodes that the address asks for, by `step`, `kind` and `group`, in its `order`."""
    wanted = [each for each in listed if view.get("kind") in ("", each.kind)]
    wanted = [each for each in wanted if view.get("step") in ("", str(each.step))]
    wanted = [each for each in wanted if view.get("group") in ("", each.group)]
    if view.get("order") == "worst":
        wanted.sort(key=lambda each: (each.reward is None, each.reward))
    return wanted


def _episodes(site: Site, view: View, found: FoundRun) -> dict[str, Any]:
    """Return training episodes as the address filters them, or why none are listed."""
    none: dict[str, Any] = {"rows": (), "known": 0, "offered": False}
    if view.static:
        return {**none, "said": "an export has none; the installation itself shows them, token by token"}
    try:
        place = site.readers.of_run(found.state.id, found.run)
        if not view.get("episodes") and find_swarm(place.folder) is None:
            return {**none, "said": "a server that only reads is started for them", "offered": True}
        listed = site.readers.list(place)
    except (NotReady, SwarmError) as error:
        return {**none, "said": str(error)}
    fitting = filter_episodes(listed, view)
    return {"said": "", "count": len(fitting), "known": len(listed), **view.cut(fitting, ROWS, episodes="1")}


def episode_query(view: View) -> str:
    """Return what of the address an episode's page needs, so that its neighbours are those of the list."""
    query = [(name, view.get(name)) for name in ("kind", "step", "group", "order") if view.get(name)]
    return f"?{urlencode(query)}" if query else ""


def _lines(site: Site, found: FoundRun) -> Iterator[tuple[datetime, str]]:
    """Yield what happened in a run, as its log and its attempts' own files say."""
    if found.run.planned:
        yield datetime.fromisoformat(found.run.planned), "it is planned"
    for attempt in found.run.attempts:
        yield from _attempt_lines(site, found, attempt)
    if found.run.settled:
        code = ": ".join(found.run.invalid) if found.run.invalid else "its results are collected"
        yield datetime.fromisoformat(found.run.settled), code


def _attempt_lines(site: Site, found: FoundRun, attempt: AttemptState) -> Iterator[tuple[datetime, str]]:
    folder = AttemptFolder(site.home.attempt(found.state.id, found.run.run_id, attempt.number))
    began, name = datetime.fromisoformat(attempt.launched), f"try {attempt.number}"
    went = "" if attempt.resumed_at is None else f" and goes on after step {attempt.resumed_at}"
    yield began, f"{name} starts{went}{': ' + attempt.why if attempt.why else ''}"
    try:
        stages = dict((read_json(folder.outcome) or {}).get("stages", {}))
    except (OSError, ValueError, TypeError, AttributeError):  # for display only
        stages = {}
    at = began
    for stage, begins in STAGES.items() if attempt.status is not None else ():
        if isinstance(seconds := stages.get(stage), int | float):
            yield at, f"{name}: {begins}"
            at += timedelta(seconds=seconds)
    if attempt.status is None and (now := read_progress(folder)) is not None:
        solved = "" if now.train_success is None else f", solved {now.train_success:.3f}"
        hidden = "" if now.hidden_success is None else f", hidden tasks {now.hidden_success:.3f}"
        told = f"{name}: {STAGES[now.stage]}; step {now.step} of {now.steps}{solved}{hidden}"
        yield began + timedelta(seconds=now.seconds), told
    if attempt.status is not None and attempt.ended:
        why = ": ".join(filter(None, (attempt.code, attempt.reason)))
        told = f"{name} {attempt.status} after {duration(attempt.seconds or 0.0)}{': ' + why if why else ''}"
        yield datetime.fromisoformat(attempt.ended), told
