"""An exported folder computes what the engine does, is loaded by others' tools, and begins another training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Trained:
    """A job that was trained for two updates and saved; what its engine said then, and where it was written to."""

    folder: Path
    job: Job
    ids: list[int]
    sampled: list[float]
    provenance: Mapping[str, str]

    def written(self, *, job: Job | None = None, apart: bool = False) -> tuple[Path, WrittenModel]:
        to = self.folder / "out"
        to.mkdir()
        saved, models = self.folder / "saved", self.folder / "models"
        return to, write_model(job or self.job, models, saved, to, apart=apart, say=lambda _: None)

    async def begun(self, **fields: Any) -> tuple[str, str]:
        """Return the hashes of the weights that such a job begins with, and serves."""
        async with running(self.job.model_copy(update=fields), self.folder / "models") as backend:
            return backend.provenance["weights"], str(backend.weights())


async def trained(folder: Path, kind: str = "llama", **fields: Any) -> Trained:
    if kind == "tiny":
        tiny = {"kind": "tiny", "warm_start_steps": 2, "hidden_size": 16, "layers": 1}
        job = a_job(folder, **{"environment": "guess", "model": tiny, **fields})
    else:
        job = a_job(base(folder / "base", kind), **fields)
    async with running(job, folder / "models") as backend:
        for seed in range(2):
            backend.learner.update(make_batch(backend.policy, seed=seed))
        backend.learner.save(folder / "saved")
        request = GenerationRequest("r", PROMPT, Sampling(max_tokens=12))
        chunks = [chunk async for chunk in backend.engine.generate(request)]
        ids, sampled = ([value for chunk in chunks for value in getattr(chunk, of)] for of in ("ids", "logprobs"))
        return Trained(folder, job, ids, sampled, backend.provenance)


def logprobs(model: Any, answer: list[int]) -> list[float]:
    return Oracle(lambda: model).logprobs(PROMPT, answer)


@pytest.mark.parametrize("kind", [*KINDS, "tiny"])
@pytest.mark.parametrize("rank", [0, 4])
async def test_the_folder_gives_the_log_probs_and_hashes_of_the_engine(tmp_path: Path, kind: str, rank: int) -> None:
    own = await trained(tmp_path, kind, lora_rank=rank)
    to, made = own.written()
    assert made.adapter == ("merged" if rank else "none")
    assert (made.base_weights, made.template) == (own.provenance["weights"], own.provenance["template"])
    expected, load = pytest.approx(own.sampled, abs=1e-5), transformers.AutoModelForCausalLM.from_pretrained
    assert logprobs(load(to), own.ids) == expected
    if kind != "tiny":
        assert logprobs(load(tmp_path / "base"), own.ids) != expected, "nothing was learned"
        assert transformers.AutoTokenizer.from_pretrained(to).chat_template == make_tokenizer().chat_template


async def test_an_adapter_apart_gives_them_on_its_model(tmp_path: Path) -> None:
    own = await trained(tmp_path, lora_rank=4, lora_alpha=6.0)
    to, _ = own.written(apart=True)
    assert not (to / "model.safetensors").exists()
    named = json.loads((to / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(named), to)
    assert logprobs(model, own.ids) == pytest.approx(own.sampled, abs=1e-5)


@pytest.mark.parametrize("rank", [0, 4])
async def test_what_several_ranks_saved_is_the_same_folder(tmp_path: Path, rank: int) -> None:
    """Ranks have peft's names for an adapter's weights, of a model that it is put around."""
    own = await trained(tmp_path, lora_rank=rank)
    whole = own.written()[0].rename(tmp_path / "whole")
    around = "base_model.model." if rank else ""
    learned = checkpoint.read(tmp_path / "saved").sets["model"]
    for each in range(3):
        shards = {f"{around}{name}": checkpoint.take_shard(weight, each, 3) for name, weight in learned.items()}
        checkpoint.write_rank(tmp_path / "saved", each, {checkpoint.MODEL: shards})
    checkpoint.write_driver(tmp_path / "saved", 3, checkpoint.Checkpoint({}, {}))
    ranks, _ = own.written(job=own.job.model_copy(update={"backend": "verl"}))
    assert (ranks / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


async def test_another_model_s_checkpoint_is_refused_and_no_code_goes_with_a_model(tmp_path: Path) -> None:
    own = await trained(tmp_path)
    settings = tmp_path / "base" / "config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "auto_map": {"AutoModel": "mine.Mine"}}))
    (tmp_path / "base" / "mine.py").write_text("raise SystemExit(3)\n")
    to, _ = own.written()
    assert "auto_map" not in json.loads((to / "config.json").read_text())
    assert not list(to.rename(tmp_path / "first").glob("*.py"))
    with pytest.raises(BackendError, match="another model"):
        own.written(job=a_job(base(tmp_path / "other", "qwen3")))


@pytest.mark.parametrize("kind", ["llama", "tiny"])
@pytest.mark.parametrize("rank", [0, 4])
async def test_training_begins_with_the_exported_weights(tmp_path: Path, kind: str, rank: int) -> None:
    own = await trained(tmp_path, kind, lora_rank=rank)
    to, _ = own.written()
    async with running(own.job, tmp_path / "models") as before:
        before.learner.load(tmp_path / "saved")
        served = str(before.weights())
    weights, serves = await own.begun(start_from=str(to))
    assert weights != own.provenance["weights"]
    assert rank or serves == served  # an adapter's export is merged, and hashes otherwise
    assert own.job.model_copy(update={"start_from": str(to)}).digest() != own.job.digest()
    if kind == "tiny":
        with pytest.raises(BackendError, match=r"tokenizer|architecture"):
            await own.begun(start_from=str(to), environment="arith")


async def test_what_is_not_of_the_job_s_model_or_not_as_exported_is_refused_at_boot(tmp_path: Path) -> None:
    own, other, copied = base(tmp_path / "own"), base(tmp_path / "other", "qwen3"), base(tmp_path / "copied")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (copied / CARD).write_text(json.dumps({"sha256": folder_hash(copied)}))

    async def begin(start: Path) -> None:
        async with running(a_job(own, start_from=str(start)), tmp_path / "models"):
            pass

    await begin(copied)
    for start, card, said in (
        (other, None, "architecture"), (tmp_path / "nowhere", None, "no such folder"), (adapter, None, "adapter alone"),
        (copied, json.dumps({"sha256": "0" * 64}), "found other files"), (copied, "{", "no card"),
    ):  # fmt: skip
        if card is not None:
            (start / CARD).write_text(card)
        with pytest.raises(BackendError, match=f"start_from: .*{said}"):
            await begin(start)
