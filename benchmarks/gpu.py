"""What do merged calls save on a GPU, and how fast does the local engine generate there?

    python benchmarks/gpu.py              about four minutes on an H200; needs a GPU that torch finds
    python benchmarks/gpu.py --quick      about one: the shorter conversations, fewer requests
    python benchmarks/gpu.py --json       also writes benchmarks/results/gpu.json
    python benchmarks/gpu.py --part NAME  updates or generation alone; a file of the other one is added to

A Qwen3 of about 0.6 billion random weights, in bfloat16, as the local backend learns and serves it.

- Updates: `benchmarks/train_step.py` at full length: whole updates of groups of 8 conversations, unmerged (a row for
  each call) and linear (a row for each conversation), in turns. A GPU trains no trees.
- Generation: `benchmarks/generate.py`'s requests, longer, all at once: our engine beside transformers' continuous
  batching and its `generate`, over the same weights, in turns. Log-probs of each are compared with a plain forward.

Goals: merged updates are faster than unmerged ones in every workload, at least 5 times at T = 20; our engine is ahead
of both others at every load.
"""

from __future__ import annotations

import copy
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from random import Random
from statistics import median
from typing import Any

import torch
from rig.engines import Continuous, Ours, Padded, Request, deviation
from rig.frame import circumstances, concluded, earlier, parser, show_table, tell
from rig.in_process import MEMBERS, Workload, batch_of, conversations, ids_of
from transformers import Qwen3Config, Qwen3ForCausalLM

from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.policy import Policy
from swarm.job import Job

SIZES = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32_768, "max_position_embeddings": 16_384,
    "tie_word_embeddings": True,
}  # fmt: skip
WORKLOADS = (
    Workload(500, 200, 100, 4, groups=2),
    Workload(1_000, 200, 400, 10),
    Workload(1_000, 100, 200, 20),
)
LAYOUTS = ("none", "linear")
QUICK_TURNS = 4
BUDGET = 32_768
REPEATS = 1
"""Timed runs of each; one before them warms up."""
AT_20 = 5.0
COUNTS, QUICK_COUNTS = (128, 32), (32,)
PROMPT, ANSWER = (64, 1024), (64, 512)
CONTEXT = 2048
TOLERANCE = 0.25
"""Most that a log-prob may be off a plain forward's, in bfloat16: the bound of the engine's own check."""


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = parser(__doc__, quick="the shorter conversations, fewer requests")
    options.add_argument("--part", choices=tuple(PARTS), help="what alone is measured")
    arguments = options.parse_args()
    if not torch.cuda.is_available():
        print(f"expected a GPU, found that torch {torch.__version__} finds none: run it where there is one")
        return 2
    figures = {
        **kept(arguments.part),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": SIZES,
        "weights": sum(parameter.numel() for parameter in model().parameters()),
        "dtype": "bfloat16",
        "micro_batch_tokens": BUDGET,
        **circumstances(arguments),
    }
    parts = (arguments.part,) if arguments.part else PARTS
    figures |= {part: [] for part in parts}
    for part in parts:
        for row in PARTS[part](arguments.quick):
            figures[part].append(row)
            concluded("gpu", figures, (), arguments)  # what was measured stays, should the machine be taken back
    show(figures)
    return concluded("gpu", figures, goals_missed(figures), arguments)


def kept(part: str | None) -> dict[str, Any]:
    """Return what an earlier run found of the other part on this very card and torch; nothing where all is measured."""
    found = earlier("gpu") if part else {}
    if (found.get("gpu"), found.get("torch")) != (torch.cuda.get_device_name(), torch.__version__):
        return {}
    return {name: rows for name, rows in found.items() if name in PARTS and name != part}


def model() -> Any:
    """Return the model, the same each time, on the GPU."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        made = Qwen3ForCausalLM(Qwen3Config(**SIZES, attn_implementation="sdpa"))
    return made.to(torch.bfloat16).eval()


def updates(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield what each layout of each workload took."""
    for load in WORKLOADS:
        if not quick or load.turns <= QUICK_TURNS:
            yield from updated(load)


def updated(load: Workload) -> list[dict[str, Any]]:
    """Return what each layout of a workload's update took, and the memory it took most."""
    played = conversations(load, 1, SIZES["vocab_size"])
    ids = ids_of(played)
    learners = {layout: learner(layout) for layout in LAYOUTS}
    batches = {layout: batch_of(played, layout) for layout in LAYOUTS}
    seconds: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    memory: dict[str, float] = {}
    learned: dict[str, Mapping[str, float]] = {}
    for repeat in range(REPEATS + 1):
        tell(f"{load.name}: update {repeat} of {REPEATS}")
        for layout in LAYOUTS:
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            learned[layout] = learners[layout].update(batches[layout])
            torch.cuda.synchronize()
            seconds[layout].append(time.perf_counter() - begun)
            memory[layout] = (torch.cuda.max_memory_allocated() - held) / 2**30
            tell(f"  {layout}: {seconds[layout][-1]:.1f} s")
    walls = {layout: median(taken[1:]) for layout, taken in seconds.items()}  # the first one warms up
    del learners
    gc.collect()
    torch.cuda.empty_cache()
    return [
        {
            "workload": load.name, "P": load.prompt, "a": load.answer, "o": load.observed, "T": load.turns,
            "groups": load.groups, "n": MEMBERS,
            "layout": "unmerged" if layout == "none" else layout,
            "ids": ids[layout],
            "forward ids": int(learned[layout]["tokens/forward"]),
            "seconds": round(walls[layout], 3),
            "ids per second": round(ids[layout] / walls[layout]),
            "GiB beyond weights": round(memory[layout], 2),
            "token ratio": round(ids["none"] / ids[layout], 2),
            "wall ratio": round(walls["none"] / walls[layout], 2),
        }
        for layout in LAYOUTS
    ]  # fmt: skip


