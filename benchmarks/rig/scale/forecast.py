"""Formulas: what many clients and servers and a large model come to, from measured constants and a plan's assumptions.

Nothing here was run at that size. Times of calls and tools, tokens and links are the plan's; bytes of calls, rows and
parameters were measured small, and are carried on as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rig.scale.constants import CONTEXT_BYTES, SAMPLED_BYTES, Constants

POOL_BYTES = {"context": 40, "sampled": 80}
"""What a job's `pool_bytes` counts for a token in memory."""
LINKS = (10, 100, 400)
"""Gb/s of a replica's link."""
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Plan:
    """What somebody wants to run; everything but `clients`, `servers` and `parameters` is an assumption to replace."""

    turns: int
    clients: int = 1000
    servers: int = 8
    at_once: int = 8
    """Episodes that a client plays at once, all at one server."""
    asked: int = 500
    sampled: int = 500
    """Tokens of a turn: new ones of the prompt, and of the answer."""
    token_bytes: float = 4.0
    """Bytes of text in a token."""
    call_s: float = 20.0
    tool_s: float = 5.0
    """Seconds that a call takes the engine, and that an agent is silent after it."""
    parameters: float = 32e9
    episodes_per_step: int = 1024
    lease_ttl_s: float = 30.0
    checkpoint_every: int = 20
    checkpoints_kept: int = 2

    @property
    def open(self) -> float:
        """Episodes that a server has open."""
        return self.clients * self.at_once / self.servers

    @property
    def calls_a_s(self) -> float:
        """Calls per second at a server."""
        return self.open / (self.call_s + self.tool_s)

    @property
    def episodes_a_s(self) -> float:
        """Episodes per second at a server."""
        return self.calls_a_s / self.turns

    @property
    def step_s(self) -> float:
        """Seconds in which a batch is played."""
        return self.episodes_per_step / self.episodes_a_s

    @property
    def history(self) -> float:
        """Tokens before a turn's own, in the mean over an episode's calls."""
        return (self.turns - 1) / 2 * (self.asked + self.sampled)


def call_up(found: Constants, plan: Plan) -> float:
    """Return the bytes of a request, in the mean over an episode's calls: turn t has 2t - 1 messages."""
    return found.call_up + plan.turns * found.message + (plan.history + plan.asked) * plan.token_bytes


def call_down(found: Constants, plan: Plan, *, streamed: bool) -> float:
    """Return the bytes of an answer."""
    return found.call_down + plan.sampled * (found.streamed_token if streamed else plan.token_bytes)


def beats_a_s(found: Constants, plan: Plan) -> float:
    """Return the heartbeats per second at a server, where calls and tools take longer than a third of a lease."""
    return plan.open * found.beats_per_ttl / plan.lease_ttl_s


def stored(found: Constants, plan: Plan) -> float:
    """Return the bytes that the store holds of an episode, whose calls continue one another, until it is collected."""
    tokens = CONTEXT_BYTES * plan.asked + SAMPLED_BYTES * plan.sampled
    return found.episode_row + plan.turns * (found.call_row + tokens)


def call_cpu_s(capacity: Mapping[str, Any], plan: Plan) -> float:
    """Return a server's CPU seconds for a call, by `server_capacity.py`: of a short one, and its tokens on top."""
    growth = capacity["growth"]
    tokens = float(growth["ns per token of history"]) * plan.history + float(growth["ns per new token"]) * plan.asked
    return float(capacity["CPU ms per call"]["server"]) / 1e3 + tokens / 1e9


def forecast(found: Constants, capacity: Mapping[str, Any], weights: Mapping[str, float], plan: Plan) -> dict[str, Any]:
    """Return what a plan comes to at each server. `weights` are bytes of a parameter, published and in a checkpoint."""
    return {"turns": plan.turns, **_calls(found, capacity, plan), **_store(found, plan), **_model(weights, plan)}


def _calls(found: Constants, capacity: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    cpu, beats = call_cpu_s(capacity, plan), beats_a_s(found, plan)
    fullest = 1 / cpu
    up, whole, streamed = (
        call_up(found, plan), call_down(found, plan, streamed=False), call_down(found, plan, streamed=True)
    )  # fmt: skip
    rest_up = plan.episodes_a_s * found.episode_up + beats * found.beat_up
    rest_down = plan.episodes_a_s * found.episode_down + beats * found.beat_down
    return {
        "episodes open": plan.open,
        "calls/s": plan.calls_a_s,
        "tokens/s": plan.calls_a_s * plan.sampled,
        "heartbeats/s": beats,
        "KB up a call": up / 1e3,
        "KB down a call": whole / 1e3,
        "KB down a call, streamed": streamed / 1e3,
        "Mb/s up": _mbit(plan.calls_a_s * up + rest_up),
        "Mb/s down": _mbit(plan.calls_a_s * whole + rest_down),
        "Mb/s down, streamed": _mbit(plan.calls_a_s * streamed + rest_down),
        "CPU ms a call": 1e3 * cpu,
        "part of a core": plan.calls_a_s * cpu,
        "most calls/s": fullest,
        "Mb/s up at most calls/s": _mbit(fullest * up),
        "Mb/s down at most calls/s": _mbit(fullest * whole),
    }


def _mbit(bytes_a_s: float) -> float:
    return 8 * bytes_a_s / 1e6


def _store(found: Constants, plan: Plan) -> dict[str, Any]:
    episode, tokens = stored(found, plan), plan.turns * (
        POOL_BYTES["context"] * plan.asked + POOL_BYTES["sampled"] * plan.sampled
    )  # fmt: skip
    kept = plan.episodes_per_step * plan.checkpoint_every * plan.checkpoints_kept
    a_day = plan.episodes_a_s * DAY_S
    return {
        "seconds to play a batch": plan.step_s,
        "GB of a batch, as pool_bytes counts": plan.episodes_per_step * tokens / 1e9,
        "KB stored an episode": episode / 1e3,
        "GB stored until two checkpoints later": kept * episode / 1e9,
        "GB stored a day": a_day * episode / 1e9,
        "GB a day that stay": a_day * found.episode_row / 1e9,
        "GB written to disk a day": a_day * episode * found.written_over_stored / 1e9,
    }


def _model(weights: Mapping[str, float], plan: Plan) -> dict[str, Any]:
    published, checkpoint = (plan.parameters * weights[name] for name in ("published", "checkpoint"))
    seconds = {str(link): 8 * published / (link * 1e9) for link in LINKS}
    return {
        "GB published": published / 1e9,
        "GB of a checkpoint": checkpoint / 1e9,
        "GB of checkpoints on disk": (plan.checkpoints_kept + 1) * checkpoint / 1e9,
        "seconds to publish to a replica, by Gb/s": seconds,
        "part of playing a batch, by Gb/s": {link: found / plan.step_s for link, found in seconds.items()},
    }
