"""Families of models: each is served and trained as its own eager attention computes it, or refused at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from swarm.backends.local import backend, loading, tree_attention
from swarm.backends.local.backend import LocalBackend
from swarm.backends.local.batcher import Batcher, Generation
from swarm.backends.local.kv_cache import SlotCache, SlotTable
from swarm.backends.local.learner import LocalLearner
from swarm.backends.local.loading import load_policy
from swarm.backends.local.policy import Policy
from swarm.backends.local.reference import check_rows, check_slots
from swarm.backends.protocols import Batch, TrainEpisode
from swarm.job import Job, PathModel
from swarm.rendering.messages import BackendError
from tests.swarm.backends.local import models

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:fan_in_fan_out")]


def _job(**fields: Any) -> Job:
    return Job(**{"max_context": models.WINDOW, "device": "cpu", **fields})


def _loaded(folder: Path, job: Job) -> Policy:
    policy = load_policy(folder, job)
    check_rows(policy, job.max_context)
    check_slots(policy)
    return policy


def _prompts(longest: int) -> list[list[int]]:
    return [
        [(3 + 5 * place + 11 * row) % models.VOCABULARY for place in range(size)]
        for row, size in enumerate((2, longest))
    ]


@torch.no_grad()
def _assert_eager(folder: Path, generations: list[Generation]) -> None:
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    eager = load(folder, attn_implementation="eager").eval()
    for generation in generations:
        places = eager(input_ids=torch.tensor([generation.ids]), use_cache=False).logits[0].float().log_softmax(-1)
        for place, drawn in enumerate(generation.fresh, generation.prompt_length - 1):
            assert drawn.logprob == pytest.approx(places[place, drawn.id].item(), abs=1e-4)


@pytest.mark.parametrize("family", models.SERVED)
def test_every_token_has_the_log_prob_that_eager_attention_gives_it(family: str, tmp_path: Path) -> None:
    """Prompts of unlike length up to the very last position, answers from kept rows, and rows copied from others."""
    folder = models.save_family(*models.SERVED[family], tmp_path)
    batcher = Batcher(_loaded(folder, _job()), slots=4, positions=models.WINDOW, seed=0)
    first = models.generate(batcher, _prompts(20), 10)
    opening = first[1].ids
    again = models.generate(batcher, [[*opening, 7], [*opening[:20], 8], [9], _prompts(models.WINDOW - 2)[1]], 6)
    assert len(again[3].ids) == models.WINDOW
    _assert_eager(folder, [*first, *again])


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("family", models.SERVED)
def test_engine_and_learner_agree_on_every_family(family: str, rank: int, tmp_path: Path) -> None:
    recomputed = rank > 0 and family not in ("falcon", "falcon-grouped")
    layout = "auto" if rank else "tree"
    job = _job(lora_rank=rank, gradient_checkpointing=recomputed, kl_coef=0.1, merging=layout)
    folder = models.save_family(*models.SERVED[family], tmp_path)
    if rank and family == "deepseek_v3":  # its router reads a weight of the layer that peft puts its own in place of
        with pytest.raises(BackendError, match=r"deepseek_v3 .* fails .*set lora_rank to 0"):
            load_policy(folder, job)
        return
    policy = load_policy(folder, job)
    batcher = Batcher(policy, slots=4, positions=models.WINDOW, seed=0)
    learner = LocalLearner(policy, job, {"sampling": batcher.generator})
    for update in range(2):
        generations = models.generate(batcher, [[1, 2, i] for i in range(4)], 6)
        episodes = tuple(
            TrainEpisode(str(i), "g", float(i % 2), (models.row_of(g),)) for i, g in enumerate(generations)
        )
        metrics = learner.update(Batch(update, episodes))
        assert metrics["training/rollout_probs_diff_max"] < 1e-5
        assert metrics["actor/grad_norm"] > 0
        assert (metrics["actor/kl_loss"] > 0) == (update > 0)


@pytest.mark.parametrize("family", models.REFUSED)
def test_what_cannot_be_served_is_refused_in_one_line_when_it_is_loaded(family: str, tmp_path: Path) -> None:
    kind, fields, words = models.REFUSED[family]
    with pytest.raises(BackendError, match=words) as refusal:
        _loaded(models.save_family(kind, fields, tmp_path), _job())
    assert "\n" not in str(refusal.value)
    assert "choose another model" in str(refusal.value)


@pytest.mark.parametrize(
    "family", ["cohere2", "gemma2", "gemma3", "gpt_oss", "mistral", "olmo3", "phi3-longrope", "qwen2-windows"]
)
def test_a_context_beyond_window_or_positions_is_refused_before_weights_are_read(family: str, tmp_path: Path) -> None:
    folder = models.save_family(*models.SERVED[family], tmp_path)
    load_policy(folder, _job())
    next(folder.glob("*.safetensors")).write_bytes(b"nobody reads this")
    with pytest.raises(BackendError, match=f"{models.WINDOW + 1}.*max_context to {models.WINDOW}"):
        load_policy(folder, _job(max_context=models.WINDOW + 1))


_BIND, _PREFIXES = SlotCache.bind, SlotTable._common_prefixes


def _more(table: SlotTable, prompt: Any) -> Any:
    """What is kept of a row is taken for more of the next prompt than it is."""
    found = _PREFIXES(table, prompt)
    return (found + (found > 8) * 2).clip(max=prompt.size)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("of", "name", "wrong"),
    [
        (SlotCache, "bind", lambda cache, rows, positions, end: _BIND(cache, rows, positions + 1, end + 1)),
        (SlotCache, "bind", lambda *asked: torch.zeros_like(_BIND(*asked))),
        (SlotCache, "copy", lambda *_: None),
        (SlotTable, "_common_prefixes", _more),
    ],
    ids=["one too many", "all", "no copy", "another prompt's"],
)
def test_an_engine_that_sees_too_much_or_what_is_not_its_own_is_refused(
    kind: str, of: type, name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_slots(models.make_policy(kind))
    monkeypatch.setattr(of, name, wrong)
    with pytest.raises(BackendError, match=rf"slot engine .*{kind} .*0.001 .*found [\d.]+: choose another model"):
        check_slots(models.make_policy(kind))


def _load(family: str, folder: Path, max_context: int = models.WINDOW) -> Policy:
    return load_policy(models.save_family(*models.SERVED[family], folder), Job(max_context=max_context, device="cpu"))


def test_soft_caps_that_sdpa_drops_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_has_soft_caps", lambda _: False)
    with pytest.raises(BackendError, match=r"gemma2 .*softcap"):
        _load("gemma2", tmp_path / "told")
    monkeypatch.setattr(tree_attention, "_DROPPED", ())
    policy = _load("gemma2", tmp_path / "dropped")
    with pytest.raises(BackendError, match=r"learner's forward .* gemma2 .*found \d\.\d+: choose another model"):
        check_rows(policy, models.WINDOW)
    with pytest.raises(BackendError, match=r"slot engine.* gemma2"):
        check_slots(policy)


def test_frequencies_that_follow_the_company_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_MOVING", frozenset())
    policy = _load("phi3-longrope", tmp_path, models.POSITIONS)
    check_rows(policy, models.WINDOW)
    with pytest.raises(BackendError, match=r"phi3 .*in its batch"):
        check_rows(policy, models.WINDOW + 1)


@pytest.mark.parametrize("check", ["check_rows", "check_slots"])
async def test_nobody_serves_what_was_not_checked(check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BackendError("not as eager")

    monkeypatch.setattr(f"swarm.backends.local.reference.{check}", refuse)
    job = Job(model=PathModel(path=str(models.save_folder(tmp_path / "m"))), max_context=64, device="cpu")
    local = LocalBackend(job, tmp_path)
    with pytest.raises(BackendError, match="not as eager"):
        await local.start()
    with pytest.raises(BackendError, match="not started"):
        _ = local.engine
    assert backend.PROBS_TOLERANCE
