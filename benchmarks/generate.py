"""How fast does the local engine generate, beside what else there is on a processor?

    python benchmarks/generate.py            about eight minutes
    python benchmarks/generate.py --quick    about one minute: the tiny model, fewer requests and repeats
    python benchmarks/generate.py --json     also writes benchmarks/results/generate.json
    python benchmarks/generate.py --check    exit code 1 unless the goals below are met
    python benchmarks/generate.py --vllm-python PATH    also vLLM, of the environment whose Python that is

Llama models of about 0.15, 1 and 5 million random weights (fp32, from a seed) answer requests that all come at once,
with sampling at temperature 1 and the log-prob of every token; nobody stops early. Contestants hold the same weights,
run on the same core with one torch thread, and take turns; each repeat has prompts of its own. Ratios are medians over
the repeats of our tokens per second over theirs:

- static: a batch by hand over transformers' forward; at equal lengths at least 0.9 (it is not judged on ragged ones);
- continuous: continuous batching of transformers; ahead of it at every N of ragged requests;
- padded: `generate` of transformers; ahead of it at every N;
- vllm: ahead of it with up to a million weights, at least 0.85 of it with 5 million, at every N;
- conversations of 8 turns, each going on from all before: at least 2 times continuous batching, which shares prefixes.

Log-probs of all are compared with a plain forward first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from rig.frame import circumstances, concluded, parser, show_table, tell

CONTEXT = 1024
SLOTS = 128
OBSERVED = 40
"""Tokens that come between two turns of a conversation."""
CHECKED = 2
"""Answers of each warm-up that are compared with a plain forward."""
TOLERANCE = 1e-4
MILLION = 1_500_000
WARM_UP = -1
"""Number of the repeat that is not compared."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's sizes, heads 32 wide as every contestant takes them; and how often its loads are repeated."""

    name: str
    repeats: int
    sizes: Mapping[str, int]


def _sizes(hidden: int, layers: int, heads: int, shared: int, inner: int, vocabulary: int) -> dict[str, int]:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": shared, "intermediate_size": inner, "vocab_size": vocabulary, "head_dim": 32,
    }  # fmt: skip


SHAPES = (
    Shape("tiny", 5, _sizes(hidden=64, layers=2, heads=2, shared=1, inner=128, vocabulary=512)),
    Shape("1M", 5, _sizes(hidden=128, layers=4, heads=4, shared=2, inner=384, vocabulary=1024)),
    Shape("5M", 3, _sizes(hidden=256, layers=6, heads=8, shared=4, inner=688, vocabulary=1024)),
)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that come together: how many, how long prompts and answers are (from, to), and how many turns follow."""

    name: str
    count: int
    prompt: tuple[int, int]
    answer: tuple[int, int]
    turns: int = 1

    def lengths(self) -> list[tuple[int, int]]:
        """Return every request's prompt and answer length: the same in all repeats."""
        rng = Random(self.count)
        return [(rng.randint(*self.prompt), rng.randint(*self.answer)) for _ in range(self.count)]


EQUALS = tuple(Load(f"equal {count}", count, (32, 32), (64, 64)) for count in (8, 32))
RAGGED = tuple(Load(f"ragged {count}", count, (8, 64), (8, 128)) for count in (8, 32, 128))
CONVERSATIONS = Load("8 turns", 8, (256, 256), (24, 24), turns=8)


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = parser(__doc__, quick="the tiny model, fewer requests and repeats")
    options.add_argument("--vllm-python", help="Python of an environment with vLLM")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-generate-") as folder:
        rows = measure(Path(folder), arguments)
    figures = {"threads": 1, "rows": rows, **circumstances(arguments)}
    print_figures(figures)
    return concluded("generate", figures, goals_missed(rows), arguments)


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for every model and load."""
    rows = []
    loads: Sequence[Load] = (*EQUALS, *RAGGED)
    for shape in SHAPES[:1] if options.quick else SHAPES:
        repeats = 2 if options.quick else shape.repeats
        with match(folder / shape.name, shape, options.vllm_python) as fields:
            rows += [compared(fields, load, repeats) for load in (loads[1:4] if options.quick else loads)]
            rows.append(compared(fields.without("static", "padded"), CONVERSATIONS, repeats))
    return rows


@dataclass(frozen=True, slots=True)
class Match:
    """Contestants over one model, by name, and one more copy of it to check their log-probs with."""

    shape: Shape
    contestants: Mapping[str, Any]
    reference: Any

    def without(self, *names: str) -> Match:
        """Return the match without some contestants."""
        left = {name: one for name, one in self.contestants.items() if name not in names}
        return replace(self, contestants=left)


@contextmanager
def match(folder: Path, shape: Shape, vllm_python: str | None) -> Iterator[Match]:
    """Make the model, and everybody over a copy of it; threads started from here on stay on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:1])
    import torch
    from rig.engines import VLLM, Continuous, Ours, Padded, Static, saved_model

    torch.set_num_threads(1)
    tell(f"{shape.name}: making the model and the contestants")
    load = saved_model(folder, CONTEXT, **shape.sizes)
    with ExitStack() as stack:
        contestants: dict[str, Any] = {
            "ours": Ours(load(), SLOTS, CONTEXT),
            "static": Static(load()),
            "continuous": Continuous(load(), SLOTS, CONTEXT),
            "padded": Padded(load()),
        }
        if vllm_python:
            contestants["vllm"] = VLLM(vllm_python, folder, SLOTS, CONTEXT)
        for contestant in contestants.values():
            stack.callback(contestant.close)
        yield Match(shape, contestants, load())
    os.sched_setaffinity(0, cores)


