"""Which Python runs a server of a backend, and what is said where none can."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from research.errors import NotReady
from research.installation import base_job
from research.installation.base_job import VERL_PYTHON, python_of, require_backend


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is in another environment, as it is where Prefect is."""
    monkeypatch.setattr(base_job, "VERL_PACKAGES", ("a_package_that_nobody_has",))
    monkeypatch.delenv(VERL_PYTHON, raising=False)
    base_job._require_verl.cache_clear()


def written(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_other_backends_run_where_ajet_does() -> None:
    assert python_of("local") == python_of("fake") == sys.executable


@pytest.mark.usefixtures("elsewhere")
def test_where_nobody_names_the_environment_of_verl_the_way_to_it_is_said() -> None:
    with pytest.raises(NotReady, match=f"a_package_that_nobody_has.*export {VERL_PYTHON}=") as refused:
        require_backend("verl")
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("elsewhere")
def test_the_named_python_is_the_one_that_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERL_PYTHON, written(tmp_path, "exit 0"))
    require_backend("verl")
    assert python_of("verl") == str(tmp_path / "python")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("script", "said"),
    [("echo vllm ray", "missing: vllm ray"), ("echo no such thing >&2; exit 3", "no such thing"), ("", "python")],
)
def test_what_an_environment_lacks(script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERL_PYTHON, written(tmp_path, script) if script else str(tmp_path / "python"))
    with pytest.raises(NotReady, match=said):
        require_backend("verl")
