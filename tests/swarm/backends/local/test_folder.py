"""Exported folders compute what the engine does and begin another training; a GGUF file becomes one that is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from peft import PeftModel
from safetensors.numpy import load_file

from research.errors import ModelFailed
from research.models.fetch import CONVERTER_PIN, run_pip
from swarm.backends.local import checkpoint
from swarm.backends.local.model_files import WrittenModel, main, write_model
from swarm.backends.protocols import GenerationRequest, Sampling
from swarm.job import Job, PathModel
from swarm.models import CARD, folder_hash, require_model_folder
from swarm.rendering.messages import BackendError
from swarm.rendering.renderer import load_renderer
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


WIDTH, INNER, HEADS = 32, 64, 4
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    try:
        run_pip("install", CONVERTER_PIN, folder, lambda line: None)
    except ModelFailed as error:
        pytest.skip(f"no index answers: {error}")
    return folder


def make_gguf(gguf: Any, path: Path) -> dict[str, Any]:
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "hi", "us"]
    draw = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (len(tokens), WIDTH), "output_norm.weight": (WIDTH,), "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,), "blk.0.ffn_gate.weight": (INNER, WIDTH),
        "blk.0.ffn_up.weight": (INNER, WIDTH), "blk.0.ffn_down.weight": (WIDTH, INNER),
        **{f"blk.0.attn_{part}.weight": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
    }  # fmt: skip
    tensors = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    for what, value in {
        "context_length": 128, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": INNER,
        "head_count": HEADS, "head_count_kv": HEADS, "rope_dimension_count": WIDTH // HEADS, "rope_freq_base": 10_000.0,
        "layer_norm_rms_eps": 1e-5, "vocab_size": len(tokens), "tokenizer_model": "gpt2", "token_list": tokens,
        "token_merges": ["h i", "u s"], "token_types": [3, 3, 3, *[1] * (len(letters) + 2)], "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 2, "unk_token_id": 0, "chat_template": TEMPLATE,
    }.items():  # fmt: skip
        getattr(writer, f"add_{what}")(value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_weights_and_tokenizer_arrive(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(packages)
    tensors = make_gguf(import_module("gguf"), tmp_path / "m.gguf")
    arguments = ("--source", str(tmp_path / "m.gguf"), "--target", str(tmp_path / "m"))
    paths = os.pathsep.join([str(packages), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "swarm.backends.local.model_files", *arguments],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    require_model_folder(tmp_path / "m")
    found = load_file(tmp_path / "m" / "model.safetensors")
    assert np.array_equal(found["model.embed_tokens.weight"], tensors["token_embd.weight"])
    assert np.array_equal(found["model.layers.0.mlp.down_proj.weight"], tensors["blk.0.ffn_down.weight"])
    renderer = load_renderer(tmp_path / "m")
    text = renderer.render([{"role": "user", "content": "hi"}], generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.decode(renderer.encode(text), special=True) == text


def test_what_is_no_gguf_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"nonsense")
    assert main(["--source", str(tmp_path / "m.gguf"), "--target", str(tmp_path / "m")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
