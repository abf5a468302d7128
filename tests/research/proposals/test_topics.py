"""A topic is answered by the metric it names, in the direction it asks for; what else it names is said."""

from __future__ import annotations

import pytest

from research.controller.evaluation import ask_planner
from research.errors import BadMetric, BadTopic, DesignRefused
from research.planners.context import SUCCESS_ALONE, PlannerContext
from research.planners.protocol import PlannerTurn
from research.planners.rules import RulesPlanner
from research.proposals.actions import Propose
from research.proposals.metric_choice import TABLE, MetricChoice, RequestedMetric, find_metric
from studies.metrics import kinds
from swarm.job import Job


def turn_on(topic: str, flag: str | None = None) -> PlannerTurn:
    said = find_metric(topic)
    asked = RequestedMetric.parse(flag) if flag else None if said is None else said.asked
    metric = SUCCESS_ALONE if asked is None else MetricChoice(asked, lambda job: 30.0).metric((Job(),), 512)
    digest = PlannerContext(
        topic=topic, seconds_left=99_999.0, seconds_per_run=58.0, parallel=2, requested_metric=asked, metric=metric,
        effect_given=False,
    )  # fmt: skip
    return ask_planner(RulesPlanner(), digest, lambda action: None)


def read(topic: str) -> RequestedMetric:
    said = find_metric(topic)
    assert said is not None, topic
    assert said.asked.words
    return said.asked


def proposed(topic: str, flag: str | None = None) -> tuple[Propose, tuple[str, ...]]:
    turn = turn_on(topic, flag)
    return turn.action, turn.not_tested


def refused(topic: str) -> str:
    with pytest.raises((BadTopic, BadMetric, DesignRefused), match=r"^expected .*; found ") as caught:
        turn_on(topic)
    assert "\n" not in caught.value.message
    return caught.value.message


