"""The sections on the local engine and learner: generation, the update, overlap, and whole steps beside TRL's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from performance.headlines import row_with
from performance.results import Figures
from performance.writing import percent, signed, table

SHOWN = (("tiny", "ragged 8"), ("tiny", "ragged 128"), ("1M", "ragged 128"), ("5M", "ragged 8"), ("5M", "ragged 128"),
         ("5M", "8 turns"))  # fmt: skip
LOADS = {
    "ragged 8": "8 at once, uneven lengths",
    "ragged 128": "128 at once, uneven lengths",
    "8 turns": "conversations of 8 turns",
}
SIZES = {"tiny": "0.1M parameters", "1M": "1M", "5M": "5M"}
OTHERS = {
    "static": "a static batch by hand",
    "padded": "padded `generate`",
    "continuous": "transformers' continuous batching",
    "vllm": "vLLM on a CPU",
}


def generate(figures: Figures) -> Iterator[str]:
    """Yield how fast the local engine generates, beside others."""
    yield (
        "The local engine beside others on one core, same model, same tokens, in turns: sampled tokens per second, and "
        "how many times each other one's (medians of both, the second turn by turn). `--vllm-python PATH` measures "
        "vLLM, too."
    )
    rows = []
    for model, load in SHOWN:
        row = row_with(figures["rows"], model=model, load=load, threads=1)
        times = [f"{row['ours over'][other]:.2f}" if other in row["ours over"] else "" for other in OTHERS]
        rows.append((SIZES[model], LOADS[load], f"{row['tokens per second']['ours']:,}", *times))
    yield from table(("model", "requests", "tokens/s", *OTHERS.values()), rows)


def train_step(figures: Figures) -> Iterator[str]:
    """Yield how much faster an update is on merged calls."""
    layouts = figures["layouts"]
    yield (
        f"An update on merged calls beside one row per call. Lengths are a {figures['scale']}th of real "
        "conversations', the whole update is timed, and both compute logits only where they are trained. The tree is "
        "of 8 episodes."
    )
    rows = []
    for workload in dict.fromkeys(row["workload"] for row in layouts):
        found = {row["layout"]: row for row in layouts if row["workload"] == workload}
        cells = [
            f"{found[layout][ratio]:.1f}" if layout in found else ""
            for layout in ("linear", "tree")
            for ratio in ("token ratio", "wall ratio")
        ]
        rows.append((workload.replace("T = ", "turns: "), *cells))
    yield from table(("conversation", "fewer ids, linear", "times as fast", "fewer ids, tree", "times as fast"), rows)
    kept = [row["wall/token"] for row in layouts if row["layout"] == "tree" and row["thought"]]
    yield (
        "A tree saves less time than ids where its ids are deep, for their attention is long: "
        f"{min(kept):.2f} to {max(kept):.2f} of the ratio where thinking is dropped; the goal is 0.8."
    )


def gpu(figures: Figures) -> Iterator[str]:
    """Yield how much faster an update on merged calls is on a GPU."""
    yield (
        f"The same on a GPU ({figures['gpu']}, torch {figures['torch']}): half a billion random weights in "
        f"{figures['dtype']}, conversations in full length, whole updates."
    )
    rows = []
    for workload in dict.fromkeys(row["workload"] for row in figures["updates"]):
        found = {row["layout"]: row for row in figures["updates"] if row["workload"] == workload}
        cells = [f"{found[layout]['seconds']:g}" for layout in ("unmerged", "linear")]
        times = [f"{found['linear'][ratio]:.1f}" for ratio in ("token ratio", "wall ratio")]
        rows.append((workload.replace("T = ", "turns: "), *cells, *times))
    yield from table(("conversation", "unmerged, s", "linear, s", "fewer ids, linear", "times as fast"), rows)
    yield "An id of a tree took about twice as long there as one of a row: trees are for a CPU, a GPU trains rows."
    for row in figures.get("generation", ()):
        ours, others = row["tokens per second"]["ours"], ("continuous", "padded")
        continuous, padded = (ours / row["tokens per second"][name] for name in others)
        yield (
            f"Generation, {row['requests']} requests at once: {ours:,} tokens per second, {continuous:.1f} times "
            f"transformers' continuous batching and {padded:.1f} times its padded `generate`; log-probs are at most "
            f"{row['off a plain forward']['ours']:g} off a plain forward's."
        )
    if note := figures.get("note"):
        yield f"Of these figures: {note}."


def merge_ratio(figures: Figures) -> Iterator[str]:
    """Yield how many ids merging saves."""
    row = row_with(figures["workloads"], kind="group", T=20, n=8)
    yield (
        "How many ids merging saves depends on the workload alone; the benchmark plays it and finds the closed form of "
        f"[timelines.md](timelines.md#how-much-merging-saves) exactly: {row['T']} turns of {row['a']} sampled and "
        f"{row['o']} observed tokens behind a prompt of {row['P']:,} are {row['unmerged/linear']:.1f} times fewer ids "
        f"in one row than in one row per call, and {row['unmerged/tree']:.1f} times fewer as a packed tree of "
        f"{row['n']} episodes."
    )


def overlap(figures: Figures) -> Iterator[str]:
    """Yield what rollout beside learning brings."""
    apart, beside = (figures["arms"][f"max_staleness {bound}"] for bound in (0, 1))
    steps = [arm["steps_per_hour"]["mean"] for arm in (apart, beside)]
    idle = [arm["learner_idle"]["mean"] for arm in (apart, beside)]
    yield (
        f"Rollout beside learning, with agents that wait for a (simulated) tool, {figures['seeds']} seeds: "
        f"`max_staleness` 1 makes {median(figures['ratio of steps an hour']):.1f} times the steps of 0 in an hour "
        f"({steps[1]:,.0f} against {steps[0]:,.0f}), with the learner idle for {percent(idle[1])} instead of "
        f"{percent(idle[0])} of the time; reward over all steps {signed(figures['difference within seeds']['reward'])}."
    )


def against_trl(figures: Figures) -> Iterator[str]:
    """Yield how fast whole GRPO steps are beside TRL's."""
    yield (
        "Whole GRPO steps beside TRL's GRPOTrainer with the same tiny model, batch and sampling, one thread. Steps per "
        "minute, as a share of TRL's (goal: 2), and the difference in reward per step:"
    )
    rows = [
        (f"`{environment}`, {name}", f"{found[arm][TIMES]:.2f}", signed(found[arm]["reward per step less TRL's"]))
        for environment, found in figures["environments"].items()
        for arm, name in (
            ("ajet, no server", "engine, call trees and learner in one process"),
            ("ajet", "the same behind a swarm server, durable store and HTTP"),
        )
    ]
    yield from table(("", "steps/min over TRL's", "reward per step less TRL's"), rows)
    missed = [name for name, found in figures["environments"].items() if _best(found) < 2]
    if missed:
        yield (
            "With a model this small the server costs more than the model: about half a millisecond a request, three "
            f"requests and more an episode. The goal of twice TRL's steps is **missed** in {' and '.join(missed)}."
        )


TIMES = "times TRL's steps per minute"


def _best(found: Mapping[str, Mapping[str, float]]) -> float:
    return max(arm[TIMES] for arm in found.values() if TIMES in arm)


def real_model(figures: Figures) -> Iterator[str]:
    """Yield what a step of a pretrained model takes."""
    yield (
        f"A step of {figures['model']}, without a server: 64 episodes, 8 tasks of 8 and at most 8 tokens each behind "
        "six examples as turns, then GRPO's update on them. Medians in seconds, variants in turns."
    )
    rows = [
        (PRETRAINED[name], threads, *(f"{row[part]:.1f}" for part in ("rollout", "update")), f"{row['fed']:,.0f}")
        for row in figures["rows"]
        if row["code"] == "here"
        for name, _, threads in [row["variant"].partition("-")]
    ]
    yield from table(("trained", "threads", "rollout, s", "update, s", "ids fed in the update"), rows)


PRETRAINED = {"fp32": "all weights, fp32", "bf16": "all weights, bfloat16", "lora": "LoRA of rank 16, fp32"}
