"""What the containers of an attempt had made when it was killed: it is put where the next attempt looks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from research.attempts.cleanup import end_containers
from research.isolation.mode import Containers
from research.results.attempt_files import AttemptFolder
from research.results.during import read_during, write_during
from sandboxes import Result, SandboxError
from tests.research.results.test_during import made_by

LABELS = {"study": "s1", "run_id": "r1", "attempt": "2"}


class Left:
    """The containers of an installation, of which one left something."""

    def __init__(self, path: Path, name: str = "ajet-s1-r1-a2-evaluator-during") -> None:
        self._path, self._name = path, name
        self.reaped: list[Mapping[str, str]] = []

    def reap(self, labels: Mapping[str, str]) -> list[str]:
        self.reaped.append(labels)
        return []

    def adopt(self, name: str) -> Left | None:
        assert self.reaped, "it hands over what it has when it ends"
        return self if name == self._name else None

    def results(self) -> dict[str, Result]:
        return {"evaluation.json": Result(self._path, "0" * 64, 1)} if self._path.exists() else {}


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    folder = AttemptFolder(tmp_path / "attempt")
    write_during(folder.evaluation("during"), [made_by(1, 2)])
    write_during(tmp_path / "left", [made_by(2, 4)])
    return folder


def ended(path: Path, folder: AttemptFolder, **said: Any) -> list[int]:
    end_containers(cast(Containers, Left(path, **said)), LABELS, folder)
    return [each.policy_version for each in read_during(folder.evaluation("during"))]


def test_evaluations_of_a_killed_attempt_are_put_beside_those_it_was_given(
    tmp_path: Path, folder: AttemptFolder
) -> None:
    assert ended(tmp_path / "left", folder) == [2, 4]
    assert ended(tmp_path / "left", folder) == [2, 4]


@pytest.mark.parametrize("case", ["an outcome", "another attempt's", "nothing left", "damaged"])
def test_nothing_is_taken_that_is_not_the_killed_attempts(tmp_path: Path, folder: AttemptFolder, case: str) -> None:
    if case == "an outcome":
        folder.outcome.write_text("{}")
    elif case == "nothing left":
        (tmp_path / "left").unlink()
    elif case == "damaged":
        (tmp_path / "left").write_text(json.dumps({"evaluations": [4]}))
    named = {"name": "ajet-s1-r1-a1-evaluator-during"} if case == "another attempt's" else {}
    assert ended(tmp_path / "left", folder, **named) == [2]


def test_what_cannot_be_kept_now_is_kept_later(tmp_path: Path, folder: AttemptFolder) -> None:
    place = folder.evaluation("during")
    before = place.read_bytes()
    place.unlink()
    place.mkdir()
    with pytest.raises(SandboxError, match="evaluations"):
        ended(tmp_path / "left", folder)
    place.rmdir()
    place.write_bytes(before)
    assert ended(tmp_path / "left", folder) == [2, 4]
