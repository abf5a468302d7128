"""General words for what the user brought mean that and nothing else; what bears another name is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from research.design.compiler import accept_hypotheses
from research.errors import BadTopic
from research.planners.context import EnvironmentSpec, PlannerContext, environment_specs
from research.planners.llm import LlmPlanner
from research.planners.prompts import find_omission
from research.planners.rules import RulesPlanner
from research.planners.topic import normalize_topic
from research.proposals.actions import Propose, ProposeDesign
from research.proposals.flags import RequestedComparison
from tests.research.planners.test_llm import Dying

STOCK, SHOP = "stock@9ee1c0bc8381", "shop@123456789012"
KNOWN = (*environment_specs(), EnvironmentSpec(STOCK, "counting a stock", ("counting", "stock"), "the number is right"))
MODEL = {"kind": "path", "path": "/models/smollm2-135m", "warm_start_steps": 0, "sha256": None}
PROPOSAL = {
    "action": "propose",
    "hypotheses": [{
        "mechanism": "m", "variable": "learning_rate", "control": 0.001, "treatment": 0.003, "direction": "increase",
        "predicted_low": 0.0, "predicted_high": 0.2, "probability": 0.5, "smallest_effect": 0.1, "falsifier": "f",
    }],
}  # fmt: skip


def about(words: str, *, brought: bool = True, **facts: Any) -> PlannerContext:
    """Return the digest of a topic that ends in these words, with the environment by a flag unless told otherwise."""
    wanted = RequestedComparison(environment=STOCK, custom_environments=(STOCK,)) if brought else RequestedComparison()
    return PlannerContext(
        f"does a higher learning rate help {words}", 720.0, 58.0, 2, wanted=wanted, environments=KNOWN, **facts
    )


FACTS: dict[str, dict[str, Any]] = {
    "flag": {}, "nothing": {"brought": False}, "model": {"fixed": {"model": MODEL}},
    "job": {"fixed": {"max_tokens": 8}},
}  # fmt: skip
"""What is given beside the topic: an environment by a flag but for `nothing`, and a model or a job."""


def by_rules(digest: PlannerContext) -> tuple[str, tuple[str, ...]]:
    planner = RulesPlanner()
    proposed = planner.act(digest, lambda action: None)
    assert {entry.variable for entry in proposed.action.hypotheses} == {"learning_rate"}
    designed = planner.act(replace(digest, search=True), lambda action: None)
    return designed.action.environment, proposed.not_tested


def by_llm(digest: PlannerContext) -> None:
    """Ask a language model; raises BadTopic where it is not asked at all."""
    LlmPlanner("m", Dying([None])).act(digest, lambda action: None)


def passed_over(digest: PlannerContext, environment: str) -> str | None:
    claims = accept_hypotheses(Propose.model_validate(PROPOSAL))
    return find_omission(replace(digest, hypotheses=claims), ProposeDesign(environment=environment))


def refused(digest: PlannerContext) -> str:
    with pytest.raises(BadTopic, match=r"^expected .*; found .*; ") as caught:
        by_rules(digest)
    assert "\n" not in caught.value.message
    return caught.value.message


MEANT = {
    "flag": [
        "in my environment?", "in our own environment", "on my tasks", "in this game", "in our new env",
        "in my data set", "on this benchmark", "in my custom environment", "in a custom environment",
        "in my stock environment", "in stock, my environment", "in our counting game", "in stock", f"in {STOCK}?",
        f"in my environment {STOCK}",
    ],
    "model": [
        "with my model", "this model", "our own language model", "my pretrained model in my environment",
        "SmolLM2-135M", "my smollm2-135m on my task", "my LLM",
    ],
    "job": ["with my job", "under the base job", "with this job file", "in my game with my job"],
}  # fmt: skip
NOT_HERE = {
    "not here": {
        "flag": [
            "in my shop environment", "in my gsm8k environment", "on gsm8k", "in another environment",
            "in my other environment", "in my environments", "in my environment called shop",
            "in my environment (shop)", "in my guessing game", "in my harder tasks",
        ],
        "nothing": ["in my environment", "on our tasks", "with my model", "in my stock environment"],
    },
    "a model": {
        "model": [
            "qwen2.5-7b", "smollm2-360m", "smollm2", "a 7B model", "a larger model", "my other model",
            "my model qwen", "my 7B model", "my models",
        ],
    },
    "found 'shop'": {
        "flag": ["in my environment shop", "in shop", "in the shop environment", "in the game shop"],
        "nothing": ["in the environment shop", "in shop", "in the shop environment", "in the game shop"],
    },
    f"found --env {STOCK}": {"flag": ["on arith"]},
}  # fmt: skip


@pytest.mark.parametrize(("given", "words"), [(given, words) for given in MEANT for words in MEANT[given]])
def test_general_words_mean_what_was_given(given: str, words: str) -> None:
    digest = about(words, **FACTS[given])
    assert by_rules(digest) == (STOCK, ())
    by_llm(digest)
    if given == "flag":
        assert passed_over(digest, STOCK) is None
    if given == "job":
        assert "job" in refused(about(words.replace("my game", "stock")))


@pytest.mark.parametrize(
    ("told", "given", "words"),
    [(told, given, words) for told, rows in NOT_HERE.items() for given in rows for words in rows[given]],
)
def test_another_than_was_given_stays_refused(told: str, given: str, words: str) -> None:
    digest = about(words, **FACTS[given])
    message = refused(digest)
    assert told in message
    assert told != f"found --env {STOCK}" or "arith" in message
    if told in ("not here", "a model"):
        with pytest.raises(BadTopic, match=told):
            by_llm(digest)


@pytest.mark.parametrize("words", ["in stock", "on ./stock", "on ../stock", "in my stock environment", f"on {STOCK}"])
def test_what_the_topic_alone_names_is_what_is_studied(words: str) -> None:
    assert by_rules(replace(about(words), wanted=RequestedComparison(custom_environments=(STOCK,)))) == (STOCK, ())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("in FrozenLake", True), ("in the frozen lake", True), ("on FrozenLake-v1", True),
        ("in my FrozenLake environment", True), ("in frozen lake tasks", True), ("in FrozenLake-v2", False),
        ("in FrozenLake8x8", False), ("in Blackjack", False), ("on lake", False),
    ],
)  # fmt: skip
def test_one_of_another_package_is_called_by_words_of_its_address(words: str, found: bool) -> None:
    name = "gymnasium-frozenlake-v1-is_slippery-false@0123456789ab"
    known = (*KNOWN, EnvironmentSpec(name, "t", ("gymnasium-frozenlake-v1-is_slippery-false",), "m"))
    wanted = RequestedComparison(environment=name, custom_environments=(name,))
    digest = replace(about(words), wanted=wanted, environments=known)
    if found:
        assert RulesPlanner().act(digest, lambda action: None).not_tested == ()
        by_llm(digest)
    else:
        refused(digest)


@pytest.mark.parametrize("words", [f"in {SHOP}", f"in the environment {SHOP}."])
def test_a_full_name_is_one_word_whatever_its_digits(words: str) -> None:
    known = (*KNOWN, EnvironmentSpec(SHOP, "a shop", ("shop",), "sold"))
    digest = PlannerContext(f"does a higher learning rate help {words}", 720.0, 58.0, 2, environments=known)
    assert RulesPlanner().act(digest, lambda action: None).not_tested == ()
    assert passed_over(digest, SHOP) is None
    assert f"names the environment {SHOP}" in str(passed_over(digest, STOCK))


@pytest.mark.parametrize("name", ["rate", "higher", "help", "mine"])
def test_a_model_that_is_called_by_a_word_of_topics_leaves_the_word_alone(name: str) -> None:
    digest = about("in stock", fixed={"model": {**MODEL, "path": f"/models/{name}"}})
    assert normalize_topic(digest) == digest.topic
