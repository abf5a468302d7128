"""The local backend as a server uses it: start, speak, learn, stop."""

from __future__ import annotations

import copy
import gc
import importlib.util
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from swarm.backends.fake import FakeBackend
from swarm.backends.local import LocalBackend, loading
from swarm.backends.local.loading import provenance, weights_hash
from swarm.backends.local.policy import Policy, add_adapter
from swarm.backends.protocols import Sampling
from swarm.job import Job, PathModel
from swarm.rendering.messages import BackendError
from swarm.server.service import make_backend
from tests.golden import refused
from tests.swarm.backends.conformance.kinds import ask, played
from tests.swarm.backends.local.models import KINDS, make_model, make_tokenizer, running, save_folder


def _job(folder: Path, **fields: Any) -> Job:
    return Job(**{"model": PathModel(path=str(folder)), "max_context": 64, "max_concurrency": 4, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"lora_rank": 2}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "lora_rank": 2},
        {"gradient_checkpointing": True},
    ],
    ids=str,
)  # fmt: skip
async def test_what_is_checked_is_a_chat_and_costs_no_fast_path(fields: dict[str, Any], tmp_path: Path) -> None:
    async with running(_job(save_folder(tmp_path / "small"), **fields), tmp_path / "models") as backend:
        shown = backend.renderer.decode(backend.policy.probe_ids(200), special=True)
        assert "<|im_start|>user\n" in shown
        assert backend.model_name == "small"
        metrics = backend.learner.update(await played(backend))
        assert metrics["merge/layout_tree"] == 1.0


async def test_a_model_from_a_folder_is_held_to_a_grammar(tmp_path: Path) -> None:
    async with running(_job(save_folder(tmp_path / "small")), tmp_path / "models") as backend:
        assert backend.engine.guided
        rule = Sampling(max_tokens=9, stop_ids=backend.renderer.stop_ids, grammar='start: "yes" | "no"')
        answer = await ask(backend, [1, 2], rule)
        assert backend.renderer.decode(answer.ids) in ("yes", "no")
        assert answer.ids[-1] == backend.renderer.eos_id


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"environment": "nowhere", "model": {"kind": "tiny"}}, "nowhere"),
        ({}, "config.json"),
        ({"model": {"kind": "path", "path": "Qwen/Qwen3-0.6B"}}, "Qwen/Qwen3-0.6B"),
        ({"model": {"kind": "path", "path": "/nothing/there"}}, "/nothing/there"),
    ],
)
async def test_what_is_no_environment_or_model_is_refused(fields: dict[str, Any], named: str, tmp_path: Path) -> None:
    with refused(BackendError, named):
        await LocalBackend(_job(tmp_path, **fields), tmp_path).start()


@pytest.mark.parametrize("fields", [{}, {"lora_rank": 2, "kl_coef": 0.1}])
async def test_stopping_frees_the_weights_and_the_engine_s_memory(tmp_path: Path, fields: dict[str, Any]) -> None:
    backend = LocalBackend(_job(save_folder(tmp_path / "small"), **fields), tmp_path)
    await backend.start()
    backend.learner.update(await played(backend))
    left = [weakref.ref(weight) for weight in backend.policy.model.parameters()]
    left += [weakref.ref(part) for part in (backend.policy, backend.engine, backend.learner)]
    await backend.stop()
    gc.collect()
    assert [reference() for reference in left if reference() is not None] == []


async def test_a_tokenizer_with_more_ids_than_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(tmp_path / "m")
    tokenizer = make_tokenizer()
    rows = len(tokenizer)
    tokenizer.add_tokens(["<one>", "<two>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    monkeypatch.setattr(loading, "read_model", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(BackendError, match=f"up to {rows + 1}, .* {rows} ids"):
        await LocalBackend(_job(folder), tmp_path).start()


def test_neither_torch_nor_a_hub_is_asked_for_by_importing_it() -> None:
    """In a process of its own, because Hugging Face's libraries read their settings once, at import."""
    program = (
        "import swarm.backends.local, sys; assert not {'torch', 'transformers'} & set(sys.modules); "
        "import huggingface_hub.constants as hub; print(hub.HF_HUB_OFFLINE, hub.HF_HUB_DISABLE_TELEMETRY)"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "True"]


@pytest.mark.parametrize(("missing", "fields"), [("torch", {}), ("peft", {"lora_rank": 4})])
def test_a_missing_library_names_the_extra_to_install_to_whom_it_concerns(
    missing: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == missing else found(name, *rest)
    )
    assert isinstance(make_backend(Job(backend="fake"), tmp_path), FakeBackend)
    if missing == "peft":
        make_backend(Job(backend="local"), tmp_path)
    with pytest.raises(BackendError, match=rf"needs {missing}.*ajet\[local\]"):
        make_backend(Job(backend="local", **fields), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_that_has_learned_nothing_is_no_other_beginning_and_what_differs_is(kind: str) -> None:
    plain, adapted, moved = make_model(kind), make_model(kind), make_model(kind)
    add_adapter(adapted, rank=3, alpha=6.0, seed=1)
    assert weights_hash(plain) == weights_hash(make_model(kind)) == weights_hash(adapted)
    with torch.no_grad():
        next(moved.parameters())[0, 0] += 1e-3
    others = (moved, make_model(kind, seed=1), make_model(kind).to(torch.bfloat16))
    assert len({weights_hash(plain), *map(weights_hash, others)}) == 4
    one, other = provenance(moved, "{{ a }}"), provenance(moved, "{{ b }}")
    assert (one["weights"] == other["weights"], one["template"] == other["template"]) == (True, False)


@pytest.mark.parametrize("fields", [{}, {"lora_rank": 4}], ids=["all weights", "adapter"])
@pytest.mark.parametrize("off", ["engine", "learner"])
async def test_an_engine_of_other_weights_or_a_learner_whose_forward_is_off_stops_the_training(
    off: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    job = _job(save_folder(tmp_path / "model"), max_context=128, learning_rate=1e-3, seed=3, **fields)
    async with running(job, tmp_path / "models") as backend:
        policy = backend.policy
        if off == "engine":
            twin = Policy(copy.deepcopy(policy.model))
            with torch.no_grad():
                for weight in twin.model.parameters():
                    weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
            twin.fuse()
            assert twin._fused is not None
            policy._fused = twin._fused
        else:
            features = policy.features
            policy.features = lambda *ids, **inputs: features(*ids, **inputs) * 1.5  # type: ignore[method-assign]
        for step in range(2):
            backend.learner.update(await played(backend, 12, step, 6))
        third = await played(backend, 12, 2, 6)
        with pytest.raises(BackendError, match="engine disagree"):
            backend.learner.update(third)
