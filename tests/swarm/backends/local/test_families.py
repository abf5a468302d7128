"""Families of models: each is served and trained as its own eager attention computes it, or refused when it is loaded.

The reference is another copy of the model, loaded with eager attention and run whole, sequence by sequence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from swarm.backends.local.generating.batcher import Batcher
from swarm.backends.local.generating.eager_check import check_rows, check_slots
from swarm.backends.local.generating.generation import Generation
from swarm.backends.local.generating.paged import PagedBatcher
from swarm.backends.local.learning.learner import LocalLearner
from swarm.backends.local.model.loading import load_policy
from swarm.backends.local.model.policy import Policy
from swarm.backends.protocols import BackendError, Batch, Sampling, TrainEpisode, TrainRow
from swarm.job import Job
from tests.swarm.backends.local.families import POSITIONS, REFUSED, SERVED, VOCABULARY, WINDOW, save_family

pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out")


_NOT_PAGED = {"deepseek_v2", "deepseek_v3", "falcon", "falcon-grouped", "gemma2", "gpt_oss", "nemotron"}


def _job(**fields: Any) -> Job:
    return Job(**{"max_context": WINDOW, "device": "cpu", **fields})


def _loaded(folder: Path, job: Job) -> Policy:
    """Load and check a model as the backend does."""
    policy = load_policy(folder, job)
    check_rows(policy, job.max_context)
    check_slots(policy)
    return policy


def _run(batcher: Batcher, prompts: list[list[int]], tokens: int) -> list[Generation]:
    generations = [Generation([*prompt], Sampling(max_tokens=tokens)) for prompt in prompts]
    for generation in generations:
        batcher.add(generation)
    while batcher.busy:
        batcher.step()
    return generations


def _prompts(longest: int) -> list[list[int]]:
    return [[(3 + 5 * place + 11 * row) % VOCABULARY for place in range(size)] for row, size in enumerate((2, longest))]


@torch.no_grad()
def _assert_eager(folder: Path, generations: list[Generation]) -> None:
    load: Any = AutoModelForCausalLM.from_pretrained
    eager = load(folder, attn_implementation="eager").eval()
    for generation in generations:
        places = eager(input_ids=torch.tensor([generation.ids]), use_cache=False).logits[0].float().log_softmax(-1)
        for place, drawn in enumerate(generation.fresh, generation.prompt_length - 1):
            assert drawn.logprob == pytest.approx(places[place, drawn.id].item(), abs=1e-4)


@pytest.mark.parametrize("family", SERVED)
def test_every_token_has_the_log_prob_that_eager_attention_gives_it(family: str, tmp_path: Path) -> None:
    """Prompts of unlike length up to the very last position, answers from kept rows, and rows copied from others."""
    folder = save_family(*SERVED[family], tmp_path)
    batcher = Batcher(_loaded(folder, _job()), slots=4, positions=WINDOW, seed=0)
    first = _run(batcher, _prompts(20), tokens=10)
    opening = first[1].ids
    again = _run(batcher, [[*opening, 7], [*opening[:20], 8], [9], _prompts(WINDOW - 2)[1]], tokens=6)
    assert len(again[3].ids) == WINDOW
    _assert_eager(folder, [*first, *again])


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("family", SERVED)
def test_engine_and_learner_agree_on_every_family(family: str, rank: int, tmp_path: Path) -> None:
    recomputed = rank > 0 and family not in ("falcon", "falcon-grouped")
    layout = "auto" if rank else "tree"
    job = _job(lora_rank=rank, gradient_checkpointing=recomputed, kl_coef=0.1, merging=layout)
    folder = save_family(*SERVED[family], tmp_path)
    if rank and family == "deepseek_v3":  # its router reads a weight of the layer that peft puts its own in place of
        with pytest.raises(BackendError, match=r"deepseek_v3 .* fails .*set lora_rank to 0"):
            load_policy(folder, job)
        return
    policy = load_policy(folder, job)
    batcher = Batcher(policy, slots=4, positions=WINDOW, seed=0)
    learner = LocalLearner(policy, job, {"sampling": batcher.generator})
    for update in range(2):
        generations = _run(batcher, [[1, 2, i] for i in range(4)], tokens=6)
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


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_served_is_refused_in_one_line_when_it_is_loaded(family: str, tmp_path: Path) -> None:
    kind, fields, words = REFUSED[family]
    with pytest.raises(BackendError, match=words) as refusal:
        _loaded(save_family(kind, fields, tmp_path), _job())
    assert "\n" not in str(refusal.value)
    assert "choose another model" in str(refusal.value)


@pytest.mark.parametrize(
    "family", ["cohere2", "gemma2", "gemma3", "gpt_oss", "mistral", "olmo3", "phi3-longrope", "qwen2-windows"]
)
def test_a_context_that_a_window_or_its_positions_do_not_cover_is_refused_before_a_weight_is_read(
    family: str, tmp_path: Path
) -> None:
    folder = save_family(*SERVED[family], tmp_path)
    load_policy(folder, _job())
    next(folder.glob("*.safetensors")).write_bytes(b"nobody reads this")
    with pytest.raises(BackendError, match=f"max_context is {WINDOW + 1}; .*set max_context to {WINDOW} at most"):
        load_policy(folder, _job(max_context=WINDOW + 1))


@pytest.mark.parametrize("family", ["gpt2", "llama-dynamic", "opt"])
def test_a_context_of_all_the_model_s_positions_is_served_in_company(family: str, tmp_path: Path) -> None:
    """What pads a batch has no position beyond the last one, which no table holds and by which frequencies move."""
    folder = save_family(*SERVED[family], tmp_path)
    batcher = Batcher(_loaded(folder, _job(max_context=POSITIONS)), slots=4, positions=POSITIONS, seed=0)
    _assert_eager(folder, _run(batcher, _prompts(POSITIONS - 5), tokens=9))


@pytest.mark.parametrize("family", [name for name in SERVED if name != "llama-dynamic"])
def test_the_paged_engine_serves_a_family_as_eager_attention_does_or_refuses_it_in_one_line(
    family: str, tmp_path: Path
) -> None:
    folder = save_family(*SERVED[family], tmp_path)
    policy = load_policy(folder, _job())

    def made() -> Any:
        return PagedBatcher(policy, sequences=4, positions=WINDOW, cache_bytes=1 << 20, seed=0)

    if family in _NOT_PAGED:
        with pytest.raises(BackendError, match=r"engine `slots`$") as refusal:
            made()
        assert "\n" not in str(refusal.value)
    else:
        _assert_eager(folder, _run(made(), _prompts(20), tokens=10))