EQUIVALENCE = "no difference"
ANSWERED = [
    # topic, its metric, and how the treatment changes the metric if it does what is asked (None: only the metric is)
    ("which is less likely to collapse, grpo or reinforce++?", "collapse", "decrease"),
    ("Does a larger group size make GRPO learn the guessing game faster?", "episodes:0.6", "decrease"),
    ("Does a group size of 16 learn guess faster than 4?", "episodes:0.6", "decrease"),
    ("Is lr 3e-3 more sample-efficient than 1e-3 on arith?", "episodes:0.6", "decrease"),
    ("is a larger group less sample-efficient?", "episodes:0.6", "increase"),
    ("does a larger group reduce sample efficiency?", "episodes:0.6", "increase"),
    ("does a larger group reduce sample complexity?", "episodes:0.6", "decrease"),
    ("does a KL penalty make GRPO learn more slowly?", "episodes:0.6", "increase"),
    ("does a KL penalty of 0.1 slow down learning?", "episodes:0.6", "increase"),
    ("does a KL penalty learn less quickly?", "episodes:0.6", "increase"),
    ("is RLOO not as fast as GRPO?", "episodes:0.6", "increase"),
    ("Is GRPO slower than RLOO?", "episodes:0.6", "increase"),
    ("does a higher learning rate speed up training?", "episodes:0.6", "decrease"),
    ("does a larger group reduce the learning speed?", "episodes:0.6", "increase"),
    ("does a larger group converge faster?", "episodes:0.6", "decrease"),
    ("does a larger group learn in fewer steps?", "episodes:0.6", "decrease"),
    ("which learning rate, 1e-3 or 3e-3, needs the fewest episodes to 70 % on market?", "episodes:0.7", "decrease"),
    ("does RLOO need more episodes to 70% than GRPO?", "episodes:0.7", "increase"),
    ("does RLOO reach 80 percent in fewer episodes than GRPO?", "episodes:0.8", "decrease"),
    ("does RLOO reach 0.8 success sooner than GRPO?", "episodes:0.8", "decrease"),
    ("does a larger group get to 50 % accuracy faster?", "episodes:0.5", "decrease"),
    ("does lr 3e-3 reach a 60 % success rate faster than 1e-3?", "episodes:0.6", "decrease"),
    ("is lr 1e-3 faster than 3e-3 to 0.9?", "episodes:0.9", "decrease"),
    ("group size 4, 8 and 16: which reaches 70 % first?", "episodes:0.7", "decrease"),
    ("does a larger group increase the number of episodes to 80 %?", "episodes:0.8", "increase"),
    ("is the number of episodes to 70 % lower with lr 3e-3 than with 1e-3?", "episodes:0.7", "decrease"),
    ("group size 4 vs 16, wall-clock to 0.7 on guess", "seconds:0.7", "decrease"),
    ("does a larger group reduce the time to reach 70 %?", "seconds:0.7", "decrease"),
    ("does lr 3e-3 take less time to reach 70% than lr 1e-3?", "seconds:0.7", "decrease"),
    ("does lr 3e-3 take longer to reach 70% than lr 1e-3?", "seconds:0.7", "increase"),
    ("does lr 3e-3 learn faster in wall-clock time?", "seconds:0.6", "decrease"),
    ("group size 4 vs 16 by area under the learning curve", "area", "increase"),
    ("does lr 3e-3 learn faster by area under the curve?", "area", "increase"),
    ("does a larger group reduce the area under the curve?", "area", "decrease"),
    ("which has the larger area under the curve below 0.6, group size 4 or 16?", "area:0.6", "increase"),
    ("Is a larger group cheaper on guess?", "tokens", "decrease"),
    ("is a larger group more expensive?", "tokens", "increase"),
    ("is a smaller group more token-efficient?", "tokens", "decrease"),
    ("does group size 16 use fewer tokens per solved task than 4?", "tokens", "decrease"),
    ("is training more stable with a KL penalty of 0.1?", "collapse", "decrease"),
    ("are larger groups less stable on arith?", "collapse", "increase"),
    ("does a larger group hurt stability?", "collapse", "increase"),
    ("does a larger group collapse less often?", "collapse", "decrease"),
    ("does a higher learning rate collapse more?", "collapse", "increase"),
    ("does a lower learning rate make collapse rarer?", "collapse", "decrease"),
    ("does a KL penalty reduce the risk of collapse?", "collapse", "decrease"),
    ("does clip-higher prevent collapse?", "collapse", "decrease"),
    ("Does a larger group raise the reward on market?", "reward", "increase"),
    ("does a higher learning rate lower the mean reward on guess?", "reward", "decrease"),
    ("does a larger group on guess generalise better to arith?", "transfer:arith", "increase"),
    ("does a larger group transfer worse to arith?", "transfer:arith", "decrease"),
    ("does a higher lr raise the success rate?", "success", "increase"),
    ("does group size change the final score?", "success", "increase"),
    ("does lr 3e-3 give a lower final score?", "success", "decrease"),
    ("Does removing the std normalization in GRPO help?", None, "increase"),
    ("Does a group size of 16 beat 4?", None, "increase"),
    ("LoRA rank 4 vs 16 vs full finetuning on guess", None, "increase"),
    ("learning rate 1e-2 vs 1e-3 on guess with 80 steps", None, "increase"),
    ("Does training longer help more than a larger batch at the same number of episodes?", None, "increase"),
    ("does a larger group solve more of the tasks?", None, "increase"),
    ("does lr 3e-3 not slow learning down?", "episodes:0.6", EQUIVALENCE),
    ("does a larger group size not make learning slower?", "episodes:0.6", EQUIVALENCE),
    ("show that a larger group does not learn faster", "episodes:0.6", EQUIVALENCE),
    ("is RLOO as fast as GRPO?", "episodes:0.6", EQUIVALENCE),
    ("is a larger group no faster?", "episodes:0.6", EQUIVALENCE),
    ("is a larger group no less stable?", "collapse", EQUIVALENCE),
    ("is a larger group not cheaper? show that it does not help", "tokens", EQUIVALENCE),
    ("which needs the fewest episodes to reach 85 % hidden success?", "episodes:0.85", None),
    ("does a larger batch reach 65 % faster?", "episodes:0.65", None),
    ("does a larger batch reach 65 % accuracy faster?", "episodes:0.65", None),
    ("does a larger batch raise success to 60 %, by accuracy?", "success", None),
    ("fewer episodes to 0.8 with lr 3e-3?", "episodes:0.8", None),
    ("temperature 0.7 to 0.9: which learns faster?", "episodes:0.6", None),
    ("temperature below 0.6: which has the larger area under the curve?", "area", None),
    ("is a larger group cheaper at the end?", "tokens", None),
    ("does a larger group on guess generalise better to sums?", "transfer:arith", None),
    ("does a larger group help?", None, None),
    ("group size 4 vs 16", None, None),
    ("does a KL penalty prevent entropy collapse?", None, None),
    ("", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "metric", "direction"), ANSWERED)
def test_metric_and_direction_are_those_that_are_asked_for(
    topic: str, metric: str | None, direction: str | None
) -> None:
    assert (read(topic).text if metric else find_metric(topic)) == metric
    if direction is None:
        return
    action, left = proposed(topic)
    sought = {claim.sought for claim in action.hypotheses}
    if direction == EQUIVALENCE:
        assert sought == {"equivalence"}
    else:
        assert {claim.direction for claim in action.hypotheses} == {direction}
        assert sought <= {"difference", "either"}
        assert not any("another metric" in text for text in left)


@pytest.mark.parametrize("topic", ["which learning rate learns fastest?", "what helps most to learn faster on guess?"])
def test_a_search_may_be_for_what_is_fastest(topic: str) -> None:
    assert read(topic).text == "episodes:0.6"
    assert proposed(topic)[0].search


