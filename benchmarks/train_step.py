"""How much faster is an update when the calls of conversations are merged: as much as tokens are saved?

    python benchmarks/train_step.py            about seven minutes
    python benchmarks/train_step.py --quick    well under a minute: the short conversations, fewer repeats
    python benchmarks/train_step.py --json     also writes benchmarks/results/train_step.json
    python benchmarks/train_step.py --check    exit code 1 unless the goals below are met

Whole calls of the learner's `update`, gradient and optimiser step included, of groups of 8 conversations whose first
prompt has P tokens; each of T turns samples a and is followed by o observed tokens. Three layouts of the same sampled
tokens: a row for each call (unmerged), a row for each conversation (linear), what a group shares once (tree). In
"thinking dropped" most of each answer is left out of later prompts, so that no call goes on from another and linear
rows are the unmerged ones. The unmerged baseline is no straw man: it makes logits at sampled tokens only, ends rows
with their last sampled token, sorts them by length, and packs them end to end where padding would waste much.

Scale: every length is a sixteenth of those in benchmarks/merge_ratio.py, P : a : o as there. With a model 128 wide a
row's length stands to the width as those lengths do to a model 2,048 wide, so attention has about the share of the
work that it has there; short conversations come in more groups, so that an update is not all overhead. One thread, as
the local backend has for a model of this size.

Goals: (seconds unmerged / seconds merged) is at least 0.85 of (ids unmerged / ids merged) for linear rows and 0.8 for
trees; at T = 20 both are at least 9 times as fast as unmerged. Ids are counted in the rows, without padding.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from rig.frame import circumstances, concluded, parser, show_table, tell
from rig.workloads import MEMBERS, Workload, batch_of, conversations, ids_of

SCALE = 16
SIZES = {
    "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
BUDGET = 8192
REPEATS, QUICK_REPEATS = 5, 3
QUICK_TURNS = 8
LINEAR, TREE, AT_20 = 0.85, 0.8, 9.0


WORKLOADS = (
    Workload(300, 100, 100, 2, groups=32),
    Workload(500, 200, 100, 4, groups=8),
    Workload(500, 200, 300, 8, groups=2),
    Workload(1_000, 200, 400, 10),
    Workload(2_000, 150, 350, 20),
    Workload(4_000, 150, 350, 30),
    Workload(1_000, 900, 200, 10, groups=2, thought=800),
    Workload(2_000, 500, 300, 20, thought=400),
)


def main() -> int:
    """Run the benchmark; return the exit code."""
    arguments = parser(__doc__, quick="the short conversations, fewer repeats").parse_args()
    loads = [load for load in WORKLOADS if not arguments.quick or load.turns <= QUICK_TURNS]
    repeats = QUICK_REPEATS if arguments.quick else REPEATS
    rows = [row for load in loads for row in measured(load, repeats)]
    figures = {
        "scale": SCALE,
        "model": SIZES,
        "micro_batch_tokens": BUDGET,
        "layouts": rows,
        **circumstances(arguments),
    }
    show(figures)
    return concluded("train_step", figures, goals_missed(rows), arguments)


def measured(load: Workload, repeats: int) -> list[dict[str, Any]]:
    """Return a row of figures for each layout of a workload; layouts are updated in turns."""
    played = conversations(load, SCALE, SIZES["vocab_size"])
    batches = {layout: batch_of(played, layout) for layout in load.layouts}
    learners = learners_of(load.layouts)
    seconds: dict[str, list[float]] = {layout: [] for layout in load.layouts}
    learned: dict[str, dict[str, float]] = {}
    for repeat in range(repeats + 1):
        tell(f"{load.name}: update {repeat} of {repeats}")
        for layout, learner in learners.items():
            begun = time.perf_counter()
            learned[layout] = dict(learner.update(batches[layout]))
            seconds[layout].append(time.perf_counter() - begun)
    ids = ids_of(played)
    walls = {layout: median(taken[1:]) for layout, taken in seconds.items()}  # the first one warms up
    return [figures_of(load, layout, ids, walls, learned[layout]) for layout in load.layouts]


def figures_of(
    load: Workload, layout: str, ids: dict[str, int], walls: dict[str, float], learned: dict[str, float]
) -> dict[str, Any]:
    """Return what one layout of a workload cost, beside the unmerged one."""
    token_ratio, wall_ratio = ids["none"] / ids[layout], walls["none"] / walls[layout]
    return {
        "workload": load.name,
        "P": load.prompt, "a": load.answer, "o": load.observed, "T": load.turns,
        "thought": load.thought, "groups": load.groups, "n": MEMBERS,
        "layout": "unmerged" if layout == "none" else layout,
        "ids": ids[layout],
        "forward ids": int(learned["tokens/forward"]),
        "trained": int(learned["tokens/trained"]),
        "ms": round(1e3 * walls[layout], 1),
        "us per id": round(1e6 * walls[layout] / ids[layout], 1),
        "token ratio": round(token_ratio, 2),
        "wall ratio": round(wall_ratio, 2),
        "wall/token": round(wall_ratio / token_ratio, 3),
    }  # fmt: skip


def learners_of(layouts: Sequence[str]) -> dict[str, Any]:
    """Return a learner for each layout, all of equal weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from swarm.backends.local.learner import LocalLearner
    from swarm.backends.local.policy import Policy
    from swarm.job import Job

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    return {
        layout: LocalLearner(
            Policy(copy.deepcopy(model)),
            Job(merging=layout, micro_batch_tokens=BUDGET, learning_rate=1e-5, max_context=4096, mismatch_limit=1000.0),
            {},
        )
        for layout in layouts
    }


def goals_missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the goals of the module's docstring that `rows` miss."""
    missed = []
    for row in rows:
        least = {"linear": LINEAR, "tree": TREE}.get(row["layout"], 0.0)
        if row["wall/token"] < least:
            missed.append(f"{row['workload']}, {row['layout']}: {row['wall/token']} of the token ratio, not {least}")
        if row["T"] == 20 and not row["thought"] and row["layout"] != "unmerged" and row["wall ratio"] < AT_20:
            missed.append(f"{row['workload']}, {row['layout']}: {row['wall ratio']} times as fast, not {AT_20}")
    return missed


def show(figures: dict[str, Any]) -> None:
    """Print the tables."""
    columns = ("workload", "layout", "groups", "ids", "forward ids", "trained", "ms", "us per id", "token ratio",
               "wall ratio", "wall/token")  # fmt: skip
    rows = (
        [f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in columns]
        for row in figures["layouts"]
    )
    show_table(f"one update, one thread, lengths divided by {figures['scale']}", columns, rows, left=2)
    print(f"machine: {figures['machine']}")
    print("full size: python benchmarks/train_step.py --json --check")


if __name__ == "__main__":
    sys.exit(main())
