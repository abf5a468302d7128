"""Watching a server: its snapshot, why a step waits, its history, its metrics, its episodes and their export.

What a step waits for is told in the order of what to do: what keeps everything from going on first, then an evaluation
or a full disk, then the episodes that a batch lacks, by stream, with the stragglers of a full one. A snapshot is one
pass over open episodes and groups, then the largest of each: its cost grows with them, its size does not.

Prometheus' metrics are read from the live server at each scrape. Each family says in its HELP what it is. Counters are
since the training began (`ajet_calls`, `ajet_throttled` and what befell calls: since the engine was started);
`ajet_episodes_begun_total` is always the sum of `ajet_leases` and `ajet_episodes_total`. While the engine is off there
is no training, and no family that tells of one. All belongs to the server's event loop.

An episode's record never says less than is known: while an engine runs, an open episode is shown as it is this moment,
every other one as it was written down, and every id with its text; else what was written, without texts. Texts of ids
joined are the text of the whole span, whatever the tokenizer does with spaces at the beginning of a text and with
characters whose bytes are spread over several ids.

An export has a record a line, the oldest first, each read when it is sent: memory holds one. One episode that is not
there, or has no tokens, is refused before the first byte.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, Field

from swarm import wire
from swarm.calls.generation import TextStream
from swarm.errors import EngineUnavailable, NotFound
from swarm.job import ModelSpec, TinyModel
from swarm.rendering.messages import Renderer
from swarm.rollout.episodes import LeasedEpisode
from swarm.rollout.rollout import Rollout
from swarm.server.service import SwarmServer
from swarm.snapshot import HistoryPage, OwnerSnapshot, Snapshot, StepRecord, StepWait, StreamSnapshot
from swarm.store.reading import call_record
from swarm.training.loop import Training
from swarm.training.metrics import finite_metrics

_LONGEST = 4
"""UTF-8 takes at most so many bytes a character, so that so many ids at most wait for it to be whole."""


def with_texts(record: wire.EpisodeRecord, renderer: Renderer) -> wire.EpisodeRecord:
    tails: dict[int, tuple[int, ...]] = {}
    calls: list[wire.CallRecord] = []
    for call in record.record:  # parents come before children
        before = tails[call.parent] if call.parent is not None else ()
        context = _add_span_texts(call.context, renderer, before)
        before = (before + call.context.ids)[-_LONGEST:]
        sampled = _add_span_texts(call.sampled, renderer, before)
        tails[call.index] = (before + call.sampled.ids)[-_LONGEST:]
        cut = not call.sampled.ids or call.sampled.ids[-1] not in renderer.stop_ids
        calls.append(call.model_copy(update={"context": context, "sampled": sampled, "truncated": cut}))
    return record.model_copy(update={"record": tuple(calls)})


def token_texts(renderer: Renderer, ids: Sequence[int], before: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the text of each id; `before` are the ids in front of them (a few are enough). The last id of a character
    has it, the ids before have "". Bytes that are no character come out as U+FFFD."""
    decode = partial(renderer.decode, special=True)
    stream = TextStream(decode, incremental=True)
    if not decode(before[-1:]).endswith("\ufffd"):
        stream.feed(before[-1:])  # some tokenizers drop the space of the first id they decode
    texts = [stream.feed([token]) for token in ids]
    return (*texts[:-1], texts[-1] + stream.finish()) if texts else ()


def _add_span_texts(span: wire.TokenSpan, renderer: Renderer, before: Sequence[int]) -> wire.TokenSpan:
    texts = token_texts(renderer, span.ids, before)
    hidden = {
        token: not renderer.decode([token]) and bool(renderer.decode([token], special=True)) for token in set(span.ids)
    }
    special = tuple(place for place, token in enumerate(span.ids) if hidden[token])
    return span.model_copy(update={"texts": texts, "special": special})


LISTED = 100
"""Episodes in a list that does not say how many."""
MOST_LISTED = 10_000
SummaryT = TypeVar("SummaryT", bound=wire.EpisodeSummary)


