"""How an attempt begins: from what an earlier one left, or from nothing, by the code with which that ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from research.files import read_json, write_json
from research.isolation.mode import Containers
from research.runs.files import (
    AttemptFolder,
    AttemptProgress,
    Evaluation,
    due_versions,
    evaluations_before,
    find_kept_file,
    missing_versions,
    read_evaluations,
    write_evaluations,
)
from research.runs.resume import WAYS, end_containers, plan_resume, transfer_files
from sandboxes import SandboxError
from studies import AttemptState, RunState
from studies.records.runs import BLAMELESS_CODES, EVIDENCE_CODES, INVALID_CODES, WORST_CODES
from tests.research.factories import edit, make_order, with_run, with_schedule


class Tries:
    """Attempts at one run, of which only the folders are there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.order = make_order(models=str(path / "models"), steps=24)
        self.run = RunState(self.order.run_id, self.order.spec)

    def folder(self, number: int) -> AttemptFolder:
        return AttemptFolder(self._path / f"a{number}" / "attempt")

    def leave(self, code: str = "lost", evaluation: str | None = None, resumes: int | None = None) -> None:
        """Have an attempt end whose folder holds what a server keeps; there it is only moved."""
        number = len(self.run.attempts) + 1
        began = "2026-01-01T00:00:00+00:00"
        ended = AttemptState(number, f"a{number}", began, "failed", code, seconds=1.0, resumes=resumes)
        self.run = dataclasses.replace(self.run, attempts=(*self.run.attempts, ended))
        folder = self.folder(number)
        folder.server.mkdir(parents=True)
        (folder.server / "store.sqlite3").write_text(f"of attempt {number}")
        write_json(folder.spec, self.order.model_dump(mode="json"))
        whole = {"environment": "guess", "split": "hidden", "policy_version": 0, "episodes": []}
        folder.evaluation("initial").write_text(json.dumps(whole) if evaluation is None else evaluation)


@pytest.fixture
def tries(tmp_path: Path) -> Tries:
    return Tries(tmp_path)


def test_taking_over_again_changes_nothing(tries: Tries) -> None:
    tries.leave()
    for _ in range(2):
        transfer_files(tries.folder(1), tries.folder(2))
        assert not tries.folder(1).server.exists()
        assert (tries.folder(2).server / "store.sqlite3").read_text() == "of attempt 1"
        assert read_json(tries.folder(2).evaluation("initial")) == read_json(tries.folder(1).evaluation("initial"))


def older(path: Path) -> None:
    """As it was written before attempts went on from others."""
    edit(path, lambda value: [value.pop(name) for name in ("resumes", "initial_sha256")])


@pytest.mark.parametrize("spoil", [older, lambda path: path.write_text("{"), Path.unlink])
def test_a_server_that_may_have_kept_no_metrics_is_not_gone_on_from(
    tries: Tries, spoil: Callable[[Path], object]
) -> None:
    """The next attempt's log would lack the steps that an earlier version's server had made."""
    tries.leave()
    spoil(tries.folder(1).spec)
    begins = plan_resume(tries.run, tries.folder)
    assert (begins.resumes, "older versions" in begins.why) == (None, True)