def compared(fields: Match, load: Load, repeats: int) -> dict[str, Any]:
    """Let all answer `load` in turns; return tokens per second and our ratios."""
    seconds: dict[str, list[float]] = {name: [] for name in fields.contestants}
    for repeat in range(WARM_UP, repeats):
        for name, contestant in fields.contestants.items():
            seconds[name].append(sum(played(fields, load, contestant, repeat)))
        tell(f"{fields.shape.name}, {load.name}: {repeat + 1} of {repeats} repeats")
    tokens = sum(answer for _, answer in load.lengths()) * load.turns
    warm = {name: values[1:] for name, values in seconds.items()}
    return {
        "model": fields.shape.name,
        "weights": sum(parameter.numel() for parameter in fields.reference.parameters()),
        "load": load.name,
        "threads": 1,
        "tokens": tokens,
        "tokens per second": {name: round(tokens / median(values)) for name, values in warm.items()},
        "ours over": {
            name: round(median(theirs / ours for ours, theirs in zip(warm["ours"], values, strict=True)), 3)
            for name, values in warm.items()
            if name != "ours"
        },
    }


def played(fields: Match, load: Load, contestant: Any, repeat: int) -> Iterator[float]:
    """Play a load with prompts that only this repeat has, turn by turn; yield the seconds of each turn."""
    from rig.engines import Request

    prompts = ids_of(fields, f"{load.name} {repeat}", [prompt for prompt, _ in load.lengths()])
    requests = [Request(ids, answer) for ids, (_, answer) in zip(prompts, load.lengths(), strict=True)]
    for turn in range(load.turns):
        timed = contestant.run(requests)
        if repeat == WARM_UP:
            check(fields, contestant, requests, timed.answers)
        yield timed.seconds
        observed = ids_of(fields, f"{load.name} {repeat} {turn}", [OBSERVED] * load.count)
        requests = [
            replace(request, prompt=(*request.prompt, *answer.ids, *new))
            for request, answer, new in zip(requests, timed.answers, observed, strict=True)
        ]


def ids_of(fields: Match, seed: str, lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """Return random ids in these lengths."""
    rng, vocabulary = Random(seed), range(fields.shape.sizes["vocab_size"])
    return [tuple(rng.choices(vocabulary, k=length)) for length in lengths]


def check(fields: Match, contestant: Any, requests: Sequence[Any], answers: Sequence[Any]) -> None:
    """Stop the benchmark unless answers are whole and their log-probs those of a plain forward."""
    from rig.engines import deviation

    name = type(contestant).__name__
    for request, answer in zip(requests, answers, strict=True):
        if not len(answer.ids) == len(answer.logprobs) == request.answer:
            raise RuntimeError(f"{name}: expected {request.answer} tokens, found {len(answer.ids)}")
    for request, answer in list(zip(requests, answers, strict=True))[:CHECKED]:
        off = deviation(fields.reference, request.prompt, answer)
        if off > TOLERANCE:
            raise RuntimeError(f"{name}: log-probs differ by {off:.1e} from a plain forward's")


def goals_missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the goals of the module's docstring that `rows` miss."""
    missed = []
    for row in rows:
        for name, least, strictly in goals(row):
            ratio = row["ours over"].get(name)
            if ratio is not None and (ratio <= least if strictly else ratio < least):
                bound = f"more than {least}" if strictly else f"at least {least}"
                missed.append(f"{row['model']}, {row['load']}: {ratio} times {name}, expected {bound}")
    return missed


def goals(row: Mapping[str, Any]) -> list[tuple[str, float, bool]]:
    """Return what a row is judged by: against whom, which ratio at least, and whether it must be exceeded."""
    if row["load"] == CONVERSATIONS.name:
        return [("continuous", 2.0, False)]
    if row["load"].startswith("equal"):
        return [("static", 0.9, False)]
    small = row["weights"] <= MILLION
    return [("continuous", 1.0, True), ("padded", 1.0, True), ("vllm", 1.0 if small else 0.85, small)]


def print_figures(figures: dict[str, Any]) -> None:
    """Print the tables."""
    rows, shown = figures["rows"], []
    names = list(dict.fromkeys(name for row in rows for name in row["tokens per second"]))
    for row in rows:
        speeds = [f"{row['tokens per second'][name]:,}" if name in row["tokens per second"] else "" for name in names]
        ratios = [f"{row['ours over'][name]:.2f}" if name in row["ours over"] else "" for name in names[1:]]
        shown.append([row["model"], row["load"], *speeds, *ratios])
    show_table(
        f"sampled tokens per second, one thread ({figures['machine']['platform']})",
        ("model", "load", *names, *(f"ours/{name}" for name in names if name != "ours")), shown, left=2,
    )  # fmt: skip
    print("full size: python benchmarks/generate.py --json --check --vllm-python PATH")


if __name__ == "__main__":
    sys.exit(main())
