"""The market: a price is looked up with a tool, and the total said."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from swarm.environments import Demonstration, Message, calling, said
from swarm.environments.brought import demonstrations_from_json, demonstrations_to_json
from swarm.environments.guess import Guess
from swarm.environments.market import TURNS, Market, MarketGame


def game() -> MarketGame:
    return MarketGame("fig", 7, {"fig": 12, "tea": 3})


def results(messages: Sequence[Message]) -> list[Any]:
    return [(message["role"], message["content"]) for message in messages]


def test_the_question_does_not_tell_the_price() -> None:
    assert game().opening() == [{"role": "user", "content": "fig, delivery 7"}]


def test_a_call_is_answered_with_the_price_and_the_total_is_a_success() -> None:
    play = game()
    assert play.answer(calling("price", item="fig")) == [{"role": "tool", "tool_call_id": "call-1", "content": "12"}]
    assert play.answer(said("19")) == []
    assert (play.outcome().reward, play.outcome().success) == (1.0, True)


@pytest.mark.parametrize("text", ["12", "19 or 20", "", "nineteen", "190"])
def test_only_the_total_alone_is_right(text: str) -> None:
    play = game()
    assert play.answer(said(text)) == []
    assert play.outcome().reward == 0.0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (calling("price", item="tea"), "3"),
        (calling("price", item="gold"), "no such item"),
        (calling("price", item=["fig"]), "no such item"),
        (calling("price"), "no such item"),
        (calling("weigh", item="fig"), "no tool weigh"),
    ],
)
def test_a_call_that_goes_wrong_is_told_and_can_be_made_again(call: Message, told: str) -> None:
    play = game()
    assert results(play.answer(call)) == [("tool", told)]
    assert results(play.answer(calling("price", item="fig"))) == [("tool", "12")]
    play.answer(said("19"))
    assert play.outcome().success


def test_arguments_that_are_no_json_are_told() -> None:
    call = calling("price")
    call["tool_calls"][0]["function"]["arguments"] = "{fig"
    assert "no JSON" in game().answer(call)[0]["content"]


def test_every_call_of_a_message_is_answered() -> None:
    both = {**calling("price", item="fig"), "tool_calls": [
        *calling("price", "a", item="fig")["tool_calls"], *calling("price", "b", item="tea")["tool_calls"],
    ]}  # fmt: skip
    assert [(m["tool_call_id"], m["content"]) for m in game().answer(both)] == [("a", "12"), ("b", "3")]


def test_calls_are_used_up_and_nothing_counts_after_the_end() -> None:
    play = game()
    ended = [play.answer(calling("price", item="fig")) == [] for _ in range(TURNS)]
    assert ended == [False] * (TURNS - 1) + [True]
    assert play.answer(said("19")) == []
    assert not play.outcome().success


def test_the_oracle_always_wins() -> None:
    market = Market()
    for task in market.tasks("hidden")[::7]:
        play = market.game(task)
        messages = play.opening()
        while True:
            best = market.oracle(task, messages)
            answer = best if isinstance(best, dict) else said(best)
            following = play.answer(answer)
            messages += [answer, *following]
            if not following:
                break
        assert play.outcome().success


def test_a_demonstration_carries_the_tools_that_the_policy_is_shown() -> None:
    task = Market().tasks("train")[0]
    play = Market().demonstrate(task, random.Random(0))
    assert [tool["function"]["name"] for tool in play.tools] == ["price"]
    assert list(play.messages) == Market().imitate(task, random.Random(0))


def test_demonstrations_come_back_from_json_and_those_without_tools_are_written_as_ever() -> None:
    plays = [
        environment.demonstrate(environment.tasks("train")[3], random.Random(3)) for environment in (Market(), Guess())
    ]
    written = demonstrations_to_json(plays)
    assert [(list(p.messages), list(p.tools)) for p in demonstrations_from_json(written.encode())] == [
        (list(p.messages), list(p.tools)) for p in plays
    ]
    assert json.loads(written)[1] == plays[1].messages
    assert demonstrations_from_json(b'[[{"role": "user", "content": "hi"}]]') == (
        Demonstration([{"role": "user", "content": "hi"}]),
    )
