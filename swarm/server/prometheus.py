"""`GET /metrics`: Prometheus metrics, read from the live server at each scrape.

Each family says in its HELP what it is. Counters are since the training began (`ajet_calls`, `ajet_throttled` and what
befell calls: since the engine was started); `ajet_episodes_begun_total` is always the sum of `ajet_leases` and
`ajet_episodes_total`. While the engine is off there is no training, and no family that tells of one. Belongs to the
server's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from swarm.errors import EngineUnavailable, NotFound
from swarm.rollout.rollout import Rollout
from swarm.server.service import SwarmServer
from swarm.server.watching import select_prefix
from swarm.wire import ServerState, Status, StreamStatus

MEDIA = CONTENT_TYPE_PLAIN_0_0_4
_GAUGES: tuple[tuple[str, str, Callable[[Status, Rollout], float | None]], ...] = (
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
    (
        "pool_limit_bytes",
        "Bytes beyond which the oldest are dropped.",
        lambda _, rollout: rollout.job.pool_bytes,
    ),
    (
        "calls_in_flight",
        "Calls of open episodes being answered.",
        lambda _, rollout: sum(len(episode.calls) for episode in rollout.leases),
    ),
    ("generations_in_flight", "Answers the engine works on.", lambda _, rollout: rollout.gate.in_flight),
)
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
_STREAMS: tuple[tuple[str, str, Callable[[StreamStatus], float | None]], ...] = (
    ("share", "The stream's part of each batch.", lambda stream: stream.share),
    ("cursor", "Groups played to their end.", lambda stream: stream.cursor),
    ("groups_open", "Groups of the present step.", lambda stream: stream.groups_open),
    ("groups_trained", "Groups given to the learner.", lambda stream: stream.groups_trained),
    ("lacking", "Places of unfinished groups nobody plays.", lambda stream: sum(stream.unfinished.values())),
)


def exposition(server: SwarmServer) -> bytes:
    return generate_latest(ServerCollector(server))


class ServerCollector:
    """A collector of prometheus_client around one server; register it nowhere else than in its own process."""

    def __init__(self, server: SwarmServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        status, training = self._server.status(), self._server.opened
        states = {state.value: float(state is status.state) for state in ServerState}
        yield _labelled(GaugeMetricFamily, "server_state", "1 for the present state.", "state", states)
        try:
            job = self._server.job
            yield InfoMetricFamily("ajet_job", "The loaded job.", {"digest": job.digest(), "backend": job.backend})
            yield GaugeMetricFamily("ajet_steps", "Training steps the job asks for.", job.steps)
        except NotFound:
            pass  # none is loaded
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
        try:
            streams = rollout.streams().streams
        except EngineUnavailable:  # while it boots they are not read back yet
            return
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
