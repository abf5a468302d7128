"""The provenance of an attempt's results: the conditions it observed and the hashes of its files.

It asks the swarm server what was loaded and whose tasks were trained on, never a client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import get_args

from research.files import read_json
from research.installation.machine import describe
from research.results.attempt_files import AttemptFolder, AttemptSpec, EvaluationName, ObservedConditions
from research.results.wandb_reader import TrackedRun, TrackingUnreadable, find_log, read_log
from studies.records.run_data import WeightChange
from swarm.client import AsyncSwarmClient
from swarm.errors import SwarmError
from swarm.job import Job
from swarm.wire import EpisodeSummary

ReadLog = Callable[[Path], TrackedRun]
READS = 5
"""How often a log is read that is still written to; a read takes W&B's reader a second."""
LISTED = 10_000
"""Episodes that a server lists at most: of a training with more, nobody can say which tasks it was about."""


async def observed_conditions(client: AsyncSwarmClient, folder: AttemptFolder, spec: AttemptSpec) -> ObservedConditions:
    """Return the conditions of an attempt whose evaluations are done; None in it for what the server does not say."""
    try:
        status = await client.status()
        loaded, still = status.provenance, status.stillness
    except SwarmError:
        loaded, still = {}, None
    try:
        overlap = trained_and_evaluated((await client.episodes(LISTED)).episodes, _evaluated(folder))
    except SwarmError:
        overlap = None
    return ObservedConditions(
        initial_policy=loaded.get("weights"),
        template=loaded.get("template"),
        decoding=decoding(spec.job),
        overlap=overlap,
        hardware=hardware(spec.job),
        stillness=None if still is None else WeightChange.model_validate(still.model_dump()),
    )


def trained_and_evaluated(listed: Iterable[EpisodeSummary], evaluated: set[str]) -> int | None:
    """Return how many evaluated tasks were also trained on; None where the server may not have listed all episodes."""
    entries = tuple(listed)
    if len(entries) >= LISTED:
        return None
    return len({entry.task_id for entry in entries if entry.kind == "train" and entry.step is not None} & evaluated)


def decoding(job: Job) -> str:
    """Return how the evaluator's calls are sampled: it asks for nothing, so as the job says."""
    return f"temperature {job.temperature:g}, at most {job.max_tokens} tokens a call and {job.max_context} in all"


def hardware(job: Job) -> str:
    """Return the machine in a line."""
    found = describe()
    return f"{found['platform']}, {found['cpus']} cpus, {found['memory_gib']} GiB, device {job.device}"


def file_hashes(folder: AttemptFolder, spec: AttemptSpec, read: ReadLog = read_log) -> dict[str, str]:
    """Return the sha256 of the files that results are collected from, by their path in the folder.

    W&B may still write its log when its run has finished. A log that does not come to its end is left out: the
    collector waits for it, and refuses it if need be.
    """
    paths = [folder.evaluation(name) for name in get_args(EvaluationName)]
    found = {path: _sha256(path) for path in paths if path.is_file()}
    with suppress(TrackingUnreadable):  # it is elsewhere, or missing: the collector says so
        path = find_log(folder.path, spec.tracking_id)
        if (settled := _settled(path, read)) is not None:
            found[path] = settled
    return {str(path.relative_to(folder.path)): sha256 for path, sha256 in found.items()}


def _settled(path: Path, read: ReadLog) -> str | None:
    """Return the hash of a log that was closed and did not change while it was read."""
    for _ in range(READS):
        before = _sha256(path)
        with suppress(TrackingUnreadable):  # half of a record is there
            if read(path).ended and _sha256(path) == before:
                return before
    return None


def file_hash(path: Path) -> str | None:
    """Return the sha256 of a file; None where there is none."""
    try:
        return _sha256(path)
    except FileNotFoundError:
        return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _evaluated(folder: AttemptFolder) -> set[str]:
    value = read_json(folder.evaluation("final")) or {"episodes": []}
    during = read_json(folder.evaluation("during")) or {"evaluations": []}
    return {str(episode["task_id"]) for part in (value, *during["evaluations"]) for episode in part["episodes"]}
