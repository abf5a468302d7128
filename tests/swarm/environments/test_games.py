"""The built-in games: sums, the guessing game, and the market, where a price is looked up with a tool."""

from __future__ import annotations

import json
import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Demonstration, Message, Split, calling, said
from swarm.environments.custom import demonstrations_from_json, demonstrations_to_json
from swarm.environments.registry import (
    GUESSES,
    TURNS,
    Arith,
    ArithGame,
    Guess,
    GuessGame,
    Market,
    MarketGame,
    WordsAndSums,
)


def market() -> MarketGame:
    return MarketGame("fig", 7, {"fig": 12, "tea": 3})


@pytest.mark.parametrize(("text", "success"), [
    ("19", True), ("= 19", True), ("18", False), ("12", False), ("", False), ("19 or 20", False), ("nineteen", False),
    ("190", False),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["arith", "market"])
def test_only_the_sum_or_total_alone_is_right(kind: str, text: str, success: bool) -> None:
    game = ArithGame(7, 12) if kind == "arith" else market()
    assert game.answer(said(text)) == []
    assert (game.outcome().reward, game.outcome().success) == (float(success), success)


def test_a_pair_and_its_mirror_image_are_in_one_split() -> None:
    of = {(t.data["left"], t.data["right"]): split for split in get_args(Split) for t in Arith().tasks(split)}
    assert all(of[right, left] == split for (left, right), split in of.items())


def test_examples_stand_before_a_question_as_turns_and_its_answer_counts_alone() -> None:
    tasks = WordsAndSums().tasks("hidden")
    assert {task.kind for task in tasks} == {"sum", "last word"}
    for task in tasks[::40]:
        right = str(WordsAndSums().oracle(task, []))
        for text, success in ((right, True), (f" {right}\n", True), (f"{right}.", False), (f"It is {right}", False)):
            play = WordsAndSums().game(task)
            opening = play.opening()
            assert [message["role"] for message in opening] == ["user", "assistant"] * 6 + ["user"]
            assert play.answer(said(text)) == []
            assert (play.outcome().reward, play.outcome().success) == (float(success), success)


def test_the_same_words_in_another_order_are_in_one_split() -> None:
    of = [
        {tuple(sorted(task.data["question"].split())) for task in WordsAndSums().tasks(split)}
        for split in get_args(Split)
    ]
    assert sum(map(len, of)) == len(set().union(*of))


def test_a_wrong_guess_is_answered_with_what_is_still_possible_and_the_right_one_ends_the_play() -> None:
    game = GuessGame(5, 14, 9)
    for guess, window in (("7", "7 below 15"), ("my guess: 12.", "7 below 12"), ("3", "7 below 12")):
        assert game.answer(said(guess)) == [{"role": "user", "content": f"above {window}"}]
    assert game.answer(said("9")) == []
    game.answer(said("3"))
    assert (game.outcome().reward, game.outcome().success) == (1.0, True)


def test_the_last_guess_or_one_that_is_none_ends_the_play_and_no_answer_counts_afterwards() -> None:
    game = GuessGame(1, 18, 18)
    assert [game.answer(said("1")) == [] for _ in range(GUESSES)] == [False] * (GUESSES - 1) + [True]
    assert not game.outcome().success
    game = GuessGame(5, 14, 9)
    game.answer(said("no idea"))
    assert game.answer(said("9")) == []
    assert not game.outcome().success


def test_narrowing_down_earns_half_the_share_of_bits_once() -> None:
    game = GuessGame(1, 16, 16)
    for _ in range(2):
        game.answer(said("8"))  # 8 of 16 numbers are left: 1 of 4 bits is known
        assert game.outcome().reward == pytest.approx(0.5 * 1 / 4)


@given(st.data(), st.lists(st.integers(0, 30), min_size=1, max_size=GUESSES))
def test_the_secret_is_always_among_the_possible(data: st.DataObject, guesses: list[int]) -> None:
    task = data.draw(st.sampled_from(Guess().tasks("train")))
    low, high, secret = task.data["low"], task.data["high"], task.data["secret"]
    game = GuessGame(low, high, secret)
    earned = game.outcome().reward
    for guess in guesses:
        game.answer(said(str(guess)))
        left, right = game.possible
        assert low <= left <= secret <= right <= high
        assert game.outcome().reward >= earned
        earned = game.outcome().reward


NO_JSON = calling("price")
NO_JSON["tool_calls"][0]["function"]["arguments"] = "{fig"


@pytest.mark.parametrize(("call", "told"), [
    (calling("price", item="tea"), "3"), (calling("price", item="gold"), "no such item"),
    (calling("price", item=["fig"]), "no such item"), (calling("price"), "no such item"),
    (calling("weigh", item="fig"), "no tool weigh"), (NO_JSON, "no JSON"),
])  # fmt: skip
def test_a_call_that_goes_wrong_is_told_and_can_be_made_again(call: Message, told: str) -> None:
    play = market()
    (answer,) = play.answer(call)
    assert answer["role"] == "tool"
    assert told in answer["content"]
    assert play.answer(calling("price", item="fig")) == [{"role": "tool", "tool_call_id": "call-1", "content": "12"}]
    assert play.answer(said("19")) == []
    assert play.outcome().success


def test_every_call_of_a_message_is_answered_until_calls_are_used_up() -> None:
    both = {**calling("price", item="fig"), "tool_calls": [
        *calling("price", "a", item="fig")["tool_calls"], *calling("price", "b", item="tea")["tool_calls"],
    ]}  # fmt: skip
    play = market()
    told = [[(m["tool_call_id"], m["content"]) for m in play.answer(both)] for _ in range(TURNS)]
    assert told == [[("a", "12"), ("b", "3")]] * (TURNS - 1) + [[]]
    assert play.answer(said("19")) == []
    assert not play.outcome().success


def test_the_oracle_of_the_market_always_wins() -> None:
    for task in Market().tasks("hidden")[::7]:
        play = Market().game(task)
        messages = following = play.opening()
        while following:
            best = Market().oracle(task, messages)
            answer = best if isinstance(best, dict) else said(best)
            following = play.answer(answer)
            messages = [*messages, answer, *following]
        assert play.outcome().success


def test_demonstrations_carry_the_tools_that_the_policy_is_shown_and_come_back_from_json() -> None:
    plays = [game.demonstrate(game.tasks("train")[3], random.Random(3)) for game in (Market(), Guess())]
    assert [[tool["function"]["name"] for tool in play.tools] for play in plays] == [["price"], []]
    assert list(plays[0].messages) == Market().imitate(Market().tasks("train")[3], random.Random(3))
    written = demonstrations_to_json(plays)
    assert [(list(p.messages), list(p.tools)) for p in demonstrations_from_json(written.encode())] == [
        (list(p.messages), list(p.tools)) for p in plays
    ]
    assert json.loads(written)[1] == plays[1].messages
    assert demonstrations_from_json(b'[[{"role": "user", "content": "hi"}]]') == (
        Demonstration([{"role": "user", "content": "hi"}]),
    )
