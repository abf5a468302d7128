"""Sums."""

from typing import get_args

import pytest

from swarm.environments import Split, said
from swarm.environments.arith import Arith, ArithGame


@pytest.mark.parametrize(
    ("text", "success"),
    [("19", True), ("= 19", True), ("18", False), ("", False), ("19 or 20", False), ("nineteen", False)],
)
def test_only_the_sum_alone_is_right(text: str, success: bool) -> None:
    game = ArithGame(7, 12)
    assert game.answer(said(text)) == []
    assert (game.outcome().reward, game.outcome().success) == (float(success), success)


def test_the_question_is_the_sum() -> None:
    assert ArithGame(7, 12).opening() == [{"role": "user", "content": "7+12"}]


def test_a_pair_and_its_mirror_image_are_in_one_split() -> None:
    of = {(t.data["left"], t.data["right"]): split for split in get_args(Split) for t in Arith().tasks(split)}
    assert all(of[right, left] == split for (left, right), split in of.items())
