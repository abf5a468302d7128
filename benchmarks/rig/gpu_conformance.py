"""Does the local backend promise on this device what it does on a CPU, in fp32, in bf16 and with an adapter?

The invariants of `tests/swarm/backends/conformance` as plain functions, on a small random Qwen3: each returns how far
off it found something, which is held to a bound. Forwards without cache, batch or fused kernels, and plain autograd of
the loss's formula are what it is compared with. The suite itself is a part of its own (`rig.gpu_whole`).
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from rig.bare import Bench, missing
from rig.engines import Answer, Ours
from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.policy import add_adapter, trainable_parameters
from swarm.backends.protocols import Batch, Sampling, TrainEpisode
from swarm.job import Job
from swarm.timelines.node import TrainRow

SIZES: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 256,
    "initializer_range": 0.25, "attn_implementation": "sdpa",
}  # fmt: skip
CONTEXT, SLOTS, GROUP = 128, 4, 4
RATE = 0.01
"""A learning rate that moves log-probs far beyond any bound."""
HEARD = 0.01
"""Least that an update moves some log-prob, or a comparison with older weights would tell nothing."""
TEMPERATURES = (1.0, 0.6, 1.3)
_GREEDY = Sampling(max_tokens=6, temperature=0)


class Bounds(NamedTuple):
    """Most that log-probs (absolute), gradients (relative) and what an update teaches (log-probs) may be off."""

    logprobs: float
    gradient: float
    taught: float


BOUNDS: Mapping[tuple[str, bool], Bounds] = {
    ("float32", False): Bounds(5e-5, 1e-4, 5e-3),
    ("float32", True): Bounds(1e-4, 1e-3, 1e-2),
    ("bfloat16", False): Bounds(0.15, 0.1, math.inf),
    ("bfloat16", True): Bounds(0.15, 0.1, math.inf),
}
"""By dtype, and whether it is another device than a CPU: sums are taken in another order there."""


class Subject(Ours):
    """Engine and learner over one small model, the same each time."""

    def __init__(self, device: str, dtype: str, rank: int, **fields: Any) -> None:
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES)).to(getattr(torch, dtype))
        if rank:
            add_adapter(model, rank=rank, alpha=16.0, seed=0)
        super().__init__(model.to(device), SLOTS, CONTEXT)
        job = {
            "device": device, "dtype": dtype, "lora_rank": rank, "learning_rate": RATE, "max_grad_norm": 1e9,
            "max_context": CONTEXT, "mismatch_limit": 1000.0, **fields,
        }  # fmt: skip
        self.job = Job(**job)
        self.learner = LocalLearner(self.policy, self.job, {"sampling": self.batcher.generator})

    @torch.no_grad()
    def plain(self, ids: Sequence[int], temperature: float = 1.0) -> Tensor:
        """Return log-probs (T, V) after each id by a forward of these alone."""
        given = torch.tensor([list(ids)], device=self.policy.device)
        logits: Tensor = self.policy.model(input_ids=given, use_cache=False).logits[0]
        return (logits.cpu().float() / temperature).log_softmax(-1)

    def off(self, prompt: Sequence[int], answer: Answer, temperature: float = 1.0) -> float:
        """Return how far an answer's log-probs are off a plain forward's."""
        every = self.plain([*prompt, *answer.ids], temperature)[len(prompt) - 1 : -1]
        found = every.gather(-1, torch.tensor(answer.ids)[:, None])[:, 0]
        return float((found - torch.tensor(answer.logprobs)).abs().max())

    def played(self, seed: int = 0) -> Batch:
        """Return a batch of two groups that the engine answered, rewarded at random."""
        rng = Random(seed)
        prompts = [prompt for prompt in prompts_of(2, seed) for _ in range(GROUP)]
        answers = self.answers([(prompt, Sampling(max_tokens=rng.randint(3, 8))) for prompt in prompts])
        return Batch(seed, tuple(
            TrainEpisode(f"e{n}", f"g{n // GROUP}", float(rng.randrange(3) + n % 2), (row_of(prompt, answer),))
            for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ))  # fmt: skip


def row_of(prompt: Sequence[int], answer: Answer) -> TrainRow:
    """Return a call as the server sends it to the learner."""
    given = len(prompt)
    flags = (0,) * given + (1,) * len(answer.ids)
    logprobs, versions = (0.0,) * given + tuple(answer.logprobs), (-1,) * given + tuple(answer.versions)
    return TrainRow((*prompt, *answer.ids), flags, logprobs, versions)


def prompts_of(count: int, seed: int = 0, longest: int = 90) -> list[list[int]]:
    """Return random prompts of random lengths."""
    rng = Random(seed)
    return [rng.choices(range(SIZES["vocab_size"]), k=rng.randint(1, longest)) for _ in range(count)]


def crowd(make: Callable[..., Subject]) -> float:
    """Return how far log-probs of nine answers over four slots are off, at three temperatures."""
    with ending(make()) as own:
        asked = [(prompt, TEMPERATURES[n % 3]) for n, prompt in enumerate(prompts_of(9))]
        answers = own.answers([(prompt, Sampling(max_tokens=6, temperature=degree)) for prompt, degree in asked])
        return max(own.off(prompt, answer, degree) for (prompt, degree), answer in zip(asked, answers, strict=True))


def greedy(make: Callable[..., Subject]) -> float:
    """Return how far below the likeliest id of a plain forward any id of greedy answers is."""
    with ending(make()) as own:
        apart = 0.0
        for prompt, answer in zip(prompts := prompts_of(5), own.answers([(p, _GREEDY) for p in prompts]), strict=True):
            every = own.plain([*prompt, *answer.ids])[len(prompt) - 1 : -1]
            chosen = every.gather(-1, torch.tensor(answer.ids)[:, None])[:, 0]
            apart = max(apart, float((every.max(-1).values - chosen).max()))
        return apart


def conversation(make: Callable[..., Subject]) -> float:
    """Return how far log-probs are off where each prompt goes on from all before."""
    with ending(make()) as own:
        ids, found = prompts_of(1)[0][:40], []
        for turn in range(3):
            (answer,) = own.answers([(ids, Sampling(max_tokens=6, seed=turn))])
            found.append(own.off(ids, answer))
            ids = [*ids, *answer.ids, *range(turn, turn + 9)]
        return max(found)


def seeded(make: Callable[..., Subject]) -> float:
    """Return how many ids of an answer by a seed change with its company."""
    with ending(make()) as own:
        asked = ([5, 9, 200], Sampling(max_tokens=8, seed=11))
        (alone,) = own.answers([asked])
        *_, beside = own.answers([*((prompt, Sampling(max_tokens=9)) for prompt in prompts_of(5)), asked])
        return float(sum(left != right for left, right in zip(alone.ids, beside.ids, strict=True)))


def gradient(make: Callable[..., Subject]) -> float:
    """Return how far an update's gradient is off plain autograd's of GRPO's formula, relative to its norm."""
    with ending(make()) as own:
        batch = own.played()
        weights = trainable_parameters(own.policy.model)
        plain = torch.autograd.grad(_loss(own, batch), list(weights.values()))
        expected = dict(zip(weights, plain, strict=True))
        own.learner.update(batch)
        found = {name: master.grad for name, master in own.learner._optimizer.masters.items()}
        pairs = [(found[name], expected[name]) for name in weights]
        apart = sum(float((_grad(mine) - theirs.float()).square().sum()) for mine, theirs in pairs)
        return math.sqrt(apart / sum(float(theirs.float().square().sum()) for _, theirs in pairs))