class Inspection:
    """Episodes of one server."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server

    async def episodes(self, limit: int = LISTED) -> wire.EpisodeList:
        live = self._open()
        written = (await self._server.written.episodes(limit + len(live))).episodes
        known = {summary.id for summary in written}
        unwritten = [summary_of(episode) for name, episode in live.items() if name not in known]
        merged = [summary_of(live[old.id]) if old.id in live else self._with_memory(old) for old in written]
        return wire.EpisodeList(episodes=tuple([*reversed(unwritten), *merged][:limit]))

    async def episode(self, name: str) -> wire.EpisodeRecord:
        record, training = await self.tokens(name), self._server.running
        renderer = None if training is None else training.rollout.renderer
        return record if renderer is None else await asyncio.to_thread(with_texts, record, renderer)

    async def export(self, name: str | None) -> tuple[wire.ExportCounts, AsyncIterator[bytes]]:
        """Return what an export of one episode, or of all, holds, and its lines. Raises NotFound for one without a
        token."""
        if name is not None:
            record = await self.tokens(name)
            if not has_tokens(record):
                raise NotFound(f"episode {name} has no tokens: it made no call, or they went with an old checkpoint")
            return wire.ExportCounts(episodes=1), self._lines([name])
        written, counts = await self._server.written.list_exportable()
        names = list(dict.fromkeys([*written, *self._open()]))
        return counts.model_copy(update={"episodes": len(names)}), self._lines(names)

    async def _lines(self, names: Sequence[str]) -> AsyncIterator[bytes]:
        for name in names:
            try:
                record = await self.episode(name)
            except NotFound:  # it was given up meanwhile, as the lines that are missing tell
                continue
            if has_tokens(record):
                yield record.model_dump_json().encode() + b"\n"

    async def tokens(self, name: str) -> wire.EpisodeRecord:
        if (episode := self._open().get(name)) is not None:
            calls = tuple(call_record(node) for node in list(episode.tree.nodes))
            return wire.EpisodeRecord(**summary_of(episode).model_dump(), record=calls)
        found = await self._server.written.episode(name)
        if found is None:
            raise NotFound(f"there is no episode {name[:80]!r}; GET /episodes lists those that are known")
        return self._with_memory(found)

    def _with_memory(self, found: SummaryT) -> SummaryT:
        running = self._server.running
        closed = None if running is None else running.rollout.leases.closed.get(found.id)
        if closed is None:
            return found
        state = {"state": closed.state, "reason": closed.reason} if found.state in ("open", "prepared") else {}
        return found.model_copy(update={**state, "refusals": closed.refusals, "refusal": closed.refusal})

    def _open(self) -> dict[str, LeasedEpisode]:
        running = self._server.running
        return {} if running is None else {episode.id: episode for episode in running.rollout.leases}


def summary_of(episode: LeasedEpisode) -> wire.EpisodeSummary:
    return wire.EpisodeSummary(
        id=episode.id, task_id=episode.task_id, stream=episode.stream, kind=episode.kind, owner=episode.owner,
        state="open", calls=len(episode.tree.nodes), tokens=sum(len(node.sampled) for node in episode.tree.nodes),
        code=episode.code, refusals=episode.refusals, refusal=episode.refusal,
    )  # fmt: skip


def has_tokens(record: wire.EpisodeRecord) -> bool:
    return any(call.sampled.ids for call in record.record)


class HistoryQuery(BaseModel):
    """Which steps and metrics are asked for."""

    model_config = ConfigDict(frozen=True)

    after: int = Field(default=0, ge=0, le=2**31 - 1, description="steps above it")
    limit: int = Field(default=100, ge=1, le=500)
    newest: bool = Field(default=False, description="the newest of them, not the first")
    keys: str | None = Field(
        default=None,
        min_length=1,
        max_length=4000,
        description="metrics to tell, with commas between; `stream/*` names all that begin so; all when left out",
    )

    @cached_property
    def _wanted(self) -> tuple[set[str], tuple[str, ...]]:
        named = [key.strip() for key in (self.keys or "*").split(",")]
        return {key for key in named if not key.endswith("*")}, tuple(key[:-1] for key in named if key.endswith("*"))

    def wants(self, name: str) -> bool:
        """Return whether a metric is asked for: in one look, as there may be thousands of keys and of values."""
        exact, beginnings = self._wanted
        return name in exact or name.startswith(beginnings)


async def history(server: SwarmServer, query: HistoryQuery) -> HistoryPage:
    found = await server.written.history(query.after, query.limit + 1, newest=query.newest)
    more = len(found) > query.limit and not query.newest
    page = found[-query.limit :] if query.newest else found[: query.limit]
    steps = tuple(
        StepRecord(step=step, metrics=finite_metrics({name: metrics[name] for name in metrics if query.wants(name)}))
        for step, metrics in page
    )
    return HistoryPage(job_digest=await server.digest(), steps=steps, next=steps[-1].step if more else None)


MOST_STREAMS_NAMED = 8
"""Streams that are named as waited for."""


def why_waiting(state: wire.ServerState, reason: str | None, training: Training | None) -> tuple[StepWait, ...]:
    """Return what the present step of a server in this state waits for, the most pressing first."""
    if state is wire.ServerState.OFFLINE or training is None:
        return (StepWait(what="engine", text="the engine is off"),)
    if state is wire.ServerState.BOOTING:
        return (StepWait(what="engine", text="the model is being loaded"),)
    if state is wire.ServerState.FAILED:
        return (StepWait(what="failed", text=reason or "the server failed"),)
    rollout, waits = training.rollout, list[StepWait]()
    if rollout.pending_evaluations:
        awaited, played = rollout.unplayed, sum(episode.kind == "eval" for episode in rollout.leases)
        who = f"{played} in play" if played else "nobody plays them: ajet client run --evaluations"
        text = f"{awaited} evaluation episodes of version {rollout.version} ({who})"
        return (StepWait(what="evaluation", text=text, count=awaited),)
    if training.finished:
        return (StepWait(what="nothing", text="the training is finished"),)
    if training.waiting is not None:
        return (StepWait(what="room", text=training.waiting),)
    if training.updating:
        waits.append(StepWait(what="learning", text=f"step {training.step + 1} is being learned"))
    if rollout.groups.complete and state is wire.ServerState.ROLLING_POST:
        calls = rollout.gate.in_flight
        waits.append(StepWait(what="generation", text=f"{calls} generations to end", count=calls))
    elif not rollout.groups.complete and state is not wire.ServerState.WEIGHT_SYNCING:
        playing = [episode for episode in rollout.leases if episode.kind == "train"]
        waits += _straggler_waits(training, playing) if rollout.groups.full else _missing_waits(training, playing)
    return tuple(waits)


def _straggler_waits(training: Training, playing: list[LeasedEpisode]) -> Iterator[StepWait]:
    awaited = training.rollout.groups.awaited
    late = sorted((e for e in playing if e.id in awaited), key=lambda episode: episode.begun_at)
    prepared = sum(one.id in awaited for one in training.rollout.leases.prepared)
    if prepared:
        yield StepWait(what="episodes", text=f"{prepared} episodes whose teams have not decided", count=prepared)
    if late:
        age = max(0.0, training.rollout.clock() - late[0].begun_at)
        text = f"{len(late)} episodes in play, the oldest for {age:.0f} s ({late[0].owner}, stream {late[0].stream})"
        yield StepWait(what="straggler", text=text, stream=late[0].stream, count=len(late), age_s=age)


def _missing_waits(training: Training, leases: list[LeasedEpisode]) -> Iterator[StepWait]:
    groups, job, playing = training.rollout.groups, training.job, Counter(episode.stream for episode in leases)
    lacking = groups.streams.count_missing(groups.done)
    size = 1 if job.batch_rule == "episodes" else job.group_size
    ended = Counter[str]()
    for group in groups:
        if size > 1 and group.whole_since is None:
            ended[group.stream] += len(group.ended)
    for stream, places in lacking.most_common(MOST_STREAMS_NAMED):
        missing = places * size - (ended[stream] if stream else ended.total())
        if places and missing > 0:
            played = playing[stream] if stream else playing.total()
            of = f" of stream {stream}" if stream else ""
            who = f"{played} in play" if played else "nobody plays"
            yield StepWait(
                what="episodes", text=f"{missing} episodes{of} ({who})", stream=stream or None, count=missing
            )


MOST_OWNERS = 20
MOST_STREAMS = 50
MOST_DROPS = 20


def snapshot_of(server: SwarmServer) -> Snapshot:
    """Return what the server does now; the training's part is empty while the engine is off."""
    status, training = server.status(), server.opened
    shown: dict[str, Any] = {}
    with contextlib.suppress(NotFound):  # no job is loaded
        job = server.job
        shown = {"environment": job.environment, "model": model_in_words(job.model), "algorithm": job.algorithm}
    if training is not None:
        rollout, pace, metrics = training.rollout, training.pace, training.metrics
        counts, leases = rollout.counts, list(rollout.leases)
        pace.record_tokens(rollout.sampled_tokens)
        owners, streams = _owners(leases, rollout.clock()), _streams(training, leases)
        seconds = metrics.get("timing_s/step")
        step_s = pace.step_s if pace.step_s is not None else seconds
        shown |= {
            "seconds_left": None if step_s is None else (training.job.steps - training.step) * step_s,
            "streams": tuple(streams[:MOST_STREAMS]),
            "streams_left_out": max(0, len(streams) - MOST_STREAMS),
            "owners": tuple(owners[:MOST_OWNERS]),
            "owners_left_out": max(0, len(owners) - MOST_OWNERS),
            "line": len(rollout.admission),
            "line_age_s": rollout.admission.age_s,
            "sampled_tokens": rollout.sampled_tokens,
            "sampled_per_s": pace.sampled_per_s,
            "trained_per_s": metrics["tokens/trained"] / seconds if seconds and "tokens/trained" in metrics else None,
            "episodes": {
                name: counts[name] for name in ("begun", "ended", "trained", "evaluated", "aborted", "fenced")
            },
            "drops": select_prefix(counts, "drop_"),
            "flat": training.flat,
            "refusals": select_prefix(counts, "refused_"),
            "refusal": rollout.refusal,
            "recent_drops": tuple(list(rollout.lost)[: -MOST_DROPS - 1 : -1]),
            "side_conversations": counts["side_conversations"],
            "skipped_tasks": dict(rollout.skipped),
        }
    waits = why_waiting(status.state, status.reason, training)
    return Snapshot(at=time.time(), status=status, waits=waits, **shown)


