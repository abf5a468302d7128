from __future__ import annotations

from pathlib import Path

from studies.records.design import CONFIGURATION
from studies.records.statements import sentences, statement
from studies.verdicts.wording import find_unequal_training, question_of
from tests.golden import assert_golden
from tests.studies.measured import MeasuredStudy, measured_design, metric
from tests.studies.synthetic import Synthetic
from tests.studies.synthetic import hypothesis as claim


def test_what_is_tested_is_said_by_code_from_the_typed_fields() -> None:
    decrease, alike = {"direction": "decrease"}, {"sought": "equivalence"}
    time = metric("episodes", 0.7)
    said = [
        *sentences([claim(), claim(**alike)], "guess", 0.1),
        *sentences([claim(variable="episodes_per_step", matched="episodes")]),
        *sentences([claim(**decrease)], "guess", 512.0, time),
        *sentences([claim(**alike)], None, 512.0, time),
        statement(CONFIGURATION, {"lr": 0.1, "steps": 2}, {"lr": 0.2, "steps": 4}, "decrease"),
    ]
    assert_golden("\n".join(said))


def test_a_study_knows_what_was_asked_and_what_is_left_out(study: Synthetic, tmp_path: Path) -> None:
    state = study.whole()
    question = question_of(state)
    assert question.asked == state.topic
    assert len(question.tested) == len(state.hypotheses)
    assert_golden("\n".join(question.not_tested))
    assert [find_unequal_training(verdict) for verdict in state.verdicts] == [()]
    study = MeasuredStudy(tmp_path / "measured")
    study.create()
    study.lock(measured_design(metric("episodes", 0.7)))
    question = question_of(study.state())
    assert question.not_tested == ()
    assert_golden("\n".join(question.tested))