def test_a_folder_that_a_server_holds_is_left_to_it(tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.runs.resume.LETS_GO_S", 0.0)
    tries.leave("server_died")
    with FileLock(tries.folder(1).server / "server.lock"):
        begins = plan_resume(tries.run, tries.folder)
    assert (begins.resumes, "still holds" in begins.why) == (None, True)


@pytest.mark.parametrize("evaluation", ["", "{}", '{"environment": "guess"}', None])
def test_who_did_not_finish_a_first_evaluation_or_stands_still_is_not_gone_on_from(
    tries: Tries, evaluation: str | None
) -> None:
    tries.leave(evaluation=evaluation)
    if evaluation is None:  # a training that is to stand still is seen from its first step
        assert plan_resume(tries.run, tries.folder).resumes == 1
        still = with_run(tries.order, job={**tries.order.spec.job, "learning_rate": 0}).spec
        tries.run = dataclasses.replace(tries.run, spec=still)
    assert plan_resume(tries.run, tries.folder).resumes is None


@pytest.mark.parametrize(
    ("made", "known"), [((2, 4), True), ((2,), True), ((4,), False), ((), False), ("damaged", False), ("none", False)]
)
def test_a_run_begins_anew_whose_evaluations_before_its_last_sign_of_life_were_lost(
    tries: Tries, made: tuple[int, ...] | str, known: bool
) -> None:
    tries.order = with_schedule(tries.order, every=2)
    tries.run = RunState(tries.order.run_id, tries.order.spec)
    tries.leave()
    folder = tries.folder(1)
    folder.progress.write_text(AttemptProgress(stage="train", step=4, steps=24, seconds=1.0).model_dump_json())
    if made == "damaged":
        folder.evaluation("during").write_text('{"evaluations": [3]}')
    elif not isinstance(made, str):
        write_evaluations(folder.evaluation("during"), [made_by(1, version) for version in made])
    begins = plan_resume(tries.run, tries.folder)
    assert (begins.resumes == 1, bool(begins.during_sha256), "were lost" in begins.why) == (known, known, not known)
    if known:
        transfer_files(folder, tries.folder(2))
        assert tries.folder(2).kept.read_bytes() == folder.evaluation("during").read_bytes()


LABELS = {"study": "s1", "run_id": "r1", "attempt": "2"}


@dataclass
class Left:
    path: Path
    name: str = "ajet-s1-r1-a2-evaluator-during"
    reaped: list[Mapping[str, str]] = field(default_factory=list)

    def reap(self, labels: Mapping[str, str]) -> list[str]:
        self.reaped.append(labels)
        return []

    def adopt(self, name: str) -> Left | None:
        assert self.reaped  # it hands over what it has when it ends
        return self if name == self.name else None

    def results(self) -> dict[str, Path]:
        return {"evaluation.json": self.path} if self.path.exists() else {}


@pytest.fixture
def folder(tmp_path: Path) -> AttemptFolder:
    folder = AttemptFolder(tmp_path / "attempt")
    write_evaluations(folder.evaluation("during"), [made_by(1, 2)])
    write_evaluations(tmp_path / "left", [made_by(2, 4)])
    return folder


def ended(path: Path, folder: AttemptFolder, **said: Any) -> list[int]:
    end_containers(cast(Containers, Left(path, **said)), LABELS, folder)
    return [each.policy_version for each in read_evaluations(folder.evaluation("during"))]


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


def test_evaluations_of_a_killed_attempt_are_put_beside_its_own_once_and_later_if_not_now(
    tmp_path: Path, folder: AttemptFolder
) -> None:
    place = folder.evaluation("during")
    before = place.read_bytes()
    place.unlink()
    place.mkdir()
    with pytest.raises(SandboxError, match="evaluations"):
        ended(tmp_path / "left", folder)
    place.rmdir()
    place.write_bytes(before)
    for _ in range(2):
        assert ended(tmp_path / "left", folder) == [2, 4]


def test_every_end_that_can_be_has_a_way_on_and_a_reason() -> None:
    assert WAYS.keys() == {*INVALID_CODES, *BLAMELESS_CODES, "stopped"}
    assert all(why for _, why in WAYS.values())


BESIDE = ("lost", "stopped", "client_killed", "evaluator_died", "disk_full", "engine_gone")
PERHAPS = ("server_died", "server_silent", "timeout", "attempt_died", "steps_missing")
IN_DOUBT = ("foreign_training", "server_refused", "server_failed", *WORST_CODES, *EVIDENCE_CODES, "never heard of")


@pytest.mark.parametrize("code", [*BESIDE, *PERHAPS, *IN_DOUBT])
def test_what_lay_beside_the_server_is_gone_on_from_and_what_its_record_may_have_caused_once(
    tries: Tries, code: str
) -> None:
    tries.leave(code)
    first = plan_resume(tries.run, tries.folder)
    tries.leave(code, resumes=1)
    again = plan_resume(tries.run, tries.folder)
    assert (first.resumes, again.resumes) == (None if code in IN_DOUBT else 1, 2 if code in BESIDE else None)
    assert (bool(first.why), "attempt 2" in again.why) == (True, code in PERHAPS)


STEPS = 8


def made_by(attempt: int, version: int) -> Evaluation:
    """Return an evaluation that tells who made it."""
    play = {"task_id": "t", "sample": attempt, "success": attempt % 2 == 0, "reward": 0.0}
    found: dict[str, Any] = {"environment": "guess", "split": "hidden", "policy_version": version, "episodes": [play]}
    return Evaluation.model_validate(found)


@given(st.lists(st.tuples(st.integers(0, STEPS), st.integers(0, STEPS), st.booleans()), max_size=5))
def test_however_often_it_is_gone_on_each_version_has_the_evaluation_of_its_last_weights(
    lives: list[tuple[int, int, bool]],
) -> None:
    """Each life goes on from at most where the one before came, trains so many steps, and may hand nothing over."""
    spec, reached = with_schedule(make_order(steps=STEPS), every=2), 0
    expected: dict[int, int] = {}
    with TemporaryDirectory() as place:
        source: AttemptFolder | None = None
        for number, (back, trained, lost) in enumerate([*lives, (0, STEPS, False)]):
            folder, begins = AttemptFolder(Path(place) / str(number)), max(0, reached - back)
            kept = find_kept_file(source) if source is not None else None
            found = evaluations_before([] if kept is None else read_evaluations(kept), begins)
            if missing := missing_versions(spec, found, begins):
                assert any(version not in expected for version in missing)
                begins, found = 0, []  # it starts from nothing
            expected = {version: who for version, who in expected.items() if version < begins}
            write_evaluations(folder.evaluation("during"), found)
            reached = min(STEPS, begins + trained)
            new = [version for version in spec.evaluate_after if begins <= version < reached]
            if not lost:
                write_evaluations(folder.evaluation("during"), [*found, *(made_by(number, one) for one in new)])
                expected |= dict.fromkeys(new, number)
            source = folder
        assert source is not None
        last = read_evaluations(source.evaluation("during"))
    assert {each.policy_version: each.episodes[0].sample for each in last} == expected
    assert missing_versions(spec, last, reached) == [
        version for version in due_versions(spec, reached) if version not in expected
    ]