def model_in_words(model: ModelSpec) -> str:
    if isinstance(model, TinyModel):
        return f"tiny ({model.layers} layers of {model.hidden_size})"
    return model.path.rstrip("/").rpartition("/")[2] or model.path


def select_prefix(counts: Counter[str], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in sorted(counts.items()) if name.startswith(prefix)}


def _owners(leases: Iterable[LeasedEpisode], now: float) -> list[OwnerSnapshot]:
    held: dict[str, list[LeasedEpisode]] = {}
    for episode in leases:
        held.setdefault(episode.owner, []).append(episode)
    largest = sorted(held.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        OwnerSnapshot(
            owner=owner,
            open=len(episodes),
            heard_s=max(0.0, now - max(episode.heard_at for episode in episodes)),
            oldest_s=max(0.0, now - min(episode.begun_at for episode in episodes)),
        )
        for owner, episodes in largest
    ]


def _streams(training: Training, leases: Iterable[LeasedEpisode]) -> list[StreamSnapshot]:
    groups = training.rollout.groups
    episodes = Counter(episode.stream for episode in leases if episode.kind == "train")
    begun = Counter(group.stream for group in groups)
    whole = Counter(group.stream for group in groups if group.whole_since is not None)
    found = [
        StreamSnapshot(
            name=stream.name,
            share=stream.share,
            cursor=stream.cursor,
            groups_trained=stream.groups_trained,
            groups_open=begun[stream.name] - whole[stream.name],
            groups_whole=whole[stream.name],
            episodes_open=episodes[stream.name],
            lacking=sum(stream.unfinished.values()),
        )
        for stream in groups.streams.status(begun, groups.count_missing())
    ]
    return sorted(found, key=lambda stream: (-stream.episodes_open, -stream.groups_open, stream.name))


