"""The local backend as a server uses it: start, speak, learn, stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.backends.local import LocalBackend
from swarm.backends.protocols import Backend, BackendError, Batch, Sampling, TrainEpisode, TrainRow
from swarm.job import Job, PathModel, TinyModel
from tests.swarm.backends.local.models import save_folder


def _job(folder: Path) -> Job:
    return Job(model=PathModel(path=str(folder)), max_context=64, max_concurrency=4)


async def _episode(backend: Backend, number: int) -> TrainEpisode:
    renderer = backend.renderer
    text = renderer.render([{"role": "user", "content": f"say {number}"}], generation_prompt=True)
    ids = renderer.encode(text)
    sampled: list[int] = []
    logprobs: list[float] = []
    async for chunk in backend.engine.generate(f"r{number}", ids, Sampling(max_tokens=5, stop_ids=(renderer.eos_id,))):
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
    sampled = [token async for chunk in backend.engine.generate("r", [1, 2], rule) for token in chunk.ids]
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
