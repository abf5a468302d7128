"""A job names its backend; one that cannot be made is refused in one line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from swarm.backends.fake.backend import FakeBackend
from swarm.backends.protocols import BackendError
from swarm.job import Job
from swarm.server.service.backend_factory import make_backend


def test_the_fake_backend_is_made_for_a_fake_job(tmp_path: Path) -> None:
    assert isinstance(make_backend(Job(backend="fake"), tmp_path), FakeBackend)


def _without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == missing else found(name, *rest)
    )


def test_a_missing_library_names_the_extra_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "torch")
    with pytest.raises(BackendError, match=r"needs torch.*ajet\[local\]"):
        make_backend(Job(backend="local"), tmp_path)


def test_peft_is_missed_only_by_a_job_with_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "peft")
    make_backend(Job(backend="local"), tmp_path)
    with pytest.raises(BackendError, match=r"with a lora_rank needs peft.*ajet\[local\]"):
        make_backend(Job(backend="local", lora_rank=4), tmp_path)