PROMETHEUS = CONTENT_TYPE_PLAIN_0_0_4
_GAUGES: tuple[tuple[str, str, Callable[[wire.Status, Rollout], float | None]], ...] = (
    ("step", "Training steps done.", lambda status, _: status.step),
    ("policy_version", "Version of the weights that serve.", lambda status, _: status.policy_version),
    ("updating", "1 while a batch is learned or its checkpoint saved.", lambda status, _: status.updating),
    ("finished", "1 once the last step is done.", lambda status, _: status.finished),
    ("waiting", "1 while a step waits for store, disk or an evaluation.", lambda status, _: status.waiting is not None),
    ("line", "Begins that wait for room.", lambda _, rollout: len(rollout.admission)),
    ("line_age_seconds", "For how long the first of them has.", lambda _, rollout: rollout.admission.age_s),
    ("collected_episodes", "Ended episodes waiting for their batch.", lambda status, _: status.collected_episodes),
    ("needed_episodes", "Episodes a batch takes.", lambda status, _: status.needed_episodes),
    ("pool_bytes", "Bytes the waiting episodes hold.", lambda _, rollout: rollout.groups.bytes),
    ("pool_limit_bytes", "Bytes beyond which the oldest are dropped.", lambda _, rollout: rollout.job.pool_bytes),
    ("calls_in_flight", "Calls of open episodes being answered.",
     lambda _, rollout: sum(len(episode.calls) for episode in rollout.leases)),
    ("generations_in_flight", "Answers the engine works on.", lambda _, rollout: rollout.gate.in_flight),
)  # fmt: skip
_COUNTS = {
    "begun": ("episodes_begun", "Episodes begun."),
    "trained": ("episodes_trained", "Episodes given to the learner."),
    "evaluated": ("episodes_evaluated", "Evaluation episodes that ended."),
    "throttled": ("throttled", "Begins that found no room."),
    "calls": ("calls", "Answers asked of the engine."),
    "tokens_beyond_end": ("tokens_beyond_end", "Ids sampled beyond the end of an answer, and forgotten."),
}
"""Counts of the rollout that are a family each."""
_COUNTS_BY_PREFIX = {
    "drop_": ("drops", "reason", "Episodes that ended and are not trained, or were fenced."),
    "calls_": ("call_events", "event", "Calls that failed, were cancelled, withdrawn, coalesced or are untrained."),
    "refused_": ("refused_calls", "code", "Model calls that were refused."),
    "left_out_": ("left_out", "what", "Requests with something that no model here can be given."),
    "neutralised_": ("neutralised", "field", "Calls whose field was held to the job's sampling."),
}
"""Counts of the rollout that are a label's value each, by how their names begin."""
_STREAMS: tuple[tuple[str, str, Callable[[wire.StreamStatus], float | None]], ...] = (
    ("share", "The stream's part of each batch.", lambda stream: stream.share),
    ("cursor", "Groups played to their end.", lambda stream: stream.cursor),
    ("groups_open", "Groups of the present step.", lambda stream: stream.groups_open),
    ("groups_trained", "Groups given to the learner.", lambda stream: stream.groups_trained),
    ("lacking", "Places of unfinished groups nobody plays.", lambda stream: sum(stream.unfinished.values())),
)


