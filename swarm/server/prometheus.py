"""`GET /metrics`: Prometheus metrics, read from the live server at each scrape.

Each family says in its HELP what it is. Counters are since the training began (`ajet_calls`, `ajet_throttled` and what
befell calls: since the engine was started); `ajet_episodes_begun_total` is always the sum of `ajet_leases` and
`ajet_episodes_total`. While the engine is off there is no training, and no family that tells of one. Belongs to the
server's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from swarm.errors import EngineUnavailable, NotFound
from swarm.rollout.rollout import Rollout
from swarm.server.service import SwarmServer
from swarm.server.watching import select_prefix
from swarm.training.loop import Training
from swarm.wire import ServerState, Status, StreamStatus

MEDIA = CONTENT_TYPE_PLAIN_0_0_4
_OUTCOMES = ("ended", "aborted", "fenced")
_PLAIN = {
    "begun": ("ajet_episodes_begun", "Episodes begun."),
    "trained": ("ajet_episodes_trained", "Episodes given to the learner."),
    "evaluated": ("ajet_episodes_evaluated", "Evaluation episodes that ended."),
    "throttled": ("ajet_throttled", "Begins that found no room."),
    "calls": ("ajet_calls", "Answers asked of the engine."),
    "tokens_beyond_end": ("ajet_tokens_beyond_end", "Ids sampled beyond the end of an answer, and forgotten."),
}
"""Counts of the rollout that are a family each."""
_BY_PREFIX = {
    "drop_": ("ajet_drops", "reason", "Episodes that ended and are not trained, or were fenced."),
    "calls_": (
        "ajet_call_events",
        "event",
        "Calls that failed, were cancelled, withdrawn, coalesced or are untrained.",
    ),
    "refused_": ("ajet_refused_calls", "code", "Model calls that were refused."),
    "left_out_": ("ajet_left_out", "what", "Requests with something that no model here can be given."),
    "neutralised_": ("ajet_neutralised", "field", "Calls whose field was held to the job's sampling."),
}
"""Counts of the rollout that are a label's value each, by how their names begin."""


def exposition(server: SwarmServer) -> bytes:
    return generate_latest(ServerCollector(server))


class ServerCollector:
    """A collector of prometheus_client around one server; register it nowhere else than in its own process."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        status = self._server.status()
        yield _make_labelled_gauge(
            "ajet_server_state",
            "1 for the present state.",
            "state",
            {state.value: float(state is status.state) for state in ServerState},
        )
        yield from self._job()
        training = self._server.opened
        if training is not None:
            yield from _progress(status)
            yield from _load(training.rollout, status)
            yield from _counters(training.rollout)
            yield _make_labelled_gauge(
                "ajet_training", "Metrics of the last finished step.", "metric", training.metrics
            )
            yield from _streams(training)

    def _job(self) -> Iterator[Metric]:
        try:
            job = self._server.job
        except NotFound:
            return
        yield InfoMetricFamily("ajet_job", "The loaded job.", {"digest": job.digest(), "backend": job.backend})
        yield _make_gauge("ajet_steps", "Training steps the job asks for.", job.steps)


def _progress(status: Status) -> Iterator[Metric]:
    yield _make_gauge("ajet_step", "Training steps done.", status.step)
    yield _make_gauge("ajet_policy_version", "Version of the weights that serve.", status.policy_version)
    yield _make_gauge("ajet_updating", "1 while a batch is learned or its checkpoint saved.", status.updating)
    yield _make_gauge("ajet_finished", "1 once the last step is done.", status.finished)
    yield _make_gauge(
        "ajet_waiting", "1 while a step waits for store, disk or an evaluation.", status.waiting is not None
    )
    best = {} if status.best is None else status.best.model_dump(exclude_none=True)
    yield _make_labelled_gauge(
        "ajet_best", "The best evaluation, whose checkpoint is kept; its score is optimistic.", "what", best
    )


def _load(rollout: Rollout, status: Status) -> Iterator[Metric]:
    held, calls = len(rollout.leases.prepared), sum(len(episode.calls) for episode in rollout.leases)
    leases = {"open": status.open_episodes - held, "prepared": held}
    yield _make_labelled_gauge("ajet_leases", "Episodes that are open or prepared.", "state", leases)
    yield _make_gauge("ajet_line", "Begins that wait for room.", len(rollout.registry.admission))
    yield _make_gauge(
        "ajet_line_age_seconds", "For how long the first of them has.", rollout.registry.admission.age_s or 0.0
    )
    yield _make_gauge("ajet_collected_episodes", "Ended episodes waiting for their batch.", status.collected_episodes)
    yield _make_gauge("ajet_needed_episodes", "Episodes a batch takes.", status.needed_episodes)
    yield _make_gauge("ajet_pool_bytes", "Bytes the waiting episodes hold.", rollout.groups.bytes)
    yield _make_gauge(
        "ajet_pool_limit_bytes", "Bytes beyond which the oldest are dropped.", rollout.registry.job.pool_bytes
    )
    yield _make_gauge("ajet_calls_in_flight", "Calls of open episodes being answered.", calls)
    yield _make_gauge("ajet_generations_in_flight", "Answers the engine works on.", rollout.gate.in_flight)


def _counters(rollout: Rollout) -> Iterator[Metric]:
    counts = rollout.counts
    for count, (name, told) in _PLAIN.items():
        yield CounterMetricFamily(name, told, counts[count])
    outcomes = {outcome: counts[outcome] for outcome in _OUTCOMES}
    yield _make_labelled_counter("ajet_episodes", "Episodes that are over.", "outcome", outcomes)
    for prefix, (name, label, told) in _BY_PREFIX.items():
        yield _make_labelled_counter(name, told, label, select_prefix(counts, prefix))


def _streams(training: Training) -> Iterator[Metric]:
    try:
        streams = training.rollout.streams().streams
    except EngineUnavailable:  # while it boots they are not read back yet
        return
    shares = {stream.name: stream.share for stream in streams if stream.share is not None}
    yield _make_labelled_gauge("ajet_stream_share", "The stream's part of each batch.", "stream", shares)
    yield _by_stream("cursor", "Groups played to their end.", streams, [s.cursor for s in streams])
    yield _by_stream("groups_open", "Groups of the present step.", streams, [s.groups_open for s in streams])
    yield _by_stream("groups_trained", "Groups given to the learner.", streams, [s.groups_trained for s in streams])
    lacking = [sum(stream.unfinished.values()) for stream in streams]
    yield _by_stream("lacking", "Places of unfinished groups nobody plays.", streams, lacking)


def _by_stream(name: str, told: str, streams: Iterable[StreamStatus], values: Iterable[int]) -> Metric:
    found = {stream.name: value for stream, value in zip(streams, values, strict=True)}
    return _make_labelled_gauge(f"ajet_stream_{name}", told, "stream", found)


def _make_gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, float(value))


def _make_labelled_gauge(name: str, told: str, label: str, values: Mapping[str, float]) -> Metric:
    return _fill_family(GaugeMetricFamily(name, told, labels=[label]), values)


def _make_labelled_counter(name: str, told: str, label: str, values: Mapping[str, float]) -> Metric:
    return _fill_family(CounterMetricFamily(name, told, labels=[label]), values)


def _fill_family(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key], value)
    return family
