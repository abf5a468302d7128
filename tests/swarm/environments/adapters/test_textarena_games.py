"""textarena's games for one player as environments."""

from __future__ import annotations

import random

import pytest

from swarm.environments import said
from swarm.environments.adapters import adapted
from swarm.environments.adapters.textarena_games import ArenaGame

pytestmark = pytest.mark.usefixtures("adapted_packages")


def begun(address: str, seed: int) -> ArenaGame:
    environment = adapted(address)
    game = environment.game(environment.generate(seed))
    assert isinstance(game, ArenaGame)
    game.opening()
    return game


def test_a_game_is_played_over_turns_and_the_package_says_what_follows() -> None:
    (following,) = begun("textarena:Mastermind-v0", 5).answer(said("[1 2 3 4]"))
    assert following["role"] == "user"
    assert "black peg(s)" in following["content"]


def test_the_right_move_ends_the_game_with_the_full_reward() -> None:
    environment = adapted("textarena:GuessTheNumber-v0?max_number=60&max_turns=60")
    game = environment.game(environment.generate(5))
    game.opening()
    for number in range(1, 61):
        if not game.answer(said(f"[{number}]")):
            break
    outcome = game.outcome()
    assert outcome.reward == environment.solved_at == 1.0


def test_a_second_invalid_move_ends_the_game_as_the_package_has_it() -> None:
    game = begun("textarena:Mastermind-v0", 5)
    (following,) = game.answer(said("hm"))
    assert "invalid move" in following["content"]
    assert game.answer(said("hm")) == []
    assert game.outcome().facts["invalid move"] == 1.0


def test_a_game_that_has_not_ended_is_worth_nothing() -> None:
    assert begun("textarena:Mastermind-v0", 5).outcome().reward == 0.0


def test_plays_at_once_draw_as_they_would_alone_and_nobody_else_sees_it() -> None:
    def heard(games: list[ArenaGame]) -> list[list[str]]:
        said_to = [[str(game.answer(said(move))) for game in games] for move in ("[up]", "[left]", "[down]")]
        return [list(each) for each in zip(*said_to, strict=True)]

    random.seed(3)
    before = random.getstate()
    alone = [heard([begun("textarena:2048-v0", seed)])[0] for seed in (1, 2)]
    assert heard([begun("textarena:2048-v0", seed) for seed in (1, 2)]) == alone
    assert random.getstate() == before


def test_seeds_that_begin_the_same_game_are_one_task() -> None:
    environment = adapted("textarena:TowerOfHanoi-v0")
    assert environment.generate(1).data == environment.generate(2).data
    codes = adapted("textarena:Mastermind-v0")
    assert codes.generate(1).data != codes.generate(2).data
