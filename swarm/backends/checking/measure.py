"""One check: a model folder is loaded as a server would load it for a job, played with, and measured.

Promises: what a server would refuse is a BackendError with the server's own words; the weights on disk are not touched.
Updates are made at a learning rate of 0: they take as long, and the policy stays the one whose tokens they learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from swarm.backends.checking.forward import answers_gap, fused_lost, trees_lost
from swarm.backends.checking.speed import answer, measure_generation, measure_learning
from swarm.backends.checking.template import check_template
from swarm.backends.local.backend import LocalBackend
from swarm.backends.local.generating.eager_check import Gap
from swarm.backends.local.model.adapters import trained
from swarm.backends.local.model.cache_shape import slot_bytes
from swarm.backends.local.model.fit import free_bytes, needs
from swarm.backends.local.model.loading import chosen_device
from swarm.backends.local.model.policy import Policy
from swarm.backends.local.provenance import ADAPTER
from swarm.backends.protocols import Sampling
from swarm.backends.rendering.renderer import in_time
from swarm.environments.bringing.memory import peak_memory
from swarm.job import Job, PathModel
from swarm.models import ModelCheck, conditions

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
    free, begun = free_bytes(chosen_device(job)), time.perf_counter()
    backend = LocalBackend(job.model_copy(update={"learning_rate": 0.0}), Path(job.model.path).parent)
    note("loading the model, and checking its forwards")
    await backend.start()
    load_s, loaded = time.perf_counter() - begun, psutil.Process().memory_info().rss
    try:
        policy, room = backend.policy, _room(backend.policy, job, free)
        note("comparing log-probs with a plain eager forward")
        gap = await _gap(backend, job)
        return ModelCheck(
            folder=job.model.path,
            folder_hash=folder_hash,
            conditions=conditions(job),
            template=in_time(lambda: check_template(backend.renderer)),
            load_s=load_s,
            loaded_bytes=loaded,
            logprob_gap=gap.found,
            logprob_tolerance=gap.allowed,
            **_model(policy),
            **_forward(policy, job),
            **room,
            **await _speeds(backend, job, note),
            peak_bytes=_peak_bytes(policy.device),
        )
    finally:
        await backend.stop()


def _model(policy: Policy) -> dict[str, Any]:
    weights = policy.model.named_parameters()
    return {
        "architecture": policy.config.model_type,
        "parameters": sum(weight.numel() for name, weight in weights if ADAPTER not in name),
        "trained_parameters": sum(weight.numel() for weight in trained(policy.model).values()),
        "positions": getattr(policy.config, "max_position_embeddings", None),
        "threads": torch.get_num_threads(),
    }


def _forward(policy: Policy, job: Job) -> dict[str, Any]:
    fused, trees = fused_lost(policy), trees_lost(policy, job)
    return {"fused": fused is None, "fused_lost": fused, "trees": trees is None, "trees_lost": trees}


async def _gap(backend: LocalBackend, job: Job) -> Gap:
    renderer = backend.renderer
    tokens = min(_COMPARED, job.max_context // 4)
    sampling = Sampling(max_tokens=tokens, top_logprobs=_COMPARED if job.dtype == "float32" else 0, seed=0)
    answers = []
    for number, text in enumerate(_TEXTS):
        shown = renderer.render([{"role": "user", "content": text}], generation_prompt=True)
        prompt = renderer.encode(shown)[-(job.max_context - tokens) :]
        answers.append((prompt, await answer(backend.engine, f"compared-{number}", prompt, sampling)))
    return answers_gap(backend.policy, sampling, answers)


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
        "at_once": found.at_once,
    }


def _room(policy: Policy, job: Job, free: int) -> dict[str, Any]:
    """Return how many sequences fit into `free` bytes beside all else that training takes."""
    one = slot_bytes(policy.cache_shape, policy.dtype, job.max_context)
    needed = needs(policy.model, job)
    holds = max(0, (free - sum(needed.values()) + needed["key-value cache"]) // one)
    return {
        "cache_bytes_per_token": slot_bytes(policy.cache_shape, policy.dtype, 0),
        "fits_at_once": min(job.max_concurrency, job.kv_cache_bytes // one, holds),
        "memory_holds": holds,
    }


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return peak_memory()
