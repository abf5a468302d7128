"""How long do rollout and update of a real pretrained model take on this machine?

    python benchmarks/real_model.py                               every variant by turns: a quarter of an hour
    python benchmarks/real_model.py MODEL_DIR                     of another model than the one that can be fetched
    python benchmarks/real_model.py --quick                       one round of one step
    python benchmarks/real_model.py --beside CHECKOUT             each variant also by the code of another checkout
    python benchmarks/real_model.py --only bf16-1                 this variant alone (again: --only lora-2 ...)
    python benchmarks/real_model.py --json                        also writes benchmarks/results/real_model.json

Without MODEL_DIR it is the model of `ajet model fetch smollm2-135m`; where that is not here, nothing is measured.

A step is 64 episodes, 8 tasks of 8, at most 8 tokens each, sampled at a temperature of 1: the last of three words after
six examples as turns of the conversation (about 180 ids). Then GRPO's update on them. No server and no client. The
variants: all weights in fp32, all weights in bfloat16, and LoRA of rank 16 in fp32, each on one and on two threads.

Each variant runs in a process of its own and makes one step that is not counted. What is shown are medians over the
steps of all rounds: seconds of wall and, as others may use this machine, seconds of its processors. Variants, and
checkouts, take turns within each round. Figures depend on the model. There are no goals, so that `--check` misses none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve()
WORDS = (
    "river", "lamp", "green", "moon", "paper", "seven", "house", "apple",
    "stone", "cloud", "bread", "chair", "horse", "night", "water", "glass",
)  # fmt: skip
SHOTS, TASKS, GROUP, MOST_TOKENS = 6, 8, 8, 8
SHOWN = {"rollout": "s", "rollout cpu": "s", "update": "s", "update cpu": "s", "fed": "ids"}


@dataclass(frozen=True, slots=True)
class Variant:
    """How a model is trained: fields of its job, and threads."""

    name: str
    fields: Mapping[str, Any]
    threads: int


FIELDS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"learning_rate": 2e-5},
    "bf16": {"learning_rate": 2e-5, "dtype": "bfloat16"},
    "lora": {"learning_rate": 5e-4, "lora_rank": 16},
}
VARIANTS = tuple(Variant(f"{name}-{threads}", fields, threads) for name, fields in FIELDS.items() for threads in (1, 2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and show, or be one variant's process."""
    options = _parser().parse_args(arguments)
    if options.worker is not None:
        variant = next(each for each in VARIANTS if each.name == options.worker)
        print(json.dumps(asyncio.run(steps(options.model.resolve(), variant, 1 + options.steps))[1:]))
        return 0
    from rig.frame import circumstances, concluded  # not in a variant's process, whose code may be another checkout's
    from rig.training import folder, missing

    if options.model is None and (reason := missing()) is not None:
        print(f"expected a model; {reason}, or name its folder", file=sys.stderr)
        return 2
    options.model = options.model or folder()
    if not (options.model / "config.json").is_file():
        print(f"expected a model's folder at {options.model}, found no config.json there", file=sys.stderr)
        return 2
    return concluded("real_model", {**circumstances(options), **measure(options)}, (), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL_DIR")
    parser.add_argument("--quick", action="store_true", help="one round of one step: no figures to keep")
    parser.add_argument("--json", action="store_true", help="write the figures to benchmarks/results/")
    parser.add_argument("--check", action="store_true", help="exit code 1 when a goal is missed: there is none")
    parser.add_argument("--rounds", type=int, default=3, help="turns that each variant gets (default 3)")
    parser.add_argument("--steps", type=int, default=3, help="counted steps in a turn (default 3)")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="compare with the code of another checkout")
    parser.add_argument("--only", action="append", choices=[each.name for each in VARIANTS], help="this variant alone")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run every variant of every checkout by turns; show the medians after each round, and return the last."""
    rounds, counted = (1, 1) if options.quick else (options.rounds, options.steps)
    codes = {"here": HERE.parents[1], **({"beside": options.beside.resolve()} if options.beside else {})}
    found: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for number in range(1, rounds + 1):
        for variant in VARIANTS:
            if options.only and variant.name not in options.only:
                continue
            for name, code in codes.items():
                found.setdefault((variant.name, name), []).extend(_measured(options.model, variant, code, counted))
        print(f"\nafter {number} of {rounds} rounds, medians")
        show(found)
    rows = [{"variant": variant, "code": code, **row} for (variant, code), row in _medians(found).items()]
    return {"model": options.model.resolve().name, "rounds": rounds, "steps": counted, "rows": rows}


def _medians(found: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> dict[tuple[str, str], dict[str, float]]:
    return {key: {name: median(row[name] for row in rows) for name in SHOWN} for key, rows in found.items()}


def _measured(model: Path, variant: Variant, code: Path, counted: int) -> list[Mapping[str, float]]:
    """Return the steps of a variant by the code of a checkout, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": str(variant.threads)}
    command = [sys.executable, str(HERE), str(model), "--worker", variant.name, "--steps", str(counted)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    rows: list[Mapping[str, float]] = json.loads(done.stdout)
    return rows


def show(found: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> None:
    """Print the medians, and how many times as long the other checkout takes."""
    print(f"{'variant':10}{'code':8}" + "".join(f"{f'{name} {unit}':>16}" for name, unit in SHOWN.items()))
    medians = _medians(found)
    for (variant, code), row in medians.items():
        print(f"{variant:10}{code:8}" + "".join(f"{row[name]:16.2f}" for name in SHOWN))
        if code == "beside":
            own = medians[variant, "here"]
            print(f"{'':10}{'ratio':8}" + "".join(f"{row[name] / max(own[name], 1e-9):16.2f}" for name in SHOWN))


async def steps(model: Path, variant: Variant, count: int) -> list[dict[str, float]]:
    """Return what each of `count` steps took."""
    from swarm.backends.local import LocalBackend
    from swarm.job import Job, PathModel

    job = Job(
        model=PathModel(path=str(model)), device="cpu", max_context=320, max_tokens=MOST_TOKENS,
        group_size=GROUP, episodes_per_step=TASKS * GROUP, **variant.fields,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        backend = LocalBackend(job, Path(folder))
        await backend.start()
        rows = [await _step(backend, number) for number in range(count)]
        await backend.stop()
    return rows


async def _step(backend: Any, number: int) -> dict[str, float]:
    from swarm.backends.protocols import Batch

    prompts = [_prompt(backend.renderer, seed) for seed in range(TASKS * number, TASKS * (number + 1))]
    watch = _Watch()
    episodes = await asyncio.gather(*(_episode(backend, p, n) for p in prompts for n in range(GROUP)))
    rollout = watch.lap()
    metrics = await asyncio.to_thread(backend.learner.update, Batch(number, tuple(episodes)))
    update = watch.lap()
    return {
        "rollout": rollout[0],
        "rollout cpu": rollout[1],
        "update": update[0],
        "update cpu": update[1],
        "fed": metrics["tokens/forward"],
    }


class _Watch:
    """Seconds of wall and of this process's processors, lap by lap."""

    def __init__(self) -> None:
        self._last = time.perf_counter(), time.process_time()

    def lap(self) -> tuple[float, float]:
        before, self._last = self._last, (time.perf_counter(), time.process_time())
        return self._last[0] - before[0], self._last[1] - before[1]


async def _episode(backend: Any, task: tuple[str, list[int]], number: int) -> Any:
    from swarm.backends.protocols import GenerationRequest, Sampling, TrainEpisode
    from swarm.timelines.node import TrainRow

    group, prompt = task
    renderer = backend.renderer
    rule = Sampling(max_tokens=MOST_TOKENS, temperature=1.0, stop_ids=renderer.stop_ids)
    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    async for chunk in backend.engine.generate(GenerationRequest(f"{group}-{number}", prompt, rule)):
        ids += chunk.ids
        logprobs += chunk.logprobs
        versions += [chunk.version] * len(chunk.ids)
    length = len(prompt)
    row = TrainRow(
        (*prompt, *ids),
        (0,) * length + (1,) * len(ids),
        (0.0,) * length + tuple(logprobs),
        (-1,) * length + tuple(versions),
    )
    return TrainEpisode(f"{group}-{number}", group, float(number % 2), (row,))


def _prompt(renderer: Any, seed: int) -> tuple[str, list[int]]:
    """Return a task's name and its ids: the last of three words, after examples."""
    messages = []
    for words in _triples(seed):
        messages.append({"role": "user", "content": f"Last word of: {' '.join(words)}"})
        messages.append({"role": "assistant", "content": words[-1]})
    return f"task-{seed}", renderer.encode(renderer.render(messages[:-1], generation_prompt=True))


def _triples(seed: int) -> Iterator[list[str]]:
    """Yield the same examples for every task, then the task's own words."""
    for shot in range(SHOTS):
        yield [WORDS[(shot + 5 * place) % len(WORDS)] for place in range(3)]
    yield [WORDS[(seed + (3 + seed // 7) * place) % len(WORDS)] for place in range(3)]


if __name__ == "__main__":
    sys.exit(main())
