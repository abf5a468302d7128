"""Provenance of results: observed conditions, hashes, and the audit of training episodes.

Conditions are what the harness observed, never what a client reported: training from the tracker's history, evaluations
from the evaluator's outcomes, what was loaded and who trained on what from the swarm server, neighbours from the log
and the installation's sandboxes. What is not available is None; other users' programs are not observed.

The audit replays recorded answers. Generated code in a client may have shown the policy hidden tasks in episodes begun
for training tasks. The task's own game, given the policy's answers, says what should stand in the server's record; how
a template frames messages is learned from the evaluator's episodes, where no foreign code ran. It takes a sample,
chosen after training, of the newest episodes whose tokens remain (`research.proposals.arms` sees to it that all do).
What is shown in less than about one episode in sixteen may pass. Where code writes the prompt or plays, no game says
what should stand there: only openings of hidden tasks are looked for, which tells nothing where all tasks open alike.
"""

import asyncio
import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from research.files import read_json
from research.installation.machine import DEVICES, Span, describe
from research.runs.files import AttemptFolder, AttemptSpec, EvaluationName
from research.runs.wandb_log import TrackedRun, find_log, read_log
from studies.checks.conditions import CollectError, Row, extract_conditions, tasks_hash
from studies.log.entries import AttemptState
from studies.records.runs import Conditions, WeightChange
from swarm.client import AsyncSwarmClient
from swarm.environments.base import MAX_TURNS, Environment, Message, PlainGame, Task, said
from swarm.environments.play import rounds
from swarm.environments.registry import get_environment
from swarm.errors import SwarmError
from swarm.wire import CallRecord, EpisodeRecord, EpisodeSummary

LOOKED_AT = 64
"""Training episodes that are played again, and evaluation episodes that frames are learned from."""
LISTED = 10_000
"""Episodes that a server lists at most: of a training with more, nobody can say which tasks it was about."""
_AT_ONCE = 8
Frame = tuple[bool, str]
"""Whether it is of a first call, and what stands around the messages."""

_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplayAudit:
    """What was found."""

    looked_at: int
    foreign: Mapping[str, str]
    """Why an episode is no play of its task, by its id."""
    flooded: bool = False
    """Whether episodes that were given up stand where older ones would be listed."""

    @property
    def complaint(self) -> str | None:
        """Return why the training is not to be trusted, if so; an honest play or two may have been cut short."""
        if self.flooded:
            return f"episodes that were given up crowd what was trained out of the list of the newest {LISTED}"
        if not self.looked_at:
            return "no training episode could be played again, for the server shows none with its tokens and texts"
        if len(self.foreign) <= self.looked_at // 16:
            return None
        episode, why = next(iter(self.foreign.items()))
        return (
            f"{len(self.foreign)} of {self.looked_at} training episodes looked at are no plays of their tasks; "
            f"{episode}: {why}"
        )


async def replay(
    client: AsyncSwarmClient, environment: Environment, rng: random.Random, *, rewritten: bool = False
) -> ReplayAudit:
    """Audit a sample of the newest trained episodes; raises SwarmError when the server does not show them. `rewritten`:
    code wrote the prompt, or played."""
    listed = (await client.episodes(LISTED)).episodes
    given_up = sum(entry.kind == "train" and entry.state in ("aborted", "fenced") for entry in listed)
    if len(listed) >= LISTED and given_up > LISTED // 4:
        return ReplayAudit(0, {}, flooded=True)
    evaluated = [entry for entry in listed if entry.kind == "eval" and entry.calls]
    trained = [entry for entry in listed if entry.kind == "train" and entry.step is not None]
    if rewritten:
        records = await _fetch_sample(client, trained, rng)
        openings, known = (
            {str(each["content"]) for task in environment.tasks(split) for each in environment.game(task).opening()}  # type: ignore[union-attr]
            for split in ("hidden", "train")
        )
        marks = "|".join(map(re.escape, sorted(openings - known))) or "(?!)"
        leak = re.compile(rf"(?<![\w+*/.,-])(?:{marks})(?![\w+*/.,-])")
        told = {record.id: "".join(text for call in record.record for text in call.context.texts) for record in records}
        found = {id: "it shows the policy a hidden task" for id, text in told.items() if leak.search(text)}
        return ReplayAudit(len(records), found)
    frames: set[Frame] = set()
    hidden = {task.id: task for task in environment.tasks("hidden")}
    for record in await _fetch_sample(client, evaluated, rng):
        spans = (span for call in record.record for span in (call.context, call.sampled))
        if record.task_id in hidden and all(span.texts for span in spans if span.ids):  # else no texts are kept
            shown = extract_frames(record, environment, hidden[record.task_id])
            frames |= shown if isinstance(shown, set) else set()  # one that was given up half-way teaches nothing
    if not frames:
        return ReplayAudit(0, {})
    records, foreign = await _fetch_sample(client, trained, rng), {}
    tasks = {task.id: task for task in environment.tasks("train")}
    for record in records:
        if record.task_id not in tasks:
            foreign[record.id] = "its task is not for training"
        elif isinstance(shown := extract_frames(record, environment, tasks[record.task_id]), str):
            foreign[record.id] = shown
        elif not shown <= frames:
            foreign[record.id] = "it shows the policy more than its game says"
    return ReplayAudit(len(records), foreign)


