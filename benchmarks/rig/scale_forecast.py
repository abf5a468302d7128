"""Formulas for many clients and servers and a large model, and their constants.

The formulas' constants, taken from what was played: bytes of a call beside its text, of a row beside its tokens.

They are taken from episodes of one and eight turns; those of 32 turns check them (`forecast`).

Formulas: what many clients and servers and a large model come to, from measured constants and a plan's assumptions.

Nothing here was run at that size. Times of calls and tools, tokens and links are the plan's; bytes of calls, rows and
parameters were measured small, and are carried on as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rig.scale_measured import BEAT, BEGIN, CALL, END, Exchange, Played

CONTEXT_BYTES, SAMPLED_BYTES = 4, 16
"""Of a stored token: its id; its id, log-prob and policy version (`swarm/store/tables.py`)."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Bytes, unless a name says otherwise; `up` is to the server, `down` from it."""

    call_up: float
    """Of a call without its messages: HTTP head and the rest of the body."""
    message: float
    """Of a message without its text."""
    call_down: float
    """Of an answer without its text."""
    streamed_token: float
    """Of a streamed answer, for each token."""
    episode_up: float
    episode_down: float
    """Of an episode's beginning and end together."""
    beat_up: float
    beat_down: float
    beats_per_ttl: float
    """Heartbeats of a silent episode in `lease_ttl_s`."""
    call_row: float
    """Of a captured call's row and index entry without its tokens."""
    episode_row: float
    """Of an episode's row and index entries, which stay."""
    step_rows: float
    """Of a step's row and its events."""
    written_over_stored: float
    """What the server's process wrote to its disk over what it stored, where messages are long."""

    def value(self) -> dict[str, float]:
        """Return them as JSON."""
        return {name: round(found, 3) for name, found in asdict(self).items()}


def constants(one: Played, eight: Played, long: Played, streamed: Played, silent: Played) -> Constants:
    """Return the constants that plays of one and eight turns, of long messages, streamed and silent ones show."""
    turns = calls_by_turn(eight)
    said = eight.said / len(eight.granted(CALL))
    message = ((turns[-1] - turns[0]) / (len(turns) - 1) - eight.shape.asked - said) / 2
    call_down = fmean(each.down for each in one.granted(CALL)) - said
    answers, beats = streamed.granted(CALL), silent.granted(BEAT)
    framing = [*one.granted(BEGIN), *one.granted(END)]
    ttls = silent.shape.turns * silent.shape.silent_s / silent.job.lease_ttl_s
    stored = delta(eight)
    return Constants(
        call_up=fmean(each.up for each in one.granted(CALL)) - one.shape.asked - message,
        message=message,
        call_down=call_down,
        streamed_token=(fmean(each.down for each in answers) - call_down) / (streamed.sampled_tokens / len(answers)),
        episode_up=sum(each.up for each in framing) / one.episodes,
        episode_down=sum(each.down for each in framing) / one.episodes,
        beat_up=fmean(each.up for each in beats),
        beat_down=fmean(each.down for each in beats),
        beats_per_ttl=len(beats) / silent.episodes / ttls,
        call_row=stored["bytes beside the tokens of a call"],
        episode_row=stored["bytes of an episode row"],
        step_rows=stored["bytes of step rows"],
        written_over_stored=delta(long)["written to disk over stored"],
    )


def calls_by_turn(played: Played) -> list[float]:
    """Return the mean bytes up of the calls of each turn: a later turn's are always more."""
    sizes = sorted(each.up for each in played.granted(CALL))
    each = played.episodes
    return [fmean(sizes[start : start + each]) for start in range(0, len(sizes), each)]


def traffic(played: Played) -> dict[str, Any]:
    """Return what an episode and a call of a shape sent: requests, and bytes in either direction."""
    own = [exchange for kind in (BEGIN, CALL, END) for exchange in played.granted(kind)]
    turns = calls_by_turn(played)
    return {
        "turns": played.shape.turns,
        "client": played.shape.way,
        "episodes": played.episodes,
        "requests an episode": round(len(own) / played.episodes, 3),
        "bytes an episode": _both(own, played.episodes),
        "bytes a call": _both(played.granted(CALL), len(played.granted(CALL))),
        "bytes up of the first and the last call": [round(turns[0]), round(turns[-1])],
        "tokens a call": {
            "prompt": round(played.prompt_tokens / len(played.granted(CALL))),
            "sampled": round(played.sampled_tokens / len(played.granted(CALL))),
        },
    }


