"""What does an episode send and store, and a parameter weigh; and what do 1,000 clients, 8 servers and 32B come to?

    python benchmarks/scale.py            about four minutes
    python benchmarks/scale.py --quick    about one minute: fewer episodes, 8 turns at most
    python benchmarks/scale.py --json     also writes benchmarks/results/scale.json
    python benchmarks/scale.py --check    exit code 1 unless the goal below is met

Measured, as counts and bytes, on a swarm server in a process of its own (backend `fake`, real tokenizer and template,
SQLite), with the real clients (ours and OpenAI's) and a relay between them that counts (`rig/scale/relay.py`):

- requests and bytes up and down for an episode and a call, with 1, 8 and 32 turns whose history grows, whole and
  streamed an id at a time, and what a container's gateway adds to them;
- rows, commits and bytes of the store for an episode and a step, what the server's process wrote to its disk by the
  kernel's count, and what is left once a checkpoint was saved;
- heartbeats of episodes whose agents are silent;
- bytes of a parameter in a checkpoint and in published weights, from the safetensors files of a tiny model.

Computed from these and from `results/server_capacity.json`, with the formulas of `rig/scale/forecast.py`: what a plan
comes to. None of it was run at that size; bytes are those of HTTP, without TCP's and IP's headers.

The goal: the formulas, whose constants come from episodes of 1 and 8 turns, give the bytes up, down and stored of
episodes of 32 turns to within 5 %. (A `--quick` run has no 32 turns, and no goal.)
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rig import scale_measured
from rig.frame import RESULTS, circumstances, concluded, markdown_table, parser
from rig.scale_forecast import (
    Constants,
    Plan,
    call_down,
    call_up,
    computed,
    constants,
    delta,
    forecast,
    measured,
    sentences,
    stored,
    traffic,
)
from rig.scale_measured import CALL, Exchange, Played, Shape, play
from rig.servers import ServerProcess, serving

from swarm.job import Job

GOAL = 0.05
JOB = Job(
    backend="fake", group_size=8, max_context=1_000_000, max_tokens=512, lease_ttl_s=600.0, checkpoint_every=1000
)  # fmt: skip
SILENT = Shape(turns=2, silent_s=6.0)
SILENT_TTL_S = 1.5
LONG = 4000
"""Characters of each message of the agents whose rows are long."""


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="fewer episodes, 8 turns at most").parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-scale-") as folder:
        figures = {**measure(Path(folder), quick=arguments.quick), **circumstances(arguments)}
    print("\n".join(text(figures)))
    return concluded("scale", figures, goals_missed(figures), arguments)


def text(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the figures as `docs/scale.md` has them."""
    for head, rows in measured(figures):
        yield from markdown_table(head, rows)
    yield from sentences(figures)
    for head, rows in computed(figures):
        yield from markdown_table(head, rows)


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Return all figures."""
    with serving("pieces", folder / "server") as server:
        played = _played(server, folder / "server", quick=quick)
    found = constants(*(played[name] for name in ("1 ajet", "8 ajet", "8 long ajet", "8 openai, streamed", "silent")))
    weighed = {
        "all weights, fp32": scale_measured.measured(folder / "fp32", "float32"),
        "all weights, bf16": scale_measured.measured(folder / "bf16", "bfloat16"),
        "LoRA of rank 16, bf16": scale_measured.measured(folder / "lora", "bfloat16", lora_rank=16),
    }
    return {
        "traffic": [traffic(each) for name, each in played.items() if name[0].isdigit() and "long" not in name],
        "gateway": _added(played["behind a gateway"]),
        "store": [delta(played[name]) for name in played if name.endswith((" ajet", "at a time", "checkpoint"))],
        "heartbeats": {
            "lease_ttl_s": SILENT_TTL_S, "silent for, s": SILENT.turns * SILENT.silent_s,
            "an episode": found.beats_per_ttl * SILENT.turns * SILENT.silent_s / SILENT_TTL_S,
        },
        "weights": weighed,
        "constants": found.value(),
        "formula over measured": _agreement(found, played["32 ajet"]) if "32 ajet" in played else None,
        **_computed(found, weighed["all weights, bf16"], traffic(played["8 ajet"])),
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
        "behind a gateway": (Shape(8, contained=True), small),
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


def _added(played: Played) -> dict[str, Any]:
    """Return by how many bytes a gateway changes what goes up and down, by kind of request."""
    before, behind = _means(played.passed), _means(played.behind)
    return {
        kind: {way: round(behind[kind][way] - size, 1) for way, size in sizes.items()} for kind, sizes in before.items()
    }


def _means(passed: Sequence[Exchange]) -> dict[str, dict[str, float]]:
    return {
        kind: {way: fmean(getattr(each, way) for each in passed if each.kind == kind) for way in ("up", "down")}
        for kind in sorted({each.kind for each in passed})
    }


def _agreement(found: Constants, played: Played) -> dict[str, float]:
    """Return what the formulas give for a shape over what was measured of it."""
    calls, kept = played.granted(CALL), delta(played)
    context = played.after.context - played.before.context
    said, text = played.sampled_tokens / len(calls), played.said / len(calls)
    sent = Plan(played.shape.turns, asked=played.shape.asked, sampled=round(text), token_bytes=1.0)  # in characters
    held = replace(sent, asked=round(context / len(calls)), sampled=round(said))
    return {
        "up": call_up(found, sent) * len(calls) / sum(each.up for each in calls),
        "down": call_down(found, sent, streamed=False) * len(calls) / sum(each.down for each in calls),
        "stored": stored(found, held) / kept["stored bytes an episode"],
    }


def _computed(found: Constants, weighed: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    """Return what the plans come to, and what the calls per second that were measured send, short as they were."""
    capacity = json.loads((RESULTS / "server_capacity.json").read_text())
    bytes_of = {
        "published": weighed["published, bytes a parameter"],
        "checkpoint": sum(weighed["checkpoint, bytes a parameter"].values()),
    }
    calls = capacity["calls per second"]["server"]
    return {
        "computed": [forecast(found, capacity, bytes_of, Plan(turns)) for turns in (8, 32)],
        "at the calls/s measured": {
            "calls/s": calls,
            **{f"Mb/s {way}": 8 * calls * size / 1e6 for way, size in short["bytes a call"].items()},
        },
    }


def goals_missed(figures: dict[str, Any]) -> list[str]:
    """Return the goals of the module's docstring that `figures` miss."""
    found = figures["formula over measured"] or {}
    return [
        f"the formula gives {ratio:.3f} of the bytes {what} at 32 turns, the goal is 1 within {GOAL:g}"
        for what, ratio in found.items()
        if abs(ratio - 1) > GOAL
    ]


if __name__ == "__main__":
    raise SystemExit(main())
