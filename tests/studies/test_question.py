"""The question as asked, as tested, and what of it is not; and what two arms do not share."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.question import question_of, unequal, unequal_episodes
from studies.records.design import CONFIGURATION, Hypothesis, Metric
from studies.records.design_parts import Prediction
from studies.records.sentences import sentences, statement
from tests.studies.measured import MeasuredStudy, measured_design, metric
from tests.studies.synthetic import Synthetic


def claim(**fields: object) -> Hypothesis:
    known = {
        "id": "h1", "statement": "s", "variable": "group_size", "control": 4, "treatment": 16, "direction": "increase",
        "prediction": Prediction(low=0.0, high=0.1, probability=0.5),
    }  # fmt: skip
    return Hypothesis.model_validate({**known, **fields})


def test_what_is_tested_is_said_by_code_from_the_typed_fields() -> None:
    (said,) = sentences([claim()], "guess", 0.1)
    assert said == (
        "Whether group_size = 16 raises the hidden success by 0.1 or more, compared with group_size = 4, in guess."
    )
    (likeness,) = sentences([claim(sought="equivalence")], "guess", 0.1)
    assert "differs by less than 0.1, in guess: the verdict Equivalent is what is asked for." in likeness
    (matched,) = sentences([claim(variable="episodes_per_step", matched="episodes")])
    assert "after as many training episodes" in matched


def test_a_configuration_is_named_field_by_field() -> None:
    said = statement(CONFIGURATION, {"lr": 0.1, "steps": 2}, {"lr": 0.2, "steps": 4}, "decrease")
    assert said == "lr = 0.2, steps = 4 lowers the hidden success, compared with lr = 0.1, steps = 2."


def test_a_study_knows_what_was_asked_and_what_is_left_out(tmp_path: Path) -> None:
    state = Synthetic(tmp_path).whole()
    question = question_of(state)
    assert question.asked == state.topic
    assert len(question.tested) == len(state.hypotheses)
    assert question.not_tested == (
        '"faster" asks for training episodes until hidden success reaches a threshold; what is compared is hidden '
        "success.",
    )


def test_a_topic_that_is_answered_by_the_measure_it_asks_for_leaves_none_out(tmp_path: Path) -> None:
    study = MeasuredStudy(tmp_path)
    study.create()
    study.lock(measured_design(metric("episodes", 0.7)))
    question = question_of(study.state())
    assert question.not_tested == ()
    assert question.tested == (
        "Whether group_size = 16 needs fewer episodes to 0.7 hidden success than group_size = 4, in guess.",
    )


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (metric("seconds", 0.7), "a = 2 needs fewer seconds to 0.7 hidden success than a = 1."),
        (metric("area"), "a = 2 lowers the area under the hidden curve, compared with a = 1."),
        (metric("collapse"), "a = 2 lowers the share of trainings that collapse, compared with a = 1."),
        (metric("success"), "a = 2 lowers the hidden success, compared with a = 1."),
        (None, "a = 2 lowers the hidden success, compared with a = 1."),
    ],
)
def test_a_claim_names_its_measure(chosen: Metric | None, said: str) -> None:
    assert statement("a", 1, 2, "decrease", chosen) == said


def test_the_smallest_difference_of_interest_is_in_the_unit_of_a_time() -> None:
    (said,) = sentences([claim(direction="decrease")], "guess", 512.0, metric("episodes", 0.7))
    assert said == (
        "Whether group_size = 16 needs fewer episodes to 0.7 hidden success than group_size = 4, by 512 episodes or "
        "more, in guess."
    )
    (likeness,) = sentences([claim(sought="equivalence")], None, 512.0, metric("episodes", 0.7))
    assert "differs by less than 512 episodes" in likeness


@pytest.mark.parametrize(("left", "right", "said"), [(100, 100, None), (1280, 5120, "training episodes: 1,280 with a")])
def test_arms_with_other_episodes_are_named_with_both_amounts(left: float, right: float, said: str | None) -> None:
    found = unequal_episodes(("a", left), ("b", right))
    assert found is said if said is None else str(found).startswith(said)


def test_arms_that_share_their_training_have_nothing_to_name(tmp_path: Path) -> None:
    state = Synthetic(tmp_path).whole()
    assert state.design is not None
    assert all(not text.startswith("training episodes") for h in state.hypotheses for text in unequal(state, h))