def _both(exchanges: Sequence[Exchange], parts: int) -> dict[str, int]:
    return {way: round(sum(getattr(each, way) for each in exchanges) / parts) for way in ("up", "down")}


def delta(played: Played) -> dict[str, Any]:
    """Return what a shape added to the store."""
    before, after = played.before, played.after
    rows = {name: after.rows[name] - before.rows[name] for name in after.rows}
    held = {name: after.payload.get(name, 0) - before.payload.get(name, 0) for name in after.rows}
    tokens = CONTEXT_BYTES * (after.context - before.context) + SAMPLED_BYTES * (after.sampled - before.sampled)
    steps, stored = played.job.steps, sum(held.values())
    return {
        "turns": played.shape.turns,
        "at once": played.shape.concurrency,
        "characters asked": played.shape.asked,
        "rows an episode": {name: rows[name] / played.episodes for name in ("episodes", "nodes")},
        "rows a step": {name: rows[name] / steps for name in ("steps", "events")},
        "commits an episode": round((after.commits - before.commits) / played.episodes, 2),
        "stored bytes an episode": round((held["episodes"] + held["nodes"]) / played.episodes),
        "file grew by, bytes an episode": round((after.file - before.file) / played.episodes),
        "bytes beside the tokens of a call": round((held["nodes"] - tokens) / rows["nodes"], 1)
        if rows["nodes"]
        else None,
        "bytes of an episode row": round(held["episodes"] / played.episodes, 1),
        "bytes of step rows": round((held["steps"] + held["events"]) / steps),
        "written to disk, bytes an episode": round((after.written - before.written) / played.episodes),
        "written to disk over stored": round((after.written - before.written) / stored, 2),
    }


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


Figures = Mapping[str, Any]
Table = tuple[Sequence[str], Iterable[Sequence[str]]]
"""The head, and the rows."""


def measured(figures: Figures) -> Iterator[Table]:
    """Yield what an episode sends, what is stored of it, and what a parameter weighs."""
    yield (
        (
            "turns",
            "client",
            "requests",
            "KB up, down of an episode",
            "bytes up, down of a call",
            "up: first, last call",
        ),
        map(_traffic, figures["traffic"]),
    )
    yield (
        ("turns", "played", "commits an episode", "KB stored an episode", "KB written to disk an episode, over stored",
         "stored: bytes of an episode, of a step; of a call beside its tokens"),
        map(_store_row, figures["store"]),
    )  # fmt: skip
    yield (
        ("trained", "bytes of a parameter in a checkpoint: weights, optimiser", "published"),
        ((name, *_weights(found)) for name, found in figures["weights"].items()),
    )


def sentences(figures: Figures) -> Iterator[str]:
    """Yield what is no table: heartbeats, the gateway, the formulas beside what was measured, a full server."""
    beats, found, full = figures["heartbeats"], figures["constants"], figures["at the calls/s measured"]
    gateway, formula = figures["gateway"], figures["formula over measured"]
    yield (
        f"- A silent episode sends {found['beats_per_ttl']:.1f} heartbeats in `lease_ttl_s` "
        f"({beats['an episode']:.0f} in {beats['silent for, s']:g} s of a lease of {beats['lease_ttl_s']:g} s), each "
        f"{found['beat_up']:.0f} bytes up and {found['beat_down']:.0f} down."
    )
    yield (
        f"- A container's gateway passes each request on, one for one. A call's bytes change by "
        f"{gateway[CALL]['up']:+.0f} up and {gateway[CALL]['down']:+.0f} down, an episode's beginning by "
        f"{gateway[BEGIN]['up']:+.0f} up: the run's token takes a placeholder's place."
    )
    if formula is not None:
        yield (
            "- The formulas, from 1 and 8 turns, over what was measured at 32: "
            f"{formula['up']:.3f} up, {formula['down']:.3f} down, {formula['stored']:.3f} stored."
        )
    yield (
        f"- Calls as short as those of 8 turns above, at the {full['calls/s']:,} per second that fill a server process "
        f"([performance.md](performance.md)), are {full['Mb/s up']:.0f} Mb/s up and {full['Mb/s down']:.0f} down."
    )