def exposition(server: SwarmServer) -> bytes:
    collector: Any = SimpleNamespace(collect=lambda: _families(server))  # registered nowhere
    return generate_latest(collector)


def _families(server: SwarmServer) -> Iterator[Metric]:
    status, training = server.status(), server.opened
    states = {state.value: float(state is status.state) for state in wire.ServerState}
    yield _labelled(GaugeMetricFamily, "server_state", "1 for the present state.", "state", states)
    with contextlib.suppress(NotFound):  # no job is loaded
        job = server.job
        yield InfoMetricFamily("ajet_job", "The loaded job.", {"digest": job.digest(), "backend": job.backend})
        yield GaugeMetricFamily("ajet_steps", "Training steps the job asks for.", job.steps)
    if training is None:
        return
    rollout = training.rollout
    for name, told, measure in _GAUGES:
        yield GaugeMetricFamily(f"ajet_{name}", told, float(measure(status, rollout) or 0.0))
    best = {} if status.best is None else status.best.model_dump(exclude_none=True)
    told = "The best evaluation, whose checkpoint is kept; its score is optimistic."
    yield _labelled(GaugeMetricFamily, "best", told, "what", best)
    held = len(rollout.leases.prepared)
    leases = {"open": status.open_episodes - held, "prepared": held}
    yield _labelled(GaugeMetricFamily, "leases", "Episodes that are open or prepared.", "state", leases)
    for count, (name, told) in _COUNTS.items():
        yield CounterMetricFamily(f"ajet_{name}", told, rollout.counts[count])
    outcomes = {outcome: rollout.counts[outcome] for outcome in ("ended", "aborted", "fenced")}
    yield _labelled(CounterMetricFamily, "episodes", "Episodes that are over.", "outcome", outcomes)
    for prefix, (name, label, told) in _COUNTS_BY_PREFIX.items():
        yield _labelled(CounterMetricFamily, name, told, label, select_prefix(rollout.counts, prefix))
    told = "Metrics of the last finished step."
    yield _labelled(GaugeMetricFamily, "training", told, "metric", training.metrics)
    with contextlib.suppress(EngineUnavailable):  # while it boots they are not read back yet
        streams = rollout.streams().streams
        for name, told, measured in _STREAMS:
            values = {stream.name: value for stream in streams if (value := measured(stream)) is not None}
            yield _labelled(GaugeMetricFamily, f"stream_{name}", told, "stream", values)


def _labelled(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, told: str, label: str, values: Mapping[str, float]
) -> Metric:
    family = kind(f"ajet_{name}", told, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
