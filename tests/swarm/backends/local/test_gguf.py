"""A GGUF file becomes a folder that a server loads, weight for weight; what reads it comes from an index."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from research.errors import ModelFailed
from research.models.fetch import CONVERTER_PIN, run_pip
from swarm.backends.local.model_files import main
from swarm.models import require_model_folder
from swarm.rendering.renderer import load_renderer

pytestmark = pytest.mark.slow

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
