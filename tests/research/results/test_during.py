"""What a chain of attempts keeps of evaluations during training: of each policy the one of the weights that count."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.runs.files import (
    AttemptFolder,
    Evaluation,
    NewestSuccess,
    before,
    due,
    lacking,
    read_during,
    to_keep,
    write_during,
)
from tests.research.factories import make_order, with_schedule

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
            kept = to_keep(source) if source is not None else None
            found = before([] if kept is None else read_during(kept), begins)
            if missing := lacking(spec, found, begins):
                assert any(version not in expected for version in missing)
                begins, found = 0, []  # it starts from nothing
            expected = {version: who for version, who in expected.items() if version < begins}
            write_during(folder.evaluation("during"), found)
            reached = min(STEPS, begins + trained)
            new = [version for version in spec.evaluate_after if begins <= version < reached]
            if not lost:
                current = read_during(folder.evaluation("during"))
                write_during(folder.evaluation("during"), [*current, *(made_by(number, version) for version in new)])
                expected |= dict.fromkeys(new, number)
            source = folder
        assert source is not None
        last = read_during(source.evaluation("during"))
    assert {each.policy_version: each.episodes[0].sample for each in last} == expected
    assert lacking(spec, last, reached) == [version for version in due(spec, reached) if version not in expected]


def test_the_newest_success_is_told_once_and_no_file_and_half_a_file_are_none(tmp_path: Path) -> None:
    path = tmp_path / "evaluation-during.json"
    shown = NewestSuccess(path)
    assert shown.newest() is None
    write_during(path, [made_by(1, 2), made_by(2, 4)])
    assert shown.newest() == 1.0
    assert shown.newest() is None
    path.write_text("{")
    assert shown.newest() is None


@pytest.mark.parametrize("versions", [(4, 2), (2, 2)])
def test_evaluations_that_do_not_grow_are_none(tmp_path: Path, versions: tuple[int, ...]) -> None:
    path = tmp_path / "evaluation-during.json"
    write_during(path, [])
    texts = ",".join(made_by(0, version).model_dump_json() for version in versions)
    path.write_text(f'{{"evaluations": [{texts}]}}')
    with pytest.raises(ValueError, match="growing"):
        read_during(path)
