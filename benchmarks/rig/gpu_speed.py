"""Generation, whole GRPO steps and updates of a model of about 0.5 billion random weights, each beside something else.

In bfloat16 over fp32 masters, as the local backend learns and serves it; on a CPU a tiny model in fp32, a dry run.
Every row has the memory that was taken at most, beyond what was held before it.
"""

from __future__ import annotations

import copy
import gc
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rig.bare import Bench, missing
from rig.engines import Continuous, Ours, Padded, Request, deviation
from rig.frame import tell
from rig.gpu_conformance import row_of
from rig.workloads import MEMBERS, Workload, batch_of, conversations, ids_of
from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.micro_batch import find_tree_obstacle
from swarm.backends.local.policy import Policy
from swarm.backends.protocols import Batch, TrainEpisode
from swarm.job import Job

SIZES: Mapping[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32_768, "max_position_embeddings": 16_384,
    "tie_word_embeddings": True, "attn_implementation": "sdpa",
}  # fmt: skip
DRY_SIZES: Mapping[str, Any] = {
    **SIZES, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 2048,
}  # fmt: skip
DRY_SCALE = 16
"""What lengths are divided by in a dry run."""
BUDGET = 32_768
COUNTS = (32, 128)
PROMPT, ANSWER = (64, 1024), (64, 512)
WARM = 16
"""Tokens of each answer while something warms up."""
WORKLOADS = (
    Workload(500, 200, 100, 4, groups=2),
    Workload(1_000, 200, 400, 10),
    Workload(1_000, 100, 200, 20),
)
LAYOUTS = ("linear", "none", "tree")
EPISODES, GROUP, STEPS = 64, 8, 3
STEP_PROMPT, STEP_ANSWER = 512, 256


def sizes_of(bench: Bench) -> Mapping[str, Any]:
    """Return the model's configuration."""
    return DRY_SIZES if bench.dry else SIZES


def make_model(bench: Bench, dtype: str | None = None) -> Any:
    """Return the model, the same each time, on the device."""
    torch.manual_seed(0)
    with torch.device(bench.device):
        made = Qwen3ForCausalLM(Qwen3Config(**sizes_of(bench)))
    return made.to(getattr(torch, dtype or bench.dtype)).eval()


