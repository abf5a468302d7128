"""What does an episode send and store?

    python benchmarks/scale.py            about four minutes
    python benchmarks/scale.py --quick    about one minute: fewer episodes, 8 turns at most
    python benchmarks/scale.py --json     also writes benchmarks/results/scale.json

Counts and bytes, on a swarm server in a process of its own (backend `fake`, real tokenizer and template, SQLite), with
the real clients (ours and OpenAI's) and a relay between them that counts (`rig/scale_measured.py`):

- requests and bytes up and down for an episode and a call, with 1, 8 and 32 turns whose history grows, whole and
  streamed an id at a time;
- rows, commits and bytes of the store for an episode and a step, what the server's process wrote to its disk by the
  kernel's count, and what is left once a checkpoint was saved;
- heartbeats of episodes whose agents are silent.

Bytes are those of HTTP, without TCP's and IP's headers. There is no goal.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rig.frame import circumstances, concluded, markdown_table, parser
from rig.scale_measured import BEAT, BEGIN, CALL, END, Exchange, Played, Shape, play
from rig.servers import ServerProcess, serving

from swarm.job import Job

JOB = Job(
    backend="fake", group_size=8, max_context=1_000_000, max_tokens=512, lease_ttl_s=600.0, checkpoint_every=1000
)  # fmt: skip
SILENT = Shape(turns=2, silent_s=6.0)
SILENT_TTL_S = 1.5
LONG = 4000
"""Characters of each message of the agents whose rows are long."""
CONTEXT_BYTES, SAMPLED_BYTES = 4, 16
"""Of a stored token: its id; its id, log-prob and policy version (`swarm/store/tables.py`)."""


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="fewer episodes, 8 turns at most").parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-scale-") as folder:
        figures = {**measure(Path(folder), quick=arguments.quick), **circumstances(arguments)}
    print("\n".join(text(figures)))
    return concluded("scale", figures, (), arguments)


def text(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures as `docs/scale.md` has them."""
    head = ("turns", "client", "requests", "KB up, down of an episode", "bytes up, down of a call",
            "up: first, last call")  # fmt: skip
    yield from markdown_table(head, map(_traffic, figures["traffic"]))
    head = ("turns", "played", "commits an episode", "KB stored an episode",
            "KB written to disk an episode, over stored",
            "stored: bytes of an episode, of a step; of a call beside its tokens")  # fmt: skip
    yield from markdown_table(head, map(_store_row, figures["store"]))
    beats = figures["heartbeats"]
    yield (
        f"- A silent episode sends {beats['in a lease']:.1f} heartbeats in `lease_ttl_s` "
        f"({beats['an episode']:.0f} in {beats['silent for, s']:g} s of a lease of {beats['lease_ttl_s']:g} s), each "
        f"{beats['bytes up']:.0f} bytes up and {beats['bytes down']:.0f} down."
    )


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Return all figures."""
    with serving("pieces", folder / "server") as server:
        played = _played(server, folder / "server", quick=quick)
    return {
        "traffic": [traffic(one) for name, one in played.items() if name[0].isdigit() and "long" not in name],
        "store": [delta(played[name]) for name in played if name.endswith((" ajet", "at a time", "checkpoint"))],
        "heartbeats": _heartbeats(played["silent"]),
    }


def _heartbeats(silent: Played) -> dict[str, float]:
    beats, seconds = silent.granted(BEAT), SILENT.turns * SILENT.silent_s
    an_episode = len(beats) / silent.episodes
    return {
        "lease_ttl_s": SILENT_TTL_S, "silent for, s": seconds, "an episode": an_episode,
        "in a lease": round(an_episode * SILENT_TTL_S / seconds, 3),
        "bytes up": fmean(beat.up for beat in beats), "bytes down": fmean(beat.down for beat in beats),
    }  # fmt: skip


def _played(server: ServerProcess, folder: Path, *, quick: bool) -> dict[str, Played]:
    """Play every shape, each in a training of its own."""
    turns, steps = ((1, 8), 1) if quick else ((1, 8, 32), 4)
    job = JOB.model_copy(update={"episodes_per_step": 16 if quick else 32, "steps": steps})
    small = job.model_copy(update={"episodes_per_step": 16, "steps": 1})
    rotated = {"checkpoint_every": 1, "checkpoints_kept": 1}
    jobs: dict[str, tuple[Shape, Job]] = {
        **{f"{number} ajet": (Shape(number), job) for number in turns},
        **{f"{number} openai": (Shape(number, "openai"), small) for number in turns},
        **{f"{number} openai, streamed": (Shape(number, "openai, streamed"), small) for number in turns},
        "8 long ajet": (Shape(8, asked=LONG), job),
        "one at a time": (Shape(8, concurrency=1), small),
        "after a checkpoint": (Shape(8), job.model_copy(update=rotated)),
        "silent": (SILENT, small.model_copy(update={"lease_ttl_s": SILENT_TTL_S})),
    }
    found = {}
    for seed, (name, (shape, wanted)) in enumerate(jobs.items()):
        print(f"playing: {name}", file=sys.stderr, flush=True)
        found[name] = asyncio.run(play(server, folder, wanted.model_copy(update={"seed": seed}), shape))
    return found


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
        "commits an episode": round((after.commits - before.commits) / played.episodes, 2),
        "stored bytes an episode": round((held["episodes"] + held["nodes"]) / played.episodes),
        "bytes beside the tokens of a call": round((held["nodes"] - tokens) / rows["nodes"], 1)
        if rows["nodes"]
        else None,
        "bytes of an episode row": round(held["episodes"] / played.episodes, 1),
        "bytes of step rows": round((held["steps"] + held["events"]) / steps),
        "written to disk, bytes an episode": round((after.written - before.written) / played.episodes),
        "written to disk over stored": round((after.written - before.written) / stored, 2),
    }


def _traffic(row: Mapping[str, Any]) -> tuple[str, ...]:
    episode, call = row["bytes an episode"], row["bytes a call"]
    first, last = row["bytes up of the first and the last call"]
    return (
        f"{row['turns']}", row["client"], f"{row['requests an episode']:g}",
        f"{episode['up'] / 1e3:.1f}, {episode['down'] / 1e3:.1f}", f"{call['up']:,}, {call['down']:,}",
        f"{first:,}, {last:,}",
    )  # fmt: skip


def _store_row(row: Mapping[str, Any]) -> tuple[str, ...]:
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


if __name__ == "__main__":
    raise SystemExit(main())