@pytest.mark.parametrize(
    ("topic", "flag", "judged", "direction", "words", "way"),
    [
        ("does a higher learning rate learn faster and end higher?",
         None, "episodes:0.6", "decrease", "end higher", "success"),
        ("does RLOO learn faster and reach a higher final score than GRPO?",
         None, "episodes:0.6", "decrease", "reach a higher final score", "success"),
        ("does a larger group solve more tasks and learn faster?",
         None, "episodes:0.6", "decrease", "solve more tasks", "success"),
        ("is a larger group cheaper and more stable?", None, "tokens", "decrease", "more stable", "collapse"),
        ("is a larger group faster but less stable?", None, "episodes:0.6", "decrease", "less stable", "collapse"),
        ("does a KL penalty make training more stable and not slower?",
         None, "collapse", "decrease", "slower", "episodes:0.6"),
        ("does a larger group learn faster at the cost of a lower final accuracy?",
         None, "episodes:0.6", "decrease", "lower final accuracy", "success"),
        ("by area under the curve and final score: group size 4 vs 16",
         None, "area", "increase", "final score", "success"),
        ("does a larger group reach 60 % in fewer episodes and in less wall-clock time?",
         None, "episodes:0.6", "decrease", "less wall-clock time", "seconds:0.6"),
        ("does a larger group generalise better to arith and learn faster?",
         None, "transfer:arith", "increase", "faster", "episodes:0.6"),
        ("does lr 3e-3 raise the final score faster?", None, "success", "increase", "faster", "episodes:0.6"),
        ("is a larger group faster and more stable?", "collapse", "collapse", "decrease", "faster", "episodes:0.6"),
        ("does a larger group learn faster?", "success", "success", "increase", "faster", "episodes:0.6"),
        ("does a larger group raise the final score?",
         "episodes:0.8", "episodes:0.8", "decrease", "raise the final score", "success"),
        ("is a larger group cheaper?", "reward", "reward", "increase", "cheaper", "tokens"),
        ("does a larger group reach 70 % faster?",
         "area:0.5", "area:0.5", "increase", "faster, reach 70 %", "episodes:0.7"),
    ],
)  # fmt: skip
def test_of_two_metrics_one_is_judged_and_the_other_is_said_first_with_the_way_to_it(
    topic: str, flag: str | None, judged: str, direction: str, words: str, way: str
) -> None:
    assert flag or read(topic).text == judged
    action, left = proposed(topic, flag)
    assert {claim.direction for claim in action.hypotheses} == {direction}
    (said,) = left
    told = "nor is it measured" if way.startswith("episodes") else "the report has it among other measures"
    assert all(text in said for text in (words, told, f"--metric {way}.", "no verdict")), said


@pytest.mark.parametrize(
    ("topic", "flag", "asked"),
    [
        ("does a larger group reach 70 % faster?", "episodes:0.5", "episodes:0.7"),
        ("does a larger group generalise to market?", "transfer:arith", "transfer:market"),
    ],
)
def test_a_flag_that_names_another_threshold_than_the_topic_is_said(topic: str, flag: str, asked: str) -> None:
    (told,) = proposed(topic, flag)[1]
    assert (asked in told, flag in told, "--metric" in told) == (True, True, True)


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("does lr 3e-3 reach 60% and 80% faster than 1e-3?", "found '60% and 80%'"),
        ("does a larger group size learn 20 % faster?", "'20 % faster'; leave the amount"),
        ("does a larger group learn twice as fast?", "'twice as fast'; leave the amount"),
        ("does a larger group need 10x fewer episodes to 70 %?", "leave the amount"),
        ("does a larger group reach 70 %?", "found no word"),
        ("does a larger group generalise better?", "another environment"),
        ("does a KL penalty reduce the variance between seeds?", "variance between"),
        ("does a higher entropy bonus keep exploration up (entropy at the end)?", "entropy at the end"),
        ("Lernt GRPO mit einer höheren Lernrate schneller?", "English"),
        ("更大的组大小会让GRPO学得更快吗？", "English"),
        ("Does warm start steps 200 vs 400 change the final score?", "warm start steps"),
        ("grpo vs ppo", "'ppo'"), ("does my reward function with a format bonus help on guess?", "--planner llm"),
    ],
)  # fmt: skip
def test_what_no_metric_here_answers_is_refused_in_one_line(topic: str, told: str) -> None:
    assert told in refused(topic)


@pytest.mark.parametrize(
    ("topic", "question"),
    [
        ("is 16 faster than 4?", "is 16 better than 4?"), ("does it slow learning", "does it worse learning"),
        ("which is fastest?", "which is best?"), ("needs more episodes to 70 %", "worse"),
        ("by area under the curve", "by score"), ("less likely to collapse", "better"),
        ("does it prevent collapse", "does it prevent worse"),
    ],
)  # fmt: skip
def test_what_the_words_say_of_better_and_worse_stays(topic: str, question: str) -> None:
    assert find_metric(topic).question == question


def test_the_table_knows_every_word_by_which_a_kind_says_it_is_asked_for() -> None:
    listed = {row.kind for row in TABLE}
    for kind in kinds().values():
        for word in kind.words if kind.name in listed else ():
            assert read(f"which has {word} to 70 %").kind == kind.name, word
