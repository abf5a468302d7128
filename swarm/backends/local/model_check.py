"""A check of a model folder: loaded as a server would, played with, measured.

    python -m swarm.backends.local.model_check --job JSON --folder-hash HEX --out FILE

Runs as a process of its own so that memory is free afterwards; writes a `ModelCheck` as JSON. Exit code 2, with the
server's own words on stderr, where a server would refuse the model. Seconds per token are measured on groups of
episodes over random ids that no cache holds: each prompt alone, then its group with the prompt cached, then an update.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from swarm.backends.local.backend import LocalBackend
from swarm.backends.local.batcher import Generation, SampledToken
from swarm.backends.local.kv_cache import slot_bytes
from swarm.backends.local.loading import ADAPTER, choose_device, device_needs, free_bytes
from swarm.backends.local.micro_batch import find_tree_obstacle
from swarm.backends.local.policy import trainable_parameters
from swarm.backends.local.reference import Gap, logprob_gap
from swarm.backends.protocols import Batch, Chunk, Engine, GenerationRequest, Sampling, TrainEpisode
from swarm.environments.measuring import peak_memory
from swarm.job import Job, PathModel
from swarm.models import ModelCheck, TemplateCheck, conditions
from swarm.rendering.messages import BackendError, Message, Renderer, Tool, assemble_answer
from swarm.rendering.renderer import render_with_timeout
from swarm.timelines.node import TrainRow


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m swarm.backends.local.model_check", description="Check a model.")
    parser.add_argument("--job", required=True, help="JSON of the job that the model is checked as")
    parser.add_argument("--folder-hash", required=True, help="hash of the model's folder")
    parser.add_argument("--out", required=True, type=Path, help="file that the result is written to")
    given = parser.parse_args(arguments)
    try:
        found = asyncio.run(measure(Job.model_validate_json(given.job), given.folder_hash, partial(print, flush=True)))
    except ImportError as error:
        why = f"{error}; install the extra `local`: pip install 'ajet[local]'"
    except (BackendError, MemoryError) as error:
        why = str(error) or "the memory is full: take a smaller model"
    else:
        given.out.write_text(found.model_dump_json())
        return 0
    sys.stderr.write(f"{' '.join(why.split())}\n")
    return 2


_GROUPS, _GROUP = 4, 4
_PROMPT, _ANSWER = 64, 16
_LONG_ENOUGH_S = 1.0
_MOST_ROUNDS = 8
_SLOW_UPDATE_S = 15.0


@dataclass
class Speeds:
    """Seconds and tokens that were counted."""

    prompt_s: float = 0.0
    prompt_tokens: int = 0
    answer_s: float = 0.0
    answer_tokens: int = 0
    update_s: float = 0.0
    update_tokens: float = 0.0
    update_sampled: float = 0.0
    episodes: list[TrainEpisode] = field(default_factory=list)
    """Those of the last round."""


async def answer(engine: Engine, name: str, prompt: Sequence[int], sampling: Sampling) -> list[Chunk]:
    chunks: AsyncIterator[Chunk] = engine.generate(GenerationRequest(name, prompt, sampling))
    return [chunk async for chunk in chunks]


async def measure_generation(backend: LocalBackend, job: Job, ids: Sequence[int]) -> Speeds:
    found, draw = Speeds(), random.Random(0)
    length, tokens = min(_PROMPT, job.max_context // 2), min(_ANSWER, job.max_context // 4)
    for number in range(_MOST_ROUNDS):
        prompts = [draw.choices(ids, k=length) for _ in range(_GROUPS)]
        seconds, _ = await _time_answers(backend.engine, prompts, 1, number)
        found.prompt_s += seconds
        found.prompt_tokens += length * _GROUPS
        groups = [prompt for prompt in prompts for _ in range(_GROUP)]
        seconds, found.episodes = await _time_answers(backend.engine, groups, tokens, number)
        found.answer_s += seconds
        found.answer_tokens += tokens * len(groups)
        if min(found.prompt_s, found.answer_s) > _LONG_ENOUGH_S:
            break
    return found


async def _time_answers(
    engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, round_number: int
) -> tuple[float, list[TrainEpisode]]:
    sampling = Sampling(max_tokens=tokens)  # no stop ids: every answer is as long
    begun = time.perf_counter()
    asked = (answer(engine, f"{round_number}-{n}", prompt, sampling) for n, prompt in enumerate(prompts))
    answers = await asyncio.gather(*asked)
    seconds = time.perf_counter() - begun
    episodes = []
    for number, (prompt, chunks) in enumerate(zip(prompts, answers, strict=True)):
        ids = [token for chunk in chunks for token in chunk.ids]
        given = len(prompt)
        row = TrainRow(
            ids=(*prompt, *ids),
            sampled=(0,) * given + (1,) * len(ids),
            logprobs=(0.0,) * given + tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
            versions=(-1,) * given + tuple(chunk.version for chunk in chunks for _ in chunk.ids),
        )
        episodes.append(TrainEpisode(f"{number:04d}", f"{number // _GROUP}", float(number % 2), (row,)))
    return seconds, episodes


def measure_learning(backend: LocalBackend, found: Speeds) -> None:
    for step in range(_MOST_ROUNDS):
        begun = time.perf_counter()
        metrics = backend.learner.update(Batch(step + 1, tuple(found.episodes)))
        seconds = time.perf_counter() - begun
        if step <= 1:  # the second one, which finds all its room, is counted in place of the first
            found.update_s = found.update_tokens = found.update_sampled = 0.0
        found.update_s += seconds
        found.update_tokens += metrics["tokens/forward"]
        found.update_sampled += metrics["tokens/trained"]
        if found.update_s > (_LONG_ENOUGH_S if step else _SLOW_UPDATE_S):
            return


_USER: Message = {"role": "user", "content": "What is the weather in Oslo?"}
_SYSTEM: Message = {"role": "system", "content": "Answer in one word."}
_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "weather_of_a_city",
        "description": "Say what the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_THOUGHTS = (
    "<think>thought</think>word",
    "[THINK]thought[/THINK]word",
    "<|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>final<|message|>word",
)


def check_template(renderer: Renderer) -> TemplateCheck:
    """Return what the renderer's template does; raise BackendError where it does not render a plain question."""
    plain = renderer.render([_USER], generation_prompt=True)
    refusal: str | None = None
    try:
        with_tools = renderer.render([_USER], tools=[_TOOL], generation_prompt=True)
    except BackendError as error:
        with_tools, refusal = plain, str(error)
    thinking = False
    for text in _THOUGHTS:
        reader = renderer.answers.reader(plain)
        thinking |= "thought" in assemble_answer([*reader.feed(text), *reader.finish()]).reasoning
    try:
        system = str(_SYSTEM["content"]) in renderer.render([_SYSTEM, _USER], generation_prompt=True)
    except BackendError:
        system = False
    return TemplateCheck(
        answers=renderer.answers.name,
        tools="refused" if refusal else "rendered" if (str(_TOOL["function"]["name"]) in with_tools) else "ignored",
        tools_refusal=refusal,
        thinking=thinking,
        system=system,
    )


