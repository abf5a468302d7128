"""Families of models apart from those the other tests use: loaded, heard and trained, whole and by an adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)
from transformers.models.gemma3 import Gemma3TextConfig

from swarm.backends.local.batcher import Batcher
from swarm.backends.local.generation import Generation
from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.loading import load_policy
from swarm.backends.protocols import BackendError, Batch, Sampling, TrainEpisode, TrainRow
from swarm.job import Job

_SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_WIDER: dict[str, Any] = {**_SIZES, "intermediate_size": 48, "num_key_value_heads": 2}
_MAKERS: dict[str, Callable[[], Any]] = {
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**_WIDER, head_dim=8)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**_SIZES)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZES, intermediate_size=48)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**_WIDER, logits_scaling=4.0)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**_WIDER)),
}


def _saved(make: Callable[[], Any], folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make().save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("family", _MAKERS)
def test_engine_and_learner_agree_on_every_family(family: str, rank: int, tmp_path: Path) -> None:
    job = Job(max_context=32, device="cpu", lora_rank=rank, gradient_checkpointing=rank > 0, kl_coef=0.1)
    policy = load_policy(_saved(_MAKERS[family], tmp_path), job)
    batcher = Batcher(policy, slots=4, positions=32, seed=0)
    learner = LocalLearner(policy, job, {"sampling": batcher.generator})
    for update in range(2):
        generations = [Generation([1, 2, i], Sampling(max_tokens=6)) for i in range(4)]
        for generation in generations:
            batcher.add(generation)
        while batcher.busy:
            batcher.step()
        episodes = tuple(TrainEpisode(str(i), "g", float(i % 2), (_row(g),)) for i, g in enumerate(generations))
        metrics = learner.update(Batch(update, episodes))
        assert metrics["training/rollout_probs_diff_max"] < 1e-5
        assert metrics["actor/grad_norm"] > 0
        assert (metrics["actor/kl_loss"] > 0) == (update > 0)


def _row(generation: Generation) -> TrainRow:
    given, fresh = generation.prompt_length, generation.fresh
    return TrainRow(
        tuple(generation.ids),
        (0,) * given + (1,) * len(fresh),
        (0.0,) * given + tuple(token.logprob for token in fresh),
        (-1,) * given + tuple(token.version for token in fresh),
    )


def test_a_family_with_sliding_attention_is_refused_by_its_name_before_its_weights_are_read(tmp_path: Path) -> None:
    config = Gemma3TextConfig(**_WIDER, head_dim=8)
    folder = _saved(lambda: Gemma3ForCausalLM(config), tmp_path)
    next(folder.glob("*.safetensors")).write_bytes(b"nobody reads this")
    with pytest.raises(BackendError, match=r"gemma3_text has .*sliding_attention"):
        load_policy(folder, Job(max_context=32, device="cpu"))


def test_a_window_is_refused_where_the_context_outgrows_it_and_is_nothing_where_it_does_not(tmp_path: Path) -> None:
    config = MistralConfig(**_WIDER, head_dim=8, sliding_window=32)
    folder = _saved(lambda: MistralForCausalLM(config), tmp_path)
    load_policy(folder, Job(max_context=32, device="cpu"))
    with pytest.raises(BackendError, match=r"max_context is 33; .* sees the last 32 only"):
        load_policy(folder, Job(max_context=33, device="cpu"))