def _traffic(row: Figures) -> tuple[str, ...]:
    episode, call = row["bytes an episode"], row["bytes a call"]
    first, last = row["bytes up of the first and the last call"]
    return (
        f"{row['turns']}", row["client"], f"{row['requests an episode']:g}",
        f"{episode['up'] / 1e3:.1f}, {episode['down'] / 1e3:.1f}", f"{call['up']:,}, {call['down']:,}",
        f"{first:,}, {last:,}",
    )  # fmt: skip


def _store_row(row: Figures) -> tuple[str, ...]:
    beside = row["bytes beside the tokens of a call"]
    return (
        f"{row['turns']}",
        f"{row['at once']} at once, {row['characters asked']:,} characters a message"
        + (", checkpoint after each step" if beside is None else ""),
        f"{row['commits an episode']:g}",
        f"{row['stored bytes an episode'] / 1e3:.2f}",
        f"{row['written to disk, bytes an episode'] / 1e3:.0f}"
        + ("" if beside is None else f", {row['written to disk over stored']:.1f} times"),
        f"{row['bytes of an episode row']:.0f}, {row['bytes of step rows']:,}; "
        + ("tokens are gone" if beside is None else f"{beside:.0f}"),
    )


def _weights(found: Figures) -> tuple[str, str]:
    checkpoint = found["checkpoint, bytes a parameter"]
    return f"{checkpoint['model']:.2f}, {checkpoint['optimizer']:.2f}", f"{found['published, bytes a parameter']:.2f}"


def computed(figures: Figures) -> Iterator[Table]:
    """Yield what the plans come to, a column each."""
    plans = figures["computed"]
    seconds = plans[0]["seconds to publish to a replica, by Gb/s"].values()
    yield (
        ("at each of the servers", *(f"{plan['turns']} turns" for plan in plans)),
        ((what, *(f"{plan[name]:,.{digits}f}" for plan in plans)) for what, name, digits in _COMPUTED),
    )
    yield (
        ("publishing", "10 Gb/s", "100 Gb/s", "400 Gb/s"),
        [
            (f"seconds to {what}", *(f"{count * found:.1f}" for found in seconds))
            for what, count in (("one replica", 1), ("eight, one after another over one sender's link", 8))
        ]
        + [
            (f"one replica, as a part of the time in which a batch of {plan['turns']} turns is played",
             *(f"{100 * found:.1f} %" for found in plan["part of playing a batch, by Gb/s"].values()))
            for plan in plans
        ],
    )  # fmt: skip


_COMPUTED = (
    ("calls per second", "calls/s", 0),
    ("tokens that its engines must sample per second", "tokens/s", 0),
    ("heartbeats per second", "heartbeats/s", 0),
    ("KB up of a call (mean)", "KB up a call", 1),
    ("KB down of a call, whole", "KB down a call", 1),
    ("KB down of a call, streamed", "KB down a call, streamed", 1),
    ("Mb/s up", "Mb/s up", 1),
    ("Mb/s down, whole", "Mb/s down", 1),
    ("Mb/s down, streamed", "Mb/s down, streamed", 1),
    ("CPU ms of a call", "CPU ms a call", 2),
    ("part of the one core that a server process uses", "part of a core", 2),
    ("calls per second that fill it", "most calls/s", 0),
    ("Mb/s up then", "Mb/s up at most calls/s", 0),
    ("Mb/s down then, whole", "Mb/s down at most calls/s", 0),
    ("seconds to play a batch of 1,024 episodes", "seconds to play a batch", 0),
    ("GB of that batch as `pool_bytes` counts (default 1.07)", "GB of a batch, as pool_bytes counts", 2),
    ("KB stored of an episode", "KB stored an episode", 0),
    ("GB of tokens in the store until they are collected", "GB stored until two checkpoints later", 1),
    ("GB stored a day", "GB stored a day", 1),
    ("of these, GB a day that stay", "GB a day that stay", 3),
    ("GB written to disk a day", "GB written to disk a day", 0),
    ("GB published", "GB published", 0),
    ("GB of a checkpoint", "GB of a checkpoint", 0),
    ("GB of checkpoints on disk", "GB of checkpoints on disk", 0),
)
"""Rows of the table: what it says, the figure's name, and digits."""
