"""The guessing game."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import said
from swarm.environments.guess import GUESSES, Guess, GuessGame


def test_the_opening_names_the_window() -> None:
    assert GuessGame(5, 14, 9).opening() == [{"role": "user", "content": "above 4 below 15"}]


def test_a_wrong_guess_is_answered_with_what_is_still_possible() -> None:
    game = GuessGame(5, 14, 9)
    assert game.answer(said("7")) == [{"role": "user", "content": "above 7 below 15"}]
    assert game.answer(said("my guess: 12.")) == [{"role": "user", "content": "above 7 below 12"}]
    assert game.answer(said("3")) == [{"role": "user", "content": "above 7 below 12"}]


def test_finding_the_number_ends_the_play_with_reward_1() -> None:
    game = GuessGame(5, 14, 9)
    game.answer(said("7"))
    assert game.answer(said("9")) == []
    outcome = game.outcome()
    assert (outcome.reward, outcome.success) == (1.0, True)


def test_the_last_guess_ends_the_play() -> None:
    game = GuessGame(1, 18, 18)
    assert [game.answer(said("1")) == [] for _ in range(GUESSES)] == [False] * (GUESSES - 1) + [True]
    assert not game.outcome().success


def test_no_answer_counts_after_the_end() -> None:
    game = GuessGame(5, 14, 9)
    game.answer(said("no idea"))
    assert game.answer(said("9")) == []
    assert not game.outcome().success


def test_a_found_number_stays_found() -> None:
    game = GuessGame(5, 14, 9)
    game.answer(said("9"))
    game.answer(said("3"))
    assert game.outcome().success


def test_narrowing_down_earns_half_the_share_of_bits() -> None:
    game = GuessGame(1, 16, 16)
    game.answer(said("8"))  # 8 of 16 numbers are left: 1 of 4 bits is known
    game.answer(said("stuck"))
    assert game.outcome().reward == pytest.approx(0.5 * 1 / 4)


def test_a_repeated_guess_earns_nothing_more() -> None:
    game = GuessGame(1, 16, 16)
    game.answer(said("8"))
    before = game.outcome().reward
    game.answer(said("8"))
    assert game.outcome().reward == before


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


def test_halving_finds_nearly_every_number() -> None:
    """There is room to learn: the best play is far above the scripted player."""
    tasks = Guess().tasks("hidden")
    found = 0
    for task in tasks:
        game = Guess().game(task)
        assert isinstance(game, GuessGame)
        while game.answer(said(str(math.floor(sum(game.possible) / 2)))):
            pass
        found += game.outcome().success
    assert found / len(tasks) > 0.9


def test_the_player_never_guesses_outside_the_window() -> None:
    for task in Guess().tasks("train")[::7]:
        said = [m["content"] for m in Guess().imitate(task, random.Random(3)) if m["role"] == "assistant"]
        assert all(task.data["low"] <= int(text) <= task.data["high"] for text in said if text != "pass")
