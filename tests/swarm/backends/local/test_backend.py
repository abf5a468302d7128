"""The local backend as a server uses it: start, speak, learn, stop."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.local import LocalBackend
from swarm.backends.local.generating import engine
from swarm.backends.local.model import loading
from swarm.backends.protocols import Backend, BackendError, Batch, GenerationRequest, Sampling, TrainEpisode, TrainRow
from swarm.job import Job, PathModel, TinyModel
from tests.swarm.backends.local.models import make_tokenizer, save_folder


def _job(folder: Path, **fields: Any) -> Job:
    return Job(**{"model": PathModel(path=str(folder)), "max_context": 64, "max_concurrency": 4, **fields})


async def _episode(backend: Backend, number: int) -> TrainEpisode:
    renderer = backend.renderer
    text = renderer.render([{"role": "user", "content": f"say {number}"}], generation_prompt=True)
    ids = renderer.encode(text)
    sampled: list[int] = []
    logprobs: list[float] = []
    async for chunk in backend.engine.generate(
        GenerationRequest(f"r{number}", ids, Sampling(max_tokens=5, stop_ids=(renderer.eos_id,)))
    ):
        assert chunk.version == backend.learner.version
        sampled += chunk.ids
        logprobs += chunk.logprobs
    row = TrainRow(
        (*ids, *sampled),
        (0,) * len(ids) + (1,) * len(sampled),
        (0.0,) * len(ids) + tuple(logprobs),
        (-1,) * len(ids) + (0,) * len(sampled),
    )
    return TrainEpisode(str(number), str(number // 2), float(number % 2), (row,))


async def test_a_learner_that_computes_layers_again_leaves_the_engine_its_fused_forward(tmp_path: Path) -> None:
    backend = LocalBackend(_job(save_folder(tmp_path / "small"), gradient_checkpointing=True), tmp_path / "models")
    await backend.start()
    await _episode(backend, 0)
    assert backend.policy.fused
    await backend.stop()


@pytest.mark.parametrize(("said", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
async def test_threads_that_wait_leave_the_cores_to_others_unless_a_person_says_otherwise(
    said: str | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", said or "")
    if said is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    backend = LocalBackend(_job(save_folder(tmp_path / "small")), tmp_path / "models")
    await backend.start()
    await backend.stop()
    assert os.environ["OMP_WAIT_POLICY"] == found


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_what_is_checked_is_text_as_the_model_is_shown_it_and_costs_no_fast_path(
    dtype: str, rank: int, tmp_path: Path
) -> None:
    backend = LocalBackend(_job(save_folder(tmp_path / "small"), dtype=dtype, lora_rank=rank), tmp_path / "models")
    await backend.start()
    shown = backend.renderer.decode(backend.policy.checked_ids(200), special=True)
    assert "Which of these words comes last" in shown
    batch = Batch(0, tuple([await _episode(backend, i) for i in range(4)]))
    metrics = backend.learner.update(batch)
    assert metrics["rollouter/fused"] == metrics["merge/layout_tree"] == 1.0
    await backend.stop()


async def test_a_model_from_a_folder_speaks_learns_and_is_restored(tmp_path: Path) -> None:
    backend: Backend = LocalBackend(_job(save_folder(tmp_path / "small")), tmp_path / "models")
    await backend.start()
    assert backend.model_name == "small"
    batch = Batch(0, tuple([await _episode(backend, i) for i in range(4)]))
    metrics = backend.learner.update(batch)
    assert metrics["training/rollout_probs_diff_max"] < 1e-5
    assert backend.learner.version == 1
    await _episode(backend, 9)
    backend.learner.save(tmp_path / "checkpoint")
    backend.learner.update(batch)
    backend.learner.load(tmp_path / "checkpoint")
    assert backend.learner.version == 1
    await _episode(backend, 9)
    assert backend.failure() is None
    await backend.stop()
    await backend.stop()


async def test_a_model_from_a_folder_is_held_to_a_grammar(tmp_path: Path) -> None:
    backend = LocalBackend(_job(save_folder(tmp_path / "small")), tmp_path / "models")
    await backend.start()
    assert backend.engine.guided
    rule = Sampling(max_tokens=9, stop_ids=backend.renderer.stop_ids, grammar='start: "yes" | "no"')
    sampled = [
        token async for chunk in backend.engine.generate(GenerationRequest("r", [1, 2], rule)) for token in chunk.ids
    ]
    assert backend.renderer.decode(sampled) in ("yes", "no")
    assert sampled[-1] == backend.renderer.eos_id
    await backend.stop()


async def test_the_same_job_seed_gives_the_same_answers(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "small")
    rows = []
    for _ in range(2):
        backend = LocalBackend(_job(folder), tmp_path)
        await backend.start()
        rows.append([(await _episode(backend, i)).rows for i in range(3)])
        await backend.stop()
    assert rows[0] == rows[1]


async def test_a_tiny_model_is_made_on_the_spot(tmp_path: Path) -> None:
    job = Job(model=TinyModel(hidden_size=16, layers=1, warm_start_steps=1), max_context=128)
    backend = LocalBackend(job, tmp_path)
    await backend.start()
    assert backend.model_name == "tiny-guess"
    assert len((await _episode(backend, 1)).rows[0].ids) > 1
    await backend.stop()


async def test_an_unknown_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="nowhere"):
        await LocalBackend(Job(environment="nowhere"), tmp_path).start()


async def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=str(tmp_path)):
        await LocalBackend(_job(tmp_path), tmp_path).start()


async def test_parts_are_refused_before_start(tmp_path: Path) -> None:
    backend = LocalBackend(_job(tmp_path), tmp_path)
    with pytest.raises(BackendError, match="not started"):
        _ = backend.engine
    assert backend.failure() is None
    await backend.stop()


@pytest.mark.parametrize("fields", [{}, {"engine": "transformers"}, {"lora_rank": 2, "kl_coef": 0.1}])
async def test_stopping_frees_the_weights_and_the_engine_s_memory(tmp_path: Path, fields: dict[str, Any]) -> None:
    backend = LocalBackend(_job(save_folder(tmp_path / "small"), **fields), tmp_path)
    await backend.start()
    backend.learner.update(Batch(0, tuple([await _episode(backend, i) for i in range(4)])))
    left = [weakref.ref(weight) for weight in backend.policy.model.parameters()]
    left += [weakref.ref(part) for part in (backend.policy, backend.engine, backend.learner)]
    await backend.stop()
    gc.collect()
    assert [reference() for reference in left if reference() is not None] == []


async def test_as_many_sequences_run_at_once_as_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_GATHER_S", 0.0)  # a chunk for each token
    folder = save_folder(tmp_path / "small")
    position = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes
    backend = LocalBackend(_job(folder, max_context=128, kv_cache_bytes=2 * 129 * position), tmp_path)
    await backend.start()
    seen: list[str] = []

    async def follow(number: int) -> None:
        async for chunk in backend.engine.generate(GenerationRequest(f"r{number}", [number], Sampling(max_tokens=120))):
            seen.append("end" if chunk.finish else f"r{number}")

    await asyncio.gather(*map(follow, range(3)))
    running = [set(seen[: seen.index("end")]), set(seen)]
    assert running == [{"r0", "r1"}, {"r0", "r1", "r2", "end"}]
    await backend.stop()
    with pytest.raises(BackendError, match=f"kv_cache_bytes to {257 * position:,}"):
        await LocalBackend(_job(folder, kv_cache_bytes=1 << 16, max_context=256), tmp_path).start()


def test_importing_the_backend_loads_nothing_heavy() -> None:
    code = "import sys, swarm.backends.local; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_hub_is_asked_for_anything() -> None:
    """In a process of its own, because Hugging Face's libraries read their settings once, at import."""
    program = (
        "import swarm.backends.local, sys; assert 'transformers' not in sys.modules; "
        "import huggingface_hub.constants as hub; print(hub.HF_HUB_OFFLINE, hub.HF_HUB_DISABLE_TELEMETRY)"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "True"]


async def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder(tmp_path / "m")
    tokenizer = make_tokenizer()
    rows = len(tokenizer)
    tokenizer.add_tokens(["<one>", "<two>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    monkeypatch.setattr(loading, "read_model", lambda *_: pytest.fail("the weights were read"))
    with pytest.raises(BackendError, match=f"makes ids up to {rows + 1}, .* {rows} ids.*resize_token_embeddings"):
        await LocalBackend(_job(folder), tmp_path).start()


@pytest.mark.parametrize(
    ("path", "words"),
    [("Qwen/Qwen3-0.6B", "looks like the name of a model on a hub"), ("/nothing/there", "found no such folder")],
)
async def test_what_is_no_model_folder_is_refused_in_the_words_of_a_folder_s_own_check(
    tmp_path: Path, path: str, words: str
) -> None:
    with pytest.raises(BackendError, match=words):
        await LocalBackend(_job(Path(path)), tmp_path).start()
