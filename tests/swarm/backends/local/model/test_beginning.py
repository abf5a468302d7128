"""A training that begins with exported weights: they serve at once, and nothing else is taken for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.local import LocalBackend
from swarm.backends.protocols import BackendError
from swarm.job import Job
from swarm.models import folder_hash
from swarm.models.card import CARD
from swarm.server.service.backend_factory import make_backend
from tests.swarm.backends.exporting.test_folder import a_job, base, trained, written


async def begun(job: Job, models: Path) -> tuple[str, str]:
    """Return the hash of the weights that training begins with, and of those that serve."""
    backend = LocalBackend(job, models)
    await backend.start()
    try:
        return backend.provenance["weights"], str(backend.weights())
    finally:
        await backend.stop()


@pytest.mark.parametrize("rank", [0, 4])
async def test_training_begins_with_the_exported_weights(tmp_path: Path, rank: int) -> None:
    job = a_job(base(tmp_path / "base"), lora_rank=rank)
    await trained(job, tmp_path / "models", tmp_path / "saved")
    to, _ = written(job, tmp_path)
    on = a_job(tmp_path / "base", start_from=str(to))
    loaded = LocalBackend(on, tmp_path / "models")
    await loaded.start()
    before = LocalBackend(job, tmp_path / "models")
    await before.start()
    before.learner.load(tmp_path / "saved")
    try:
        assert loaded.learner.version == 0
        if not rank:  # an adapter's export is merged, and hashes otherwise
            assert loaded.weights() == before.weights()
        assert loaded.provenance["weights"] != before.provenance["weights"]
    finally:
        await loaded.stop()
        await before.stop()


async def test_a_tiny_model_goes_on_from_its_export(tmp_path: Path) -> None:
    tiny: dict[str, Any] = {"kind": "tiny", "warm_start_steps": 2, "hidden_size": 16, "layers": 1}
    job = Job.model_validate({"model": tiny, "environment": "guess", "device": "cpu", "max_context": 64})
    await trained(job, tmp_path / "models", tmp_path / "saved")
    to, _ = written(job, tmp_path)
    first, other = await begun(job, tmp_path / "models"), job.model_copy(update={"start_from": str(to)})
    assert (await begun(other, tmp_path / "models"))[0] != first[0]
    assert other.digest() != job.digest()
    elsewhere = other.model_copy(update={"environment": "arith"})
    with pytest.raises(BackendError, match=r"expected the (tokenizer|architecture) of the job's model"):
        await begun(elsewhere, tmp_path / "models")


async def test_what_is_not_of_the_job_s_model_is_refused_at_boot(tmp_path: Path) -> None:
    own, other = base(tmp_path / "base"), base(tmp_path / "other", "qwen3")
    with pytest.raises(BackendError, match=r"start_from: expected the architecture of the job's model, found .*, not "):
        await begun(a_job(own, start_from=str(other)), tmp_path / "models")
    with pytest.raises(BackendError, match=r"start_from: .*no such folder"):
        await begun(a_job(own, start_from=str(tmp_path / "nowhere")), tmp_path / "models")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(BackendError, match=r"start_from: .*an adapter alone: merge it"):
        await begun(a_job(own, start_from=str(adapter)), tmp_path / "models")


async def test_a_folder_that_is_not_what_was_exported_is_refused(tmp_path: Path) -> None:
    own, copied = base(tmp_path / "base"), base(tmp_path / "copied")
    (copied / CARD).write_text(json.dumps({"sha256": folder_hash(copied)}))
    await begun(a_job(own, start_from=str(copied)), tmp_path / "models")
    (copied / CARD).write_text(json.dumps({"sha256": "0" * 64}))
    with pytest.raises(BackendError, match=r"as it was exported .* found other files"):
        await begun(a_job(own, start_from=str(copied)), tmp_path / "models")
    (copied / CARD).write_text("{")
    with pytest.raises(BackendError, match=r"no card of an export"):
        await begun(a_job(own, start_from=str(copied)), tmp_path / "models")


def test_a_backend_that_begins_with_no_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"expected no start_from with the backend fake"):
        make_backend(Job(backend="fake", start_from="/models/mine"), tmp_path)
