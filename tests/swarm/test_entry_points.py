"""What packages bring by entry points: names without imports, one line for what cannot be had, servers by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.errors import InvalidRequest
from swarm.job import Job
from swarm.plugins import BACKENDS, PLANNERS, BrokenEntryPoint, backend_names, list_known, load
from swarm.rendering.messages import BackendError
from swarm.server.service import make_backend, require_backend
from tests.outside import install


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = install(tmp_path / "outside")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_names_are_listed_after_ajets_own_and_nothing_is_imported(outside: Path) -> None:
    (outside / "outside_of_ajet.py").write_text("raise RuntimeError('imported')")
    assert backend_names() == ("local", "fake", "verl", "broken", "failing", "outside")
    assert list_known(PLANNERS, ()) == ("broken", "failing", "misnamed", "outside")


def test_a_name_that_ajet_has_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "p", {BACKENDS: {"fake": "outside_of_ajet:failing"}})))
    assert list_known(BACKENDS, ("local", "fake", "verl")) == ("local", "fake", "verl")
    assert make_backend(Job(backend="fake"), tmp_path).model_name == "fake"


def test_a_backend_of_a_package_is_made_by_its_name(outside: Path, tmp_path: Path) -> None:
    assert make_backend(Job(backend="outside"), tmp_path).model_name == "made-outside"


@pytest.mark.parametrize(("name", "said"), [
    ("nothing", r"backend: expected one of local, fake, verl, broken, failing, outside; found 'nothing'"),
    ("broken", r"to be imported \(outside_of_nothing:backend, of outside\); found ModuleNotFoundError"),
    ("failing", r"could not be made: RuntimeError: no such luck"),
])  # fmt: skip
def test_a_backend_that_cannot_be_had_is_one_line(outside: Path, tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(BackendError, match=said) as refused:
        make_backend(Job(backend=name), tmp_path)
    assert "\n" not in str(refused.value)


def test_a_server_refuses_a_job_of_an_unknown_backend_by_the_known_names(outside: Path) -> None:
    require_backend("outside")
    with pytest.raises(InvalidRequest, match=r"failing, outside; found") as refused:
        require_backend("vllm")
    assert refused.value.param == "backend"


def test_two_packages_that_bring_one_name_are_both_named(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = install(tmp_path / "other", {BACKENDS: {"outside": "outside_of_ajet:failing"}}, "another")
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(BrokenEntryPoint, match=r"another \(outside_of_ajet:failing\) and outside \("):
        load(BACKENDS, "outside")