async def _fetch_sample(
    client: AsyncSwarmClient, listed: Sequence[EpisodeSummary], rng: random.Random
) -> list[EpisodeRecord]:
    chosen = rng.sample(listed, min(LOOKED_AT, len(listed)))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def fetch(episode: str) -> EpisodeRecord:
        async with gate:
            return await client.episode(episode)

    return [found for found in await asyncio.gather(*(fetch(entry.id) for entry in chosen)) if found.record]


def extract_frames(record: EpisodeRecord, environment: Environment, task: Task) -> set[Frame] | str:
    """Play a task again with the answers of an episode; return what its calls put around the game's messages. A text
    says why the episode is no play of the task."""
    game = environment.game(task)
    if not isinstance(game, PlainGame):
        return "its environment's games cannot be played again"
    due, mark = game.opening(), ""
    frames: set[Frame] = set()
    # The one conversation of the episode, from its first call; a call that was made twice counts once.
    by_index = {call.index: call for call in record.record}
    path: list[CallRecord] = []
    at = record.record[-1].index if record.record else None
    while at is not None:
        path.insert(0, by_index[at])
        at = by_index[at].parent
    prefixes = {(call.parent, call.context.ids) for call in path}
    if any((call.parent, call.context.ids) not in prefixes for call in record.record):
        return "it holds more than one conversation"
    most = environment.knob(MAX_TURNS)
    for place, call in enumerate(path):
        if not due or place == most > 0:
            return "it goes on after its game is over"
        text, around = mark + "".join(call.context.texts), []
        for message in due:
            before, shown, text = text.partition(str(message["content"]))
            if not shown:
                return "it does not show the policy what its game says"
            around.append(before)
        frames.add((place == 0, "\0".join([*around, text])))
        texts, special = call.sampled.texts, frozenset(call.sampled.special)
        mark = "" if call.truncated is not False or not texts else texts[-1]  # it goes with what follows
        answer = "".join(text for at, text in enumerate(texts) if at not in special)
        due = game.answer(_parse_message(answer))
    if due and len(path) != most:
        return "it ends before its game does"
    return frames


