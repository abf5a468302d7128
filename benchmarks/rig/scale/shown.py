"""The figures of `scale.py` in tables and sentences: what was measured, and what was computed from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rig.scale.kinds import BEGIN, CALL

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
        map(_store, figures["store"]),
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


def _store(row: Figures) -> tuple[str, ...]:
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
