"""An exported folder computes what the engine does, is loaded by others' tools, and begins another training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from peft import PeftModel

from swarm.backends.local import checkpoint
from swarm.backends.local.model_files import WrittenModel, write_model
from swarm.backends.protocols import GenerationRequest, Sampling
from swarm.job import Job, PathModel
from swarm.models import folder_hash
from swarm.models.card import CARD
from swarm.rendering.messages import BackendError
from tests.swarm.backends.conformance.kinds import Oracle
from tests.swarm.backends.local.models import KINDS, make_batch, make_model, make_tokenizer, running

pytestmark = pytest.mark.slow

PROMPT = [5, 9, 2, 30, 11]


def base(folder: Path, kind: str = "llama") -> Path:
    tokenizer = make_tokenizer()
    make_model(kind, vocabulary=len(tokenizer) + 8).save_pretrained(folder)  # a family adds ids of its own
    tokenizer.save_pretrained(folder)
    return folder


def a_job(folder: Path, **fields: Any) -> Job:
    small = {"max_context": 64, "max_tokens": 12, "learning_rate": 0.01, "device": "cpu"}
    return Job.model_validate({**small, "model": PathModel(path=str(folder)), **fields})


async def trained(job: Job, models: Path, saved: Path) -> tuple[list[int], list[float], Mapping[str, str]]:
    async with running(job, models) as backend:
        for seed in range(2):
            backend.learner.update(make_batch(backend.policy, seed=seed))
        backend.learner.save(saved)
        request = GenerationRequest("r", PROMPT, Sampling(max_tokens=12))
        chunks = [chunk async for chunk in backend.engine.generate(request)]
        provenance = backend.provenance
    return [i for chunk in chunks for i in chunk.ids], [p for chunk in chunks for p in chunk.logprobs], provenance


def logprobs(model: Any, answer: list[int]) -> list[float]:
    return Oracle(lambda: model).logprobs(PROMPT, answer)


def written(job: Job, tmp_path: Path, *, apart: bool = False) -> tuple[Path, WrittenModel]:
    to = tmp_path / "out"
    to.mkdir()
    return to, write_model(job, tmp_path / "models", tmp_path / "saved", to, apart=apart, say=lambda _: None)


@pytest.mark.parametrize("kind", [*KINDS, "tiny"])
@pytest.mark.parametrize("rank", [0, 4])
async def test_the_folder_gives_the_log_probs_and_hashes_of_the_engine(tmp_path: Path, kind: str, rank: int) -> None:
    own = {"environment": "guess", "model": {"kind": "tiny", "warm_start_steps": 2, "hidden_size": 32, "layers": 1}}
    if kind == "tiny":
        job = a_job(tmp_path, lora_rank=rank, **own)
    else:
        job = a_job(base(tmp_path / "base", kind), lora_rank=rank)
    ids, sampled, provenance = await trained(job, tmp_path / "models", tmp_path / "saved")
    to, made = written(job, tmp_path)
    assert made.adapter == ("merged" if rank else "none")
    assert (made.base_weights, made.template) == (provenance["weights"], provenance["template"])
    expected = pytest.approx(sampled, abs=1e-5)
    assert logprobs(transformers.AutoModelForCausalLM.from_pretrained(to), ids) == expected
    if kind != "tiny":
        assert (
            logprobs(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), ids) != expected
        )  # it has learned
        assert transformers.AutoTokenizer.from_pretrained(to).chat_template == make_tokenizer().chat_template


async def test_an_adapter_apart_gives_them_on_its_model(tmp_path: Path) -> None:
    job = a_job(base(tmp_path / "base"), lora_rank=4, lora_alpha=6.0)
    ids, sampled, _ = await trained(job, tmp_path / "models", tmp_path / "saved")
    to, _ = written(job, tmp_path, apart=True)
    assert not (to / "model.safetensors").exists()
    named = json.loads((to / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(named), to)
    assert logprobs(model, ids) == pytest.approx(sampled, abs=1e-5)


@pytest.mark.parametrize("rank", [0, 4])
async def test_what_several_ranks_saved_is_the_same_folder(tmp_path: Path, rank: int) -> None:
    """Ranks have peft's names for an adapter's weights, of a model that it is put around."""
    job = a_job(base(tmp_path / "base"), lora_rank=rank)
    await trained(job, tmp_path / "models", tmp_path / "whole")
    around = "base_model.model." if rank else ""
    learned = checkpoint.read(tmp_path / "whole").sets["model"]
    for each in range(3):
        own = {f"{around}{name}": checkpoint.take_shard(weight, each, 3) for name, weight in learned.items()}
        checkpoint.write_rank(tmp_path / "saved", each, {checkpoint.MODEL: own})
    checkpoint.write_driver(tmp_path / "saved", 3, checkpoint.Checkpoint({}, {}))
    there, _ = written(job.model_copy(update={"backend": "verl"}), tmp_path)
    (tmp_path / "saved").rename(tmp_path / "shards")
    (tmp_path / "whole").rename(tmp_path / "saved")
    there.rename(tmp_path / "ranks")
    here, _ = written(job, tmp_path)
    assert (here / "model.safetensors").read_bytes() == (tmp_path / "ranks" / "model.safetensors").read_bytes()


async def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    job = a_job(base(tmp_path / "base"))
    await trained(job, tmp_path / "models", tmp_path / "saved")
    other = a_job(base(tmp_path / "other", "qwen3"))
    with pytest.raises(BackendError, match="another model"):
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


async def begun(job: Job, models: Path) -> tuple[str, str]:
    async with running(job, models) as backend:
        return backend.provenance["weights"], str(backend.weights())


@pytest.mark.parametrize("rank", [0, 4])
async def test_training_begins_with_the_exported_weights(tmp_path: Path, rank: int) -> None:
    job = a_job(base(tmp_path / "base"), lora_rank=rank)
    await trained(job, tmp_path / "models", tmp_path / "saved")
    to, _ = written(job, tmp_path)
    on = a_job(tmp_path / "base", start_from=str(to))
    async with running(on, tmp_path / "models") as loaded, running(job, tmp_path / "models") as before:
        before.learner.load(tmp_path / "saved")
        assert loaded.learner.version == 0
        if not rank:  # an adapter's export is merged, and hashes otherwise
            assert loaded.weights() == before.weights()
        assert loaded.provenance["weights"] != before.provenance["weights"]


async def test_a_tiny_model_goes_on_from_its_export(tmp_path: Path) -> None:
    tiny: dict[str, Any] = {"kind": "tiny", "warm_start_steps": 2, "hidden_size": 16, "layers": 1}
    job = Job.model_validate({"model": tiny, "environment": "guess", "device": "cpu", "max_context": 64})
    await trained(job, tmp_path / "models", tmp_path / "saved")
    to, _ = written(job, tmp_path)
    first, other = await begun(job, tmp_path / "models"), job.model_copy(update={"start_from": str(to)})
    assert (await begun(other, tmp_path / "models"))[0] != first[0]
    assert other.digest() != job.digest()
    elsewhere = other.model_copy(update={"environment": "arith"})
    with pytest.raises(BackendError, match=r"tokenizer|architecture"):
        await begun(elsewhere, tmp_path / "models")


async def test_what_is_not_of_the_job_s_model_is_refused_at_boot(tmp_path: Path) -> None:
    own, other = base(tmp_path / "base"), base(tmp_path / "other", "qwen3")
    with pytest.raises(BackendError, match=r"start_from: .*architecture"):
        await begun(a_job(own, start_from=str(other)), tmp_path / "models")
    with pytest.raises(BackendError, match=r"start_from: .*no such folder"):
        await begun(a_job(own, start_from=str(tmp_path / "nowhere")), tmp_path / "models")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(BackendError, match=r"start_from: .*adapter alone"):
        await begun(a_job(own, start_from=str(adapter)), tmp_path / "models")


async def test_a_folder_that_is_not_what_was_exported_is_refused(tmp_path: Path) -> None:
    own, copied = base(tmp_path / "base"), base(tmp_path / "copied")
    (copied / CARD).write_text(json.dumps({"sha256": folder_hash(copied)}))
    await begun(a_job(own, start_from=str(copied)), tmp_path / "models")
    (copied / CARD).write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(BackendError, match="found other files"):
        await begun(a_job(own, start_from=str(copied)), tmp_path / "models")
    (copied / CARD).write_text("{")
    with pytest.raises(BackendError, match="no card"):
        await begun(a_job(own, start_from=str(copied)), tmp_path / "models")