def _grad(found: Tensor | None) -> Tensor:
    assert found is not None
    return found


def _loss(own: Subject, batch: Batch) -> Tensor:
    """Return minus the mean, over episodes, of the mean over sampled tokens of advantage times probability ratio."""
    total = torch.zeros((), device=own.policy.device)
    for episode in batch.episodes:
        (row,) = episode.rows
        rewards = [each.reward for each in batch.episodes if each.group == episode.group]
        advantage = (episode.reward - fmean(rewards)) / (stdev(rewards) + 1e-6)
        ids = torch.tensor([row.ids], device=own.policy.device)
        first = row.sampled.index(1)
        every = own.policy.model(input_ids=ids, use_cache=False).logits[0, first - 1 : -1].float().log_softmax(-1)
        own_logprobs = every.gather(-1, ids[0, first:, None])[:, 0]
        ratio = (own_logprobs - own_logprobs.detach()).exp()  # of the policy that sampled: 1
        total = total - advantage * ratio.mean() / len(batch.episodes)
    return total


def after_update(make: Callable[..., Subject]) -> float:
    """Return how far log-probs after an update are off the new weights', whatever the engine has in its cache."""
    with ending(make()) as own:
        found = []
        for version in (1, 2):
            batch, prompts = own.played(version), [[*range(70), 1], [*range(70)], *prompts_of(1)]
            older = own.answers([(prompt, Sampling(max_tokens=6)) for prompt in prompts])
            own.learner.update(batch)
            if max(own.off(*each) for each in zip(prompts, older, strict=True)) < HEARD:
                raise AssertionError("expected an update that moves log-probs, found none")
            onward = [[*prompt, *answer.ids, 7] for prompt, answer in zip(prompts, older, strict=True)]
            asked = [*onward, *prompts]
            newer = own.answers([(prompt, Sampling(max_tokens=4)) for prompt in asked])
            found += [own.off(*each) for each in zip(asked, newer, strict=True)]
            if {each for answer in newer for each in answer.versions} != {version}:
                raise AssertionError(f"expected tokens of version {version}")
        return max(found)


