"""Run: its tries, curves, conditions, files, hidden plays and training episodes."""

from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from research.controller.session import require_here
from research.errors import NotReady
from research.installation.servers import find_swarm
from research.orchestration.supervision import prefect_address
from research.orchestration.task_rows import attempt_rows, tracking_lines, training_lines
from research.runs.files import STAGES, AttemptFolder, AttemptOutcome, Evaluation, read_progress
from research.ui.curves import Series, line_chart
from research.ui.episodes import hidden_plays
from research.ui.site import Page, Site, View, paged
from studies import RunState, StudyState
from studies.checks.conditions import flatten
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
    names = [run.run_id for _, run in every]
    if name not in names:
        raise HTTPException(404, f"study {state.id} has no run {name[:80]}")
    return FoundRun(state, *every[names.index(name)], *neighbours(names, name))


def neighbours(names: Sequence[str], name: str) -> tuple[str, str]:
    """Return what comes before and after a name, empty where nothing does."""
    at, padded = names.index(name) if name in names else -1, ["", *names, ""]
    return (padded[at], padded[at + 2]) if at >= 0 else ("", "")


def page(site: Site, view: View) -> Page:
    found = find_run(site, view)
    run, metric, collected = found.run, found.run.spec.metric, found.run.collected or {}
    curves = site.curves.read(found.state.id, run, log=run.active is None)
    asked = tuple(dict.fromkeys(name for name in view.query.get("metric", ()) if name))
    metrics = asked or tuple(name for name in USUAL if name in curves.metrics) or curves.names[:1]
    threads = site.reviewed(found.state.id).by_anchor()
    values = {
        "study": found.state.id, "found": found, "run": run, "at": f"/s/{found.state.id}/runs/{run.run_id}",
        "charts": [
            line_chart(name, "step", [Series(name, curves.points(name))], height=130) for name in metrics[:MOST_CHARTS]
        ],
        "asked": asked,
        "names": [name for name in curves.names if name not in metrics], "curves": curves, "collected": collected,
        "prefect": "" if view.static else prefect_address(site.home),
        "spec": {"metric": metric.key, "split": metric.split, "design": run.spec.design_hash, **flatten(run.spec.job)},
        "conditions": flatten(run.conditions.model_dump(exclude_none=True)) if run.conditions else {},
        "plays": _plays(site, view, found, threads), "threads": threads, "training": _episodes(site, view, found),
        "query": episode_query(view), "lines": sorted(_lines(site, found), key=lambda line: line[0]),
    }  # fmt: skip
    title = f"Run {run.run_id[:8]}, {run.spec.arm}"
    return Page("run.html.jinja", title, values, found.state.id, found.state.head_hash)


def _plays(site: Site, view: View, found: FoundRun, threads: Container[str]) -> dict[str, Any]:
    """Return one evaluation's plays: what is commented on and kept in words first, then the worst; with a `fault` no
    number of it."""
    try:
        require_here(site.home, site.log, found.state)
        read = hidden_plays(site.folder(found.state.id), found.run)
    except NotReady as error:
        return {"fault": str(error) if found.run.collected else "", "none": str(error), "rows": ()}
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
    solved = {part: (sum(e.success for e in each.episodes), len(each.episodes)) for part, each in parts.items()}
    return {
        "fault": "", "none": "", "parts": solved, "name": name, "split": chosen.split, "words": words,
        "rows": rows[:most], "count": len(rows),
    }  # fmt: skip


def filter_episodes(listed: Sequence[EpisodeSummary], view: View) -> list[EpisodeSummary]:
    """Return the episodes that the address asks for, by `step`, `kind` and `group`, in its `order`."""
    asked = {name: view.get(name) for name in ("kind", "step", "group") if view.get(name)}
    wanted = [each for each in listed if all(str(getattr(each, name)) == asked[name] for name in asked)]
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
    return {"said": "", "known": len(listed), **paged(view, filter_episodes(listed, view), ROWS, episodes="1")}


def episode_query(view: View) -> str:
    """Return what of the address an episode's page needs, so that its neighbours are those of the list."""
    query = urlencode({name: view.get(name) for name in ("kind", "step", "group", "order") if view.get(name)})
    return query and f"?{query}"


def _lines(site: Site, found: FoundRun) -> Iterator[tuple[datetime, str]]:
    """Yield what happened in a run, as its log and its attempts' own files say."""
    for number, row in enumerate(attempt_rows(found.entry, found.run), 1):
        for each in row.states:
            yield each.at, f"try {number}: {each.name}{f': {each.message}' if each.message else ''}"
    for attempt in found.run.attempts:
        folder = AttemptFolder(site.home.attempt(found.state.id, found.run.run_id, attempt.number))
        lines = list(tracking_lines(attempt, folder, site.folder(found.state.id)))
        if attempt.status is None and (now := read_progress(folder)) is not None:
            lines += training_lines(attempt, now)
        yield from ((line.at, f"try {attempt.number}: {line.text}") for line in lines)
        with suppress(OSError, ValueError):  # for display only
            at, outcome = datetime.fromisoformat(attempt.launched), folder.outcome.read_bytes()
            stages = AttemptOutcome.model_validate_json(outcome).stages
            for stage, begins in STAGES.items():
                if stage in stages:
                    yield at, f"try {attempt.number}: {begins}"
                    at += timedelta(seconds=stages[stage])