@contextmanager
def memory(bench: Bench) -> Iterator[dict[str, float]]:
    """Fill in, at the end, what is taken at most beyond what is held now, in GiB; on a CPU by the whole process."""
    found: dict[str, float] = {}
    if bench.dry:
        yield found
        found["GiB of the process"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
        return
    held = held_gib(bench)
    torch.cuda.reset_peak_memory_stats()
    yield found
    found["GiB beyond weights"] = round(torch.cuda.max_memory_allocated() / 2**30 - held, 2)
    found["GiB allocated"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)


def held_gib(bench: Bench) -> float:
    """Return what is allocated on the device now; 0 on a CPU."""
    return 0.0 if bench.dry else torch.cuda.memory_allocated() / 2**30


def timed(bench: Bench, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that something takes until the device is done with it, and its result."""
    wait: Callable[[], Any] = torch.cuda.synchronize if bench.device == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    found = work()
    wait()
    return time.perf_counter() - begun, found


def failure(error: Exception) -> str:
    """Return an error in a line; all of it goes to whoever watches."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def generation(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield tokens per second for each number of requests that come at once: its row again after each engine."""
    scale = DRY_SCALE if bench.dry else 1
    counts = [4] if bench.dry else COUNTS
    context = (PROMPT[1] + ANSWER[1]) // scale
    reference = make_model(bench)
    contestants: Mapping[str, Callable[[], Any]] = {
        "ours": lambda: Ours(copy.deepcopy(reference), max(counts), context),
        "continuous": lambda: Continuous(copy.deepcopy(reference), max(counts), context),
        "padded": lambda: Padded(copy.deepcopy(reference)),
    }
    made: dict[str, Any] = {}
    base: dict[str, float] = {}
    """GiB of each one's weights and cache."""
    for count in counts:
        row: dict[str, Any] = {"requests": count, "of at most": max(counts), "GiB": {}}
        row |= {"tokens per second": {}, "off a plain forward": {}}
        warm, requests = (requests_of(bench, count, repeat, scale) for repeat in range(2))
        tokens = row["tokens"] = sum(request.answer for request in requests)
        for name, make in contestants.items():
            before = held_gib(bench)
            try:
                contestant = made[name] = made.get(name) or make()
                contestant.run([Request(each.prompt, min(WARM, each.answer)) for each in warm])
                base[name] = base.get(name, 0.0) + held_gib(bench) - before  # some allocate their cache when they run
                with memory(bench) as taken:
                    done = contestant.run(requests)
                row["tokens per second"][name] = round(tokens / done.seconds)
                off = deviation(reference, requests[0].prompt, done.answers[0])
                row["off a plain forward"][name] = round(off, 4)
                row["GiB"][name] = round(next(iter(taken.values())) + base[name], 2)
                tell(f"{count} requests, {name}: {done.seconds:.1f} s")
            except Exception as error:  # noqa: BLE001 - another library's failure is a result, the others go on
                row[f"{name} failed"] = failure(error)
            yield {**row, "fused": "ours" in made and made["ours"].policy.unfused is None}
    for contestant in made.values():
        contestant.close()


def requests_of(bench: Bench, count: int, repeat: int, scale: int) -> list[Request]:
    """Return requests whose lengths are the same in all repeats, and whose ids are not."""
    lengths, ids = Random(count), Random(f"{count} {repeat}")
    sizes = [(lengths.randint(*PROMPT) // scale, lengths.randint(*ANSWER) // scale) for _ in range(count)]
    known = range(sizes_of(bench)["vocab_size"])
    return [Request(tuple(ids.choices(known, k=prompt)), answer) for prompt, answer in sizes]


def job_of(bench: Bench, **fields: Any) -> Job:
    """Return a job of this device."""
    job = {
        "device": bench.device, "dtype": bench.dtype, "learning_rate": 1e-6, "mismatch_limit": 1000.0,
        "micro_batch_tokens": BUDGET, "max_context": 16_384, **fields,
    }  # fmt: skip
    return Job(**job)


def updates(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield what an update of each workload takes in each layout, after one of a part of it that warms up; a
    workload's rows are yielded again after each: with the ratio to the unmerged one, once that is measured."""
    scale = DRY_SCALE if bench.dry else 1
    learners: dict[str, LocalLearner] = {}
    for load in WORKLOADS:
        played = conversations(load, scale, sizes_of(bench)["vocab_size"])
        ids = ids_of(played)
        rows: dict[str, dict[str, Any]] = {}
        for layout in LAYOUTS:
            row = rows[layout] = {
                "workload": load.name, "P": load.prompt, "a": load.answer, "o": load.observed, "T": load.turns,
                "groups": load.groups, "n": MEMBERS, "layout": "unmerged" if layout == "none" else layout,
            }  # fmt: skip
            try:
                learners[layout] = learners.get(layout) or learner_of(bench, layout)
                row |= update_of(bench, learners[layout], layout, played, ids)
            except Exception as error:  # noqa: BLE001 - as in `generation`
                row["failed"] = failure(error)
            if "failed" in row:  # the error is gone, and what its frames held
                learners.pop(layout, None)
                gc.collect()
            tell(f"{load.name}, {layout}: {row.get('seconds')} s")
            for each in rows.values():
                if "seconds" in each and "seconds" in rows.get("none", {}):
                    each["wall ratio"] = round(rows["none"]["seconds"] / each["seconds"], 2)
                yield each


def update_of(
    bench: Bench, learner: LocalLearner, layout: str, played: Sequence[Any], ids: Mapping[str, int]
) -> dict[str, Any]:
    """Return what an update in one layout takes."""
    if layout == "tree" and (obstacle := find_tree_obstacle(learner.policy)) is not None:
        return {"not run": obstacle}
    learner.update(batch_of(played[:2], layout))
    with memory(bench) as taken:
        seconds, learned = timed(bench, partial(learner.update, batch_of(played, layout)))
    return {
        "ids": ids[layout], "forward ids": int(learned["tokens/forward"]), "seconds": round(seconds, 3),
        "ids per second": round(ids[layout] / seconds), **taken, "token ratio": round(ids["none"] / ids[layout], 2),
    }  # fmt: skip


def learner_of(bench: Bench, layout: str) -> LocalLearner:
    """Return a learner of the model that lays its rows out in one way."""
    job = job_of(bench, merging=layout, gradient_checkpointing=True)
    return LocalLearner(Policy(make_model(bench), bench.device), job, {})


def steps(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield what whole GRPO steps take: ours, engine and learner in one process, and TRL's."""
    for name, contestant in (("ours", our_steps), ("trl", trl_steps)):
        row = {"who": name, "episodes": episodes_of(bench), "group": GROUP, "steps": STEPS}
        row |= dict(zip(("prompt", "answer"), lengths_of(bench), strict=True))
        if name == "trl" and (absent := missing(("trl", "datasets", "accelerate"))):
            yield {**row, "not run": absent}
            continue
        try:
            with memory(bench) as taken:
                found = contestant(bench)
            yield {**row, **found, **taken}
        except Exception as error:  # noqa: BLE001 - as in `generation`
            yield {**row, "failed": failure(error)}
        gc.collect()
        if bench.device == "cuda":
            torch.cuda.empty_cache()


def episodes_of(bench: Bench) -> int:
    """Return how many episodes a step has."""
    return 2 * GROUP if bench.dry else EPISODES


def lengths_of(bench: Bench) -> tuple[int, int]:
    """Return the lengths of a prompt and an answer."""
    scale = DRY_SCALE if bench.dry else 1
    return STEP_PROMPT // scale, STEP_ANSWER // scale


def prompts_of(bench: Bench, step: int) -> list[tuple[int, ...]]:
    """Return the prompts of a step's tasks."""
    rng, known = Random(step), range(sizes_of(bench)["vocab_size"] - 1)
    return [tuple(rng.choices(known, k=lengths_of(bench)[0])) for _ in range(episodes_of(bench) // GROUP)]


def reward_of(bench: Bench, ids: Sequence[int]) -> float:
    """Return the share of ids in the lower half of the vocabulary."""
    half = sizes_of(bench)["vocab_size"] // 2
    return sum(1.0 for token in ids if token < half) / max(1, len(ids))


def our_steps(bench: Bench) -> dict[str, Any]:
    """Return what steps of the local backend took, but for the first."""
    prompt, answer = lengths_of(bench)
    own = Ours(make_model(bench), episodes_of(bench), prompt + answer)
    learner = LocalLearner(own.policy, job_of(bench, gradient_checkpointing=not bench.dry), {})
    done: list[tuple[float, float]] = []
    apart = []
    for step in range(STEPS):
        asked = [Request(ids, answer) for ids in prompts_of(bench, step) for _ in range(GROUP)]
        rolled, played = timed(bench, partial(own.run, asked))
        batch = Batch(step, tuple(
            TrainEpisode(f"e{n}", f"g{n // GROUP}", reward_of(bench, each.ids), (row_of(request.prompt, each),))
            for n, (request, each) in enumerate(zip(asked, played.answers, strict=True))
        ))  # fmt: skip
        updated, metrics = timed(bench, partial(learner.update, batch))
        apart.append(metrics["training/rollout_probs_diff_max"])
        done.append((rolled, updated))
        tell(f"step {step + 1} of {STEPS}, ours: {rolled:.1f} s and {updated:.1f} s")
    own.close()
    return {**per_step(bench, done[1:]), "largest difference of a probability": round(max(apart), 6)}


def per_step(bench: Bench, done: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return medians of steps, of which each is the seconds of its generation and its update."""
    rolled, updated = (median(part) for part in zip(*done, strict=True))
    return {
        "steps per minute": round(60 / (rolled + updated), 2),
        "generation, s": round(rolled, 3),
        "update, s": round(updated, 3),
        "tokens per second": round(episodes_of(bench) * lengths_of(bench)[1] / rolled),
    }


def trl_steps(bench: Bench) -> dict[str, Any]:
    """Return what steps of TRL's GRPOTrainer took, but for the first, on the same tasks with the same reward.

    Its weights are in fp32, under autocast to bfloat16 on a GPU; generation is its own, of the whole batch.
    """
    from rig.trl_training import steps_of_ids

    job = job_of(
        bench, steps=STEPS, episodes_per_step=episodes_of(bench), group_size=GROUP, max_tokens=lengths_of(bench)[1]
    )
    settings = {
        "use_cpu": bench.dry, "bf16": not bench.dry, "gradient_checkpointing": not bench.dry,
        "per_device_train_batch_size": GROUP if bench.dry else 2 * GROUP,
    }  # fmt: skip
    prompts = [prompt for step in range(STEPS) for prompt in prompts_of(bench, step)]
    done = steps_of_ids(make_model(bench, "float32"), job, prompts, partial(reward_of, bench), settings)
    seconds = [(now.generate_s, now.at - before.at - now.generate_s) for before, now in pairwise(done)]
    return {**per_step(bench, seconds), "settings": settings}