Note = Callable[[str], None]
_TEXTS = (
    "What is the capital of France?",
    "Say which of these numbers is larger: 417 or 582. Then say why, in one short sentence.",
    "Write the word that comes last in this list: river, stone, window, green, paper.",
)
_COMPARED = 16
"""Tokens of each answer whose log-probs are compared, and likeliest ids at each in fp32."""


async def measure(job: Job, folder_hash: str, note: Note) -> ModelCheck:
    """Return what was found of the model of `job`, which is one of a path; raise BackendError where it is refused."""
    assert isinstance(job.model, PathModel)
    free, begun = free_bytes(choose_device(job)), time.perf_counter()
    backend = LocalBackend(job.model_copy(update={"learning_rate": 0.0}), Path(job.model.path).parent)
    note("loading the model, and checking its forwards")
    await backend.start()
    load_s, loaded = time.perf_counter() - begun, psutil.Process().memory_info().rss
    try:
        policy = backend.policy
        one, needed = slot_bytes(policy.cache_shape, policy.dtype, job.max_context), device_needs(policy.model, job)
        # sequences that fit into what is free beside all else that training takes
        holds = max(0, (free - sum(needed.values()) + needed["key-value cache"]) // one)
        note("comparing log-probs with a plain eager forward")
        gap = await _gap(backend, job)
        fused_lost = None if policy.fused else policy.unfused or "the engine did not say why"
        rows = job.merging in ("linear", "none")
        trees_lost = f"the job's merging is `{job.merging}`" if rows else find_tree_obstacle(policy)
        return ModelCheck(
            folder=job.model.path, folder_hash=folder_hash, conditions=conditions(job),
            template=render_with_timeout(lambda: check_template(backend.renderer)), load_s=load_s, loaded_bytes=loaded,
            logprob_gap=gap.found, logprob_tolerance=gap.allowed, architecture=policy.config.model_type,
            parameters=sum(weight.numel() for name, weight in policy.model.named_parameters() if ADAPTER not in name),
            trained_parameters=sum(weight.numel() for weight in trainable_parameters(policy.model).values()),
            positions=getattr(policy.config, "max_position_embeddings", None), threads=torch.get_num_threads(),
            fused=fused_lost is None, fused_lost=fused_lost, trees=trees_lost is None, trees_lost=trees_lost,
            cache_bytes_per_token=slot_bytes(policy.cache_shape, policy.dtype, 0),
            fits_at_once=min(job.max_concurrency, job.kv_cache_bytes // one, holds), memory_holds=holds,
            **await _speeds(backend, job, note),
            peak_bytes=int(torch.cuda.max_memory_allocated()) if policy.device.type == "cuda" else peak_memory(),
        )  # fmt: skip
    finally:
        await backend.stop()


async def _gap(backend: LocalBackend, job: Job) -> Gap:
    renderer = backend.renderer
    tokens = min(_COMPARED, job.max_context // 4)
    sampling = Sampling(max_tokens=tokens, top_logprobs=_COMPARED if job.dtype == "float32" else 0, seed=0)
    answers = []
    for number, text in enumerate(_TEXTS):
        shown = renderer.render([{"role": "user", "content": text}], generation_prompt=True)
        prompt = renderer.encode(shown)[-(job.max_context - tokens) :]
        chunks = await answer(backend.engine, f"compared-{number}", prompt, sampling)
        generation = Generation([*prompt], sampling)
        for chunk in chunks:
            tops = chunk.top or ((),) * len(chunk.ids)
            drawn = zip(chunk.ids, chunk.logprobs, tops, strict=True)
            generation.fresh += [SampledToken(token, logprob, chunk.version, top) for token, logprob, top in drawn]
            generation.ids += chunk.ids
        answers.append(generation)
    return logprob_gap(backend.policy, answers)


async def _speeds(backend: LocalBackend, job: Job, note: Note) -> dict[str, Any]:
    begun, worked = time.perf_counter(), time.process_time()
    note("measuring generation on a few short episodes")
    found = await measure_generation(backend, job, sorted(set(backend.renderer.encode(" ".join(_TEXTS)))))
    note("measuring updates by those episodes")
    measure_learning(backend, found)
    busy = (time.process_time() - worked) / (time.perf_counter() - begun) / torch.get_num_threads()
    on_cpu = backend.policy.device.type == "cpu"
    return {
        "busy": busy if on_cpu else 1.0,
        "seconds_per_prompt_token": found.prompt_s / found.prompt_tokens,
        "seconds_per_generated_token": found.answer_s / found.answer_tokens,
        "seconds_per_learned_token": found.update_s / found.update_tokens,
        "fed_per_sampled_token": found.update_tokens / found.update_sampled,
        "at_once": _GROUPS * _GROUP,
    }


if __name__ == "__main__":
    sys.exit(main())
