"""An exported folder computes what the engine does, whatever was trained, and is loaded by other people's tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from swarm.backends.exporting.folder import Written, write_model
from swarm.backends.local import LocalBackend
from swarm.backends.local.learning import checkpoint
from swarm.backends.protocols import BackendError, GenerationRequest, Sampling
from swarm.backends.verl.saving import sharded
from swarm.job import Job, PathModel
from tests.swarm.backends.local.batches import make_batch
from tests.swarm.backends.local.models import KINDS, make_model, make_tokenizer

PROMPT = [5, 9, 2, 30, 11]


def base(folder: Path, kind: str = "llama") -> Path:
    tokenizer = make_tokenizer()
    make_model(kind, vocabulary=len(tokenizer) + 8).save_pretrained(folder)  # a family adds ids of its own
    tokenizer.save_pretrained(folder)
    return folder


def a_job(folder: Path, **fields: Any) -> Job:
    small = {"max_context": 64, "max_tokens": 12, "learning_rate": 0.01, "device": "cpu"}
    return Job.model_validate({**small, "model": PathModel(path=str(folder)), **fields})


async def trained(job: Job, models: Path, saved: Path) -> list[tuple[int, float]]:
    """Learn two batches, save a checkpoint; return what the engine samples then."""
    backend = LocalBackend(job, models)
    await backend.start()
    try:
        for seed in range(2):
            backend.learner.update(make_batch(backend.policy, seed=seed))
        backend.learner.save(saved)
        chunks = backend.engine.generate(GenerationRequest("r", PROMPT, Sampling(max_tokens=12)))
        return [pair async for chunk in chunks for pair in zip(chunk.ids, chunk.logprobs, strict=True)]
    finally:
        await backend.stop()


@torch.no_grad()
def logprobs(model: Any, answer: list[int]) -> list[float]:
    logits = model(torch.tensor([[*PROMPT, *answer]])).logits[0, len(PROMPT) - 1 : -1].float()
    found: list[float] = logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0].tolist()
    return found


def written(job: Job, tmp_path: Path, *, apart: bool = False) -> tuple[Path, Written]:
    to = tmp_path / "out"
    to.mkdir()
    return to, write_model(job, tmp_path / "models", tmp_path / "saved", to, apart=apart, say=lambda _: None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [0, 4])
async def test_the_folder_gives_the_log_probs_of_the_engine(tmp_path: Path, kind: str, rank: int) -> None:
    job = a_job(base(tmp_path / "base", kind), lora_rank=rank)
    sampled = await trained(job, tmp_path / "models", tmp_path / "saved")
    to, made = written(job, tmp_path)
    assert made.adapter == ("merged" if rank else "none")
    ids = [token for token, _ in sampled]
    expected = pytest.approx([logprob for _, logprob in sampled], abs=1e-5)
    assert logprobs(AutoModelForCausalLM.from_pretrained(to), ids) == expected
    assert logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), ids) != expected  # it has learned
    assert AutoTokenizer.from_pretrained(to).chat_template == make_tokenizer().chat_template


@pytest.mark.parametrize("rank", [0, 4])
async def test_so_does_that_of_a_model_made_on_the_spot(tmp_path: Path, rank: int) -> None:
    tiny = {"kind": "tiny", "warm_start_steps": 2, "hidden_size": 32, "layers": 1}
    job = a_job(tmp_path, model=tiny, environment="guess", lora_rank=rank)
    sampled = await trained(job, tmp_path / "models", tmp_path / "saved")
    to, _ = written(job, tmp_path)
    found = logprobs(AutoModelForCausalLM.from_pretrained(to), [token for token, _ in sampled])
    assert found == pytest.approx([logprob for _, logprob in sampled], abs=1e-5)


async def test_an_adapter_apart_gives_them_on_its_model(tmp_path: Path) -> None:
    job = a_job(base(tmp_path / "base"), lora_rank=4, lora_alpha=6.0)
    sampled = await trained(job, tmp_path / "models", tmp_path / "saved")
    to, _ = written(job, tmp_path, apart=True)
    assert not (to / "model.safetensors").exists()
    named = json.loads((to / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(named), to)
    found = logprobs(model, [token for token, _ in sampled])
    assert found == pytest.approx([logprob for _, logprob in sampled], abs=1e-5)


@pytest.mark.parametrize("rank", [0, 4])
async def test_what_several_ranks_saved_is_the_same_folder(tmp_path: Path, rank: int) -> None:
    """Ranks have peft's names for an adapter's weights, of a model that it is put around."""
    job = a_job(base(tmp_path / "base"), lora_rank=rank)
    await trained(job, tmp_path / "models", tmp_path / "whole")
    around = "base_model.model." if rank else ""
    learned = checkpoint.read(tmp_path / "whole").sets["model"]
    for each in range(3):
        own = {f"{around}{name}": sharded.cut(weight, each, 3) for name, weight in learned.items()}
        sharded.write_rank(tmp_path / "saved", each, {sharded.MODEL: own})
    sharded.write_driver(tmp_path / "saved", 3, checkpoint.Checkpoint({}, {}))
    there, _ = written(job.model_copy(update={"backend": "verl"}), tmp_path)
    (tmp_path / "saved").rename(tmp_path / "shards")
    (tmp_path / "whole").rename(tmp_path / "saved")
    there.rename(tmp_path / "ranks")
    here, _ = written(job, tmp_path)
    assert (here / "model.safetensors").read_bytes() == (tmp_path / "ranks" / "model.safetensors").read_bytes()


async def test_in_bfloat16_the_weights_are_those_that_serve(tmp_path: Path) -> None:
    job = a_job(base(tmp_path / "base"), dtype="bfloat16")
    await trained(job, tmp_path / "models", tmp_path / "saved")
    to, _ = written(job, tmp_path)
    backend = LocalBackend(job, tmp_path / "models")
    await backend.start()
    backend.learner.load(tmp_path / "saved")
    served = backend.policy.model.state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(to, dtype="auto").state_dict()
    await backend.stop()
    assert all(torch.equal(loaded[name], served[name]) for name in loaded)


async def test_what_the_hashes_say_is_what_a_server_says(tmp_path: Path) -> None:
    job = a_job(base(tmp_path / "base"), lora_rank=2)
    await trained(job, tmp_path / "models", tmp_path / "saved")
    backend = LocalBackend(job, tmp_path / "models")
    await backend.start()
    said = backend.provenance
    await backend.stop()
    _, made = written(job, tmp_path)
    assert (made.base_weights, made.template) == (said["weights"], said["template"])


async def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    job = a_job(base(tmp_path / "base"))
    await trained(job, tmp_path / "models", tmp_path / "saved")
    other = a_job(base(tmp_path / "other", "qwen3"))
    with pytest.raises(BackendError, match="another model than the one in"):
        written(other, tmp_path)


async def test_no_code_goes_with_a_model(tmp_path: Path) -> None:
    job = a_job(base(tmp_path / "base"))
    await trained(job, tmp_path / "models", tmp_path / "saved")
    settings = tmp_path / "base" / "config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "auto_map": {"AutoModel": "mine.Mine"}}))
    (tmp_path / "base" / "mine.py").write_text("raise SystemExit(3)\n")
    to, _ = written(job, tmp_path)
    assert "auto_map" not in json.loads((to / "config.json").read_text())
    assert not list(to.glob("*.py"))