def _parse_message(text: str) -> Message:
    """Return the message that an answer is; tools called in another form than Hermes' are text, not played again."""
    try:
        called = [json.loads(call) for call in _CALL.findall(text)]
        calls = [
            {"id": str(number), "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])}}
            for number, call in enumerate(called)
        ]
    except (ValueError, LookupError, TypeError):
        return said(text)
    return {"role": "assistant", "content": None, "tool_calls": calls} if calls else said(text)


READS = 5
"""How often a log is read that is still written to; a read takes W&B's reader a second."""


async def observe_conditions(client: AsyncSwarmClient, folder: AttemptFolder, spec: AttemptSpec) -> Conditions:
    """Return the conditions of an attempt whose evaluations are done; None in it for what the server does not say."""
    job, machine = spec.job, describe()
    decoding = f"temperature {job.temperature:g}, at most {job.max_tokens} tokens a call and {job.max_context} in all"
    loaded: Mapping[str, str] = {}
    still = overlap = there = None
    device = os.environ.get(DEVICES) or job.device
    own = f"{machine['platform']}, {machine['cpus']} cpus, {machine['memory_gib']} GiB, device {device}"
    with suppress(SwarmError):
        status = await client.status()
        loaded, still = status.provenance, status.stillness
        if spec.server:  # whose machine trains
            there = f"{status.machine}, device {loaded.get('device', job.device)}, at {spec.server}"
    final = read_json(folder.evaluation("final")) or read_json(folder.evaluation("initial")) or {"episodes": []}
    during = read_json(folder.evaluation("during")) or {"evaluations": []}
    evaluated = {str(episode["task_id"]) for part in (final, *during["evaluations"]) for episode in part["episodes"]}
    with suppress(SwarmError):
        overlap = count_overlap((await client.episodes(LISTED)).episodes, evaluated)
    return Conditions(
        initial_policy=loaded.get("weights"), template=loaded.get("template"), decoding=decoding, overlap=overlap,
        hardware=there if spec.server else own,
        stillness=None if still is None else WeightChange.model_validate(still.model_dump()),
    )  # fmt: skip


def count_overlap(listed: Iterable[EpisodeSummary], evaluated: set[str]) -> int | None:
    """Return how many evaluated tasks were also trained on; None where the server may not have listed all episodes."""
    entries = tuple(listed)
    if len(entries) >= LISTED:
        return None
    return len({entry.task_id for entry in entries if entry.kind == "train" and entry.step is not None} & evaluated)


def file_hashes(
    folder: AttemptFolder, spec: AttemptSpec, read: Callable[[Path], TrackedRun] = read_log
) -> dict[str, str]:
    """Return the sha256 of the files that results are collected from, by their path in the folder. W&B may still write
    its log when its run has finished. A log that does not come to its end is left out: the collector waits for it, and
    refuses it if need be."""
    paths = [folder.evaluation(name) for name in get_args(EvaluationName)]
    found = {path: sha256 for path in paths if (sha256 := file_hash(path)) is not None}
    log = None
    with suppress(CollectError):  # it is elsewhere, or missing: the collector says so
        log = find_log(folder.path, spec.tracking_id)
    for _ in range(READS):
        if log is None:
            break
        before = file_hash(log) or ""
        with suppress(CollectError):  # half of a record is there
            if read(log).ended and file_hash(log) == before:
                found[log] = before
                break
    return {str(path.relative_to(folder.path)): sha256 for path, sha256 in found.items()}


def file_hash(path: Path) -> str | None:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return None


def build_conditions(
    spec: AttemptSpec, history: Sequence[Row], evaluations: Mapping[str, Any], seen: Conditions, neighbours: int | None,
    stopped_by: str | None,
) -> Conditions:  # fmt: skip
    """Return a collected run's conditions: what its files say comes before what it saw (`seen`). `evaluations` is a
    RunEvaluation as JSON."""
    known = spec.job.backend in ("local", "verl")  # which make all optimiser steps of a training step, or none
    run = spec.run
    tasks = get_environment(run.environment).tasks("search" if run.metric.split == "search" else "hidden")
    drawn = enumerate(rounds(tasks, run.metric.episodes, run.task_seed))
    by_files = {
        **extract_conditions(history, evaluations["initial"], evaluations["final"]),
        "drawn_tasks": tasks_hash((task.id, sample) for sample, part in drawn for task in part),
        "optimiser_steps": len(history) * spec.job.epochs * spec.job.minibatches if known else None,
        "image": spec.sandbox.image or spec.sandbox.kind,
        "neighbours": neighbours,
        "untrained": spec.initial_of or None,
        "stopped_by": stopped_by,
    }
    return Conditions.model_validate({**dict(seen), **by_files})


def count_neighbours(
    attempts: Iterable[AttemptState], attempt: AttemptState, ended: datetime, others: Iterable[Span] = ()
) -> int:
    """Return the most attempts that ran beside one of a study's at one moment: the study's, and `others`."""

    def span(of: AttemptState) -> Span:
        began = datetime.fromisoformat(of.launched)
        return began, ended if of.status is None else began + timedelta(seconds=of.seconds or 0.0)

    began = datetime.fromisoformat(attempt.launched)
    ours = (span(other) for other in attempts if other.name != attempt.name)
    beside = [(max(begin, began), min(end, ended)) for begin, end in (*ours, *others) if begin < ended and end > began]
    return max((sum(begin <= moment < end for begin, end in beside) for moment, _ in beside), default=0)
