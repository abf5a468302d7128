"""A design is evaluated once, and what differs from it is evaluated again, however alike it looks."""

from __future__ import annotations

from typing import Any, cast

from research.proposals.actions import Action, Constant, ProposeDesign
from research.study.evaluation import ActionCheck


class Counting(ActionCheck):
    """Notes what is evaluated, and accepts it."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), cast(Any, None))
        self.evaluated: list[Action] = []

    def _evaluate(self, action: Action) -> None:
        self.evaluated.append(action)


def design(value: object) -> ProposeDesign:
    fixed = Constant(field="normalize_advantage", value=cast(Any, value))
    return ProposeDesign.model_construct(constants=(fixed,))


def test_an_answer_that_was_corrected_from_0_to_false_is_evaluated_again() -> None:
    check, wrong, right = Counting(), design(0), design(False)
    assert wrong == right, "as Python has it"
    check(wrong)
    check(right)
    check(right)
    assert check.evaluated == [wrong, right]
    assert check.evaluated[1] is right
