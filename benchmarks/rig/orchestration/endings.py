"""What a study came to, as far as two that were given one design must agree, and the balance of its trainings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any

import sqlalchemy as sa

from research.runs.files import AttemptFolder
from rig.orchestration.installed import Installation
from studies import Event, EventType, RunState, StudyState
from swarm.job import Job
from swarm.store import reading
from swarm.wire import EpisodeSummary

METRIC = "hidden/success"
_EVERY = 10_000_000


@dataclass(frozen=True)
class Ending:
    """A study as it ended in an installation that was stopped after it."""

    state: StudyState
    collected: Mapping[str, int]
    """How often each run was collected."""
    drifts: Sequence[str]
    """What `ajet study verify` finds wrong."""
    unbalanced: Sequence[str]
    """What is wrong with the books of the swarm servers."""
    slots: Sequence[str]
    left: Sequence[str] = field(default=())
    """Processes that outlived `ajet up --stop`."""

    @property
    def verdicts(self) -> list[tuple[str, str, str]]:
        """What was claimed of each hypothesis, in which phase."""
        return [(verdict.hypothesis, verdict.phase, verdict.verdict) for verdict in self.state.verdicts]

    def values(self) -> dict[str, float]:
        """Return what each run measured."""
        return {name: run.measurements[METRIC].value for name, run in self.state.runs.items() if run.collected}

    def faults(self) -> Iterator[str]:
        """Yield what no study may end with, in words."""
        if self.state.status != "concluded":
            yield f"the study is {self.state.status}"
        if self.state.report is None:
            yield "it has no report of its last state"
        for name, run in self.state.runs.items():
            if self.collected.get(name, 0) != 1:
                yield f"run {name} is {run.status}, and was collected {self.collected.get(name, 0)} times"
        if self.state.worked_s > self.state.budget_s:
            yield f"{self.state.worked_s:.0f} s were charged to a budget of {self.state.budget_s:.0f} s"
        yield from (f"verify: {drift}" for drift in self.drifts)
        yield from self.unbalanced
        yield from (f"{attempt} holds a slot" for attempt in self.slots)
        yield from (f"outlived its installation: {command}" for command in self.left)


def ending(installation: Installation, study: str, left: Sequence[str] = ()) -> Ending:
    """Return how a study ended."""
    state, events = installation.state(study), installation.events(study)
    return Ending(
        state, _collected(events), [str(drift) for drift in installation.proof(study).drifts],
        [said for run in state.runs.values() if run.collected for said in unbalanced(installation, state, run)],
        installation.slots_held(), left,
    )  # fmt: skip


def differences(calm: Ending, disturbed: Ending) -> Iterator[str]:
    """Yield in what the disturbed study did not end like the other, in words."""
    if calm.state.design_hash != disturbed.state.design_hash:
        yield "the designs differ"
    if {name: run.spec for name, run in calm.state.runs.items()} != {
        name: run.spec for name, run in disturbed.state.runs.items()
    }:
        yield f"{len(calm.state.runs)} runs undisturbed, {len(disturbed.state.runs)} others disturbed"
    if calm.verdicts != disturbed.verdicts:
        yield f"undisturbed {calm.verdicts}, disturbed {disturbed.verdicts}"


def apart(calm: Ending, disturbed: Ending) -> dict[str, Any]:
    """Return how far what the same runs measured lies apart: trainings of one seed are never alike bit by bit."""
    mine, other = calm.values(), disturbed.values()
    both = sorted(mine.keys() & other.keys())
    gaps = [mine[name] - other[name] for name in both] or [nan]
    return {
        "runs": len(both), "identical": gaps.count(0.0), "mean": mean(map(abs, gaps)), "most": max(map(abs, gaps)),
        "of the means of all": abs(mean(gaps)),
    }  # fmt: skip


def unbalanced(installation: Installation, state: StudyState, run: RunState) -> Iterator[str]:
    """Yield what is wrong with the books of the server that trained a run: each sample once, every step whole."""
    job = Job.from_record(run.spec.job)
    server = AttemptFolder(installation.home.attempt(state.id, run.run_id, run.attempts[-1].number)).server
    trained = [episode for episode in stored(server) if episode.step is not None]
    sizes = Counter(episode.step for episode in trained)
    if sizes != Counter(dict.fromkeys(range(1, job.steps + 1), job.episodes_per_step)):
        yield f"run {run.run_id}: trained {dict(sizes)}, asked for {job.steps} steps of {job.episodes_per_step}"
    if len({episode.id for episode in trained}) != len(trained):
        yield f"run {run.run_id}: an episode was trained twice"
    if any(episode.state != "consumed" for episode in trained):
        yield f"run {run.run_id}: an episode is in a step and not learned"


def stored(server: Path) -> Sequence[EpisodeSummary]:
    """Return all episodes of a stopped server's only training."""
    engine = sa.create_engine(f"sqlite:///{server / 'store.sqlite3'}")
    with engine.connect() as connection:
        episodes = reading.episodes(connection, 1, _EVERY).episodes
    engine.dispose()
    return episodes


def _collected(events: Sequence[Event]) -> Counter[str]:
    return Counter(event.payload["run_id"] for event in events if event.type is EventType.RUN_COLLECTED)