def learner(layout: str) -> LocalLearner:
    """Return a learner of the model that lays its rows out in one way."""
    job = Job(
        merging=layout, micro_batch_tokens=BUDGET, learning_rate=1e-6, max_context=16_384, dtype="bfloat16",
        device="cuda", gradient_checkpointing=True, mismatch_limit=1000.0,
    )  # fmt: skip
    return LocalLearner(Policy(model(), "cuda"), job, {})


def generation(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield tokens per second of each engine for each number of requests that come at once."""
    counts = QUICK_COUNTS if quick else COUNTS
    reference = model()
    contestants: dict[str, Any] = {
        "ours": Ours(copy.deepcopy(reference), max(counts), CONTEXT),
        "continuous": Continuous(copy.deepcopy(reference), max(counts), CONTEXT),
        "padded": Padded(copy.deepcopy(reference)),
    }
    for count in counts:
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        off: dict[str, float] = {}
        for repeat in range(REPEATS + 1):
            tell(f"{count} requests: {repeat} of {REPEATS}")
            requests = requests_of(count, repeat)
            for name, contestant in contestants.items():
                timed = contestant.run(requests)
                seconds[name].append(timed.seconds)
                tell(f"  {name}: {timed.seconds:.1f} s")
                off[name] = max(off.get(name, 0.0), deviation(reference, requests[0].prompt, timed.answers[0]))
        tokens = sum(request.answer for request in requests)
        yield {
            "requests": count,
            "tokens": tokens,
            "tokens per second": {name: round(tokens / median(taken[1:])) for name, taken in seconds.items()},
            "off a plain forward": {name: round(value, 4) for name, value in off.items()},
        }
    for contestant in contestants.values():
        contestant.close()
    gc.collect()
    torch.cuda.empty_cache()


def requests_of(count: int, repeat: int) -> list[Request]:
    """Return requests whose lengths are the same in all repeats, and whose ids are not."""
    lengths, ids = Random(count), Random(f"{count} {repeat}")
    sizes = [(lengths.randint(*PROMPT), lengths.randint(*ANSWER)) for _ in range(count)]
    return [Request(tuple(ids.choices(range(SIZES["vocab_size"]), k=prompt)), answer) for prompt, answer in sizes]


def goals_missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the goals of the module's docstring that are missed."""
    missed = []
    for row in figures.get("updates", ()):
        least = AT_20 if row["T"] == 20 else 1.0
        if row["layout"] != "unmerged" and row["wall ratio"] <= least:
            missed.append(f"{row['workload']}, {row['layout']}: {row['wall ratio']} times as fast, not over {least}")
    for row in figures.get("generation", ()):
        speeds = row["tokens per second"]
        missed += [
            f"{row['requests']} requests: {speeds['ours']} tokens per second, {name} has {speeds[name]}"
            for name in ("continuous", "padded")
            if speeds[name] >= speeds["ours"]
        ]
        missed += [
            f"{row['requests']} requests: log-probs of {name} are {off} off a plain forward's"
            for name, off in row["off a plain forward"].items()
            if off > TOLERANCE
        ]
    return missed


def show(figures: Mapping[str, Any]) -> None:
    """Print the tables."""
    columns = ("workload", "layout", "groups", "ids", "forward ids", "seconds", "ids per second", "GiB beyond weights",
               "token ratio", "wall ratio")  # fmt: skip
    updates = [[row.get(name, "-") for name in columns] for row in figures.get("updates", ())]
    rows = ([f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells] for cells in updates)
    show_table(f"one update, {figures['weights']:,} weights in bfloat16, {figures['gpu']}", columns, rows, left=2)
    names = ("ours", "continuous", "padded")
    speeds = (
        [str(row["requests"]), *(f"{row['tokens per second'][name]:,}" for name in names),
         *(str(row["off a plain forward"][name]) for name in names)]
        for row in figures.get("generation", ())
    )  # fmt: skip
    show_table("sampled tokens per second", ("requests", *names, *(f"{name} off" for name in names)), speeds)


PARTS: Mapping[str, Callable[[bool], Iterator[dict[str, Any]]]] = {"updates": updates, "generation": generation}


if __name__ == "__main__":
    sys.exit(main())
