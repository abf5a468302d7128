"""Words of a topic that ask for a metric: one table, whose words leave what they say of better and worse."""

from __future__ import annotations

import pytest

from research.metrics.reading import metric_in
from research.metrics.words import TABLE
from studies.metrics import kinds


@pytest.mark.parametrize(
    ("topic", "asked"),
    [
        ("Does a larger group size make GRPO learn the guessing game faster?", "episodes:0.6"),
        ("does a higher learning rate slow learning?", "episodes:0.6"),
        ("which is more sample-efficient, 4 or 16?", "episodes:0.6"),
        ("which needs the fewest episodes to 70 %, lr 1e-3 or 3e-3?", "episodes:0.7"),
        ("which needs the fewest episodes to reach 85 % hidden success?", "episodes:0.85"),
        ("does a larger batch reach 65 % faster?", "episodes:0.65"),
        ("does a larger batch reach 65 % accuracy faster?", "episodes:0.65"),
        ("does a larger batch raise success to 60 %, by accuracy?", "success"),
        ("fewer episodes to 0.8 with lr 3e-3?", "episodes:0.8"),
        ("temperature 0.7 to 0.9: which learns faster?", "episodes:0.6"),
        ("group size 4 vs 16, wall-clock to 0.6", "seconds:0.6"),
        ("group size 4 vs 16 by area under the curve", "area"),
        ("group size 4 vs 16 by area under the curve below 0.6", "area:0.6"),
        ("temperature below 0.6: which has the larger area under the curve?", "area"),
        ("does lr 3e-3 raise the final score faster?", "success"),
        ("which is less likely to collapse, grpo or reinforce++?", "collapse"),
        ("is training more stable with a KL penalty?", "collapse"),
        ("is a larger group cheaper at the end?", "tokens"),
        ("does a larger group on guess generalise better to sums?", "transfer:arith"),
        ("does a larger group raise the mean reward?", "reward"),
    ],
)
def test_a_topic_asks_by_its_words(topic: str, asked: str) -> None:
    read = metric_in(topic)
    assert read is not None
    assert read.asked.text == asked
    assert read.asked.words


@pytest.mark.parametrize(
    "topic", ["does a larger group help?", "group size 4 vs 16", "does a KL penalty prevent entropy collapse?", ""]
)
def test_a_topic_that_names_none_asks_for_none(topic: str) -> None:
    assert metric_in(topic) is None


@pytest.mark.parametrize(
    ("topic", "question"),
    [
        ("is 16 faster than 4?", "is 16 better than 4?"),
        ("does it slow learning", "does it worse learning"),
        ("which is fastest?", "which is best?"),
        ("needs more episodes to 70 %", "worse"),
        ("by area under the curve", "by score"),
        ("less likely to collapse", "better"),
        ("does it prevent collapse", "does it prevent worse"),
    ],
)
def test_what_the_words_say_of_better_and_worse_stays(topic: str, question: str) -> None:
    read = metric_in(topic)
    assert read is not None
    assert read.question == question


def test_the_table_knows_every_word_by_which_a_kind_says_it_is_asked_for() -> None:
    listed = {row.kind for row in TABLE}
    for kind in kinds().values():
        for word in kind.words if kind.name in listed else ():
            read = metric_in(f"which has {word} to 70 %")
            assert read is not None, word
            assert read.asked.kind == kind.name, word