def caught(make: Callable[..., Subject]) -> float:
    """Return how far log-probs are off that follow an update within a generation."""
    with ending(make(max_staleness=1)) as own:
        batch, answers = own.played(), []
        begun, over = asyncio.Event(), asyncio.Event()

        async def keep_asking(number: int) -> None:
            while not over.is_set():
                prompt = [number, 9, 9]
                answers.append((prompt, await own.answer(prompt, Sampling(max_tokens=60 + 25 * number))))
                begun.set()

        async def together() -> None:
            asking = [asyncio.ensure_future(keep_asking(number)) for number in range(3)]
            await begun.wait()
            await asyncio.to_thread(own.learner.update, batch)
            over.set()
            await asyncio.gather(*asking)

        own.runner.run(together())
        found = []
        for prompt, answer in answers:
            if 0 < (given := list(answer.versions).count(0)) < len(answer.ids):
                left = Answer(answer.ids[given:], answer.logprobs[given:])
                found.append(own.off([*prompt, *answer.ids[:given]], left))
        if not found:
            raise AssertionError("expected an update that catches a generation, found none")
        return max(found)


def checkpoint(make: Callable[..., Subject]) -> float:
    """Return how many numbers of the weights are not what they were when a checkpoint was written."""
    with tempfile.TemporaryDirectory() as folder, ending(make()) as own:
        own.learner.update(own.played())
        saved = {name: weight.detach().clone() for name, weight in own.policy.model.named_parameters()}
        own.learner.save(Path(folder) / "c")
        own.learner.update(own.played(1))
        own.learner.load(Path(folder) / "c")
        return float(sum(int((weight != saved[name]).sum()) for name, weight in own.policy.model.named_parameters()))


def idle(make: Callable[..., Subject]) -> float:
    """Return how many numbers of the weights an update at a learning rate of 0 changes."""
    with ending(make(learning_rate=0.0, weight_decay=0.1)) as own:
        before = [weight.detach().clone() for weight in own.policy.model.parameters()]
        own.learner.update(own.played())
        pairs = zip(own.policy.model.parameters(), before, strict=True)
        return float(sum(int((weight != older).sum()) for weight, older in pairs))


def layouts(make: Callable[..., Subject], ways: Sequence[str]) -> float:
    """Return how far apart log-probs are after an update whose rows were laid out in another way."""
    minds: list[Tensor] = []
    batch: Batch | None = None
    for way in ways:
        with ending(make(merging=way, micro_batch_tokens=64 if minds else 8192)) as own:
            batch = batch or own.played()
            own.learner.update(batch)
            minds.append(own.plain([1, 2, 3, *range(40)]))
    return max(float((mind - minds[0]).abs().max()) for mind in minds[1:])


@contextmanager
def ending(own: Subject) -> Iterator[Subject]:
    """Close it at the end."""
    try:
        yield own
    finally:
        own.close()


@dataclass(frozen=True, slots=True)
class Check:
    """An invariant: its function, and which bound holds it; None: nothing at all may be off."""

    name: str
    of: Callable[..., float]
    bound: str | None
    float32_only: bool = False


def checks(device: str) -> tuple[Check, ...]:
    """Return what is looked at on a device."""
    ways = ("none", "linear", "tree", "auto") if device == "cpu" else ("none", "linear", "auto")
    return (
        Check("log-probs of a crowd's answers beside a plain forward", crowd, "logprobs"),
        Check("greedy answers beside the likeliest ids", greedy, "logprobs"),
        Check("a conversation that goes on", conversation, "logprobs"),
        Check("a seed's answer alone and in a crowd", seeded, None, float32_only=True),
        Check("an update's gradient beside plain autograd, relative", gradient, "gradient"),
        Check("answers after an update beside the new weights", after_update, "logprobs"),
        Check("generations that an update catches", caught, "logprobs"),
        Check("rows in other layouts teach the same", partial(layouts, ways=ways), "taught", float32_only=True),
        Check("weights that a learning rate of 0 changes", idle, None),
        Check("weights that a checkpoint does not bring back", checkpoint, None),
    )


def conformance(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield each check in fp32, in bf16, and of an adapter in fp32."""
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # read when the device is first used
    for dtype, rank in (("float32", 0), ("bfloat16", 0), ("float32", 4)):
        case = {"dtype": dtype, "adapter": rank}
        if rank and (absent := missing(("peft",))):
            yield {**case, "check": "all", "not run": absent}
            continue
        bounds = BOUNDS[dtype, bench.device != "cpu"]._asdict()
        for check in checks(bench.device):
            if dtype == "float32" or not check.float32_only:
                yield {**case, **outcome(check, partial(Subject, bench.device, dtype, rank), bounds)}
        gc.collect()


def outcome(check: Check, make: Callable[..., Subject], bounds: Mapping[str, float]) -> dict[str, Any]:
    """Return what a check found; one that fails says by what."""
    bound = bounds[check.bound] if check.bound else 0.0
    try:
        off = check.of(make)
    except Exception as error:  # noqa: BLE001 - whatever breaks is what the check found, and the others go on
        traceback.print_exc()
        return {"check": check.name, "holds": False, "failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"check": check.name, "holds": off <= bound, "off": float(f"{off:.3g}"), "bound": bound}
