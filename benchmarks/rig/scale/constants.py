"""The formulas' constants, taken from what was played: bytes of a call beside its text, of a row beside its tokens.

They are taken from episodes of one and eight turns; those of 32 turns check them (`forecast`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rig.scale.kinds import BEAT, BEGIN, CALL, END
from rig.scale.plays import Played
from rig.scale.relay import Exchange

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
