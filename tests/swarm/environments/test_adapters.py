"""Environments of gymnasium, reasoning-gym and textarena by their addresses, or a line that says why not."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from swarm.environments import Environment, Outcome, Task, said
from swarm.environments.adapters import adapt
from swarm.environments.building import LEAST, draw
from swarm.environments.textarena_games import ArenaGame
from swarm.errors import InvalidRequest
from tests.swarm.clients.packages import ADAPTED

pytestmark = pytest.mark.usefixtures("adapted_packages")


@pytest.mark.parametrize(("address", "reason"), [
    ("gymnasium:FrozenLak-v1", "Did you mean"), ("gymnasium:CartPole-v1", "CartPole-v1 sees Box"),
    ("gymnasium:Blackjack-v1", "says what follows"),
    ("gymnasium:Pendulum-v1", "Pendulum-v1 takes Box"),
    ("gymnasium:FrozenLake-v1?ice=1", "unexpected keyword argument 'ice'"),
    ("gymnasium:FrozenLake-v1?p=0", "p 0.4 to 1"), ("gymnasium:FrozenLake-v1?size=2", "size 3 to 16"),
    ("gymnasium:FrozenLake-v1?map_name=4x4&is_slippery=false", "is one task; leave map_name"),
    ("reasoning-gym:chainsum", "mean chain_sum"),
    ("reasoning-gym:chain_sum?max_term=3", "mean max_terms"),
    ("reasoning-gym:chain_sum?allow_negation=5", "expected allow_negation=true"),
    ("reasoning-gym:chain_sum?max_terms=-3", "max_terms must be >= min_terms"),
    ("reasoning-gym:chain_sum+leg_counting?max_terms=3", "mean chain_sum.max_terms"),
    ("reasoning-gym:ransom_note", "every process"),
    ("reasoning-gym:chain_sum?tasks=3", "expected tasks=16 or more"),
    ("textarena:TicTacToe-v0", "players than one"),
    ("textarena:SpiteAndMalice-v0", "for one player"),
    ("textarena:Mastermin-v0", "mean Mastermind-v0"),
    ("textarena:Mastermind-v0?colour=3", "unexpected keyword argument 'colour'"),
])  # fmt: skip
def test_what_cannot_be_had_or_put_into_words_is_refused(address: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        adapt(address)


LAKE = "gymnasium:FrozenLake-v1?is_slippery=false&max_episode_steps=20"


def best_play(environment: Environment, task: Task) -> Outcome:
    game = environment.game(task)
    messages = list(game.opening())
    following = messages
    while following:
        move = said(str(environment.oracle(task, messages)))
        following = list(game.answer(move))
        messages = [*messages, move, *following]
    return game.outcome()


@pytest.mark.parametrize("address", [LAKE, "gymnasium:Taxi-v4", "gymnasium:CliffWalking-v1"])
def test_the_best_play_succeeds_and_is_worth_most(address: str) -> None:
    environment = adapt(address)
    outcome = best_play(environment, environment.generate(5))
    assert outcome.success
    assert 0.99 < outcome.reward <= 1.0


@pytest.mark.parametrize("size", [3, 4, 5, 8])
@pytest.mark.parametrize("secret", [b"a" * 32, b"b" * 32, b"c" * 32])
def test_lakes_of_any_size_are_split_each_map_on_one_side(size: int, secret: bytes) -> None:
    environment = adapt(f"{LAKE}&size={size}&tasks=16")
    _, drawn = draw(environment, secret)
    maps = {split: {task.data["opening"] for task in tasks} for split, tasks in drawn.items()}
    assert {split: len(own) for split, own in maps.items()} == {split: len(tasks) for split, tasks in drawn.items()}
    assert not maps["train"] & maps["hidden"]
    assert len(maps["search"]) >= LEAST["search"]


def test_the_action_that_is_named_last_is_taken_and_an_answer_that_names_none_ends_the_play() -> None:
    environment = adapt("gymnasium:CliffWalking-v1")
    game = environment.game(environment.generate(1))
    (seen,) = game.answer(said("Not right: up"))
    assert seen["content"].startswith("row 2 column 0")
    assert game.answer(said("no idea")) == []
    assert (game.outcome().reward, game.outcome().success) == (0.0, False)


def judged(address: str, task: Task, answer: str) -> float:
    game = adapt(address).game(task)
    assert game.opening()
    assert game.answer(said(answer)) == []
    return game.outcome().reward


@pytest.mark.parametrize("name", ["chain_sum", "acre", "word_ladder", "prime_factorization", "game_of_life_halting"])
def test_the_package_judges_its_own_answer_best_and_none_as_worth_nothing(name: str) -> None:
    environment = adapt(address := f"reasoning-gym:{name}")
    task = environment.generate(2**62 + 5)
    answers = (str(environment.oracle(task, ())), "no tags")
    assert [judged(address, task, answer) for answer in answers] == [1.0, 0.0]


@pytest.mark.slow
def test_a_task_is_its_question_without_the_answer_and_any_process_makes_the_entry_again() -> None:
    task = adapt("reasoning-gym:leg_counting").generate(11)
    assert set(task.data) == {"question"}
    code = (
        "from swarm.environments.adapters import adapt\n"
        "print(adapt('reasoning-gym:leg_counting').generate(11).data['question'])"
    )
    other = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(ADAPTED.there())!r})\n{code}"],
        capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7", "PYTHONPATH": "."},
    )  # fmt: skip
    assert other.stdout.strip() == str(task.data["question"]).strip()


def begun(address: str, seed: int) -> ArenaGame:
    environment = adapt(address)
    game = environment.game(environment.generate(seed))
    assert isinstance(game, ArenaGame)
    game.opening()
    return game


def test_a_second_invalid_move_ends_the_game_as_the_package_has_it_and_before_that_it_is_worth_nothing() -> None:
    game = begun("textarena:Mastermind-v0", 5)
    (following,) = game.answer(said("hm"))
    assert "invalid move" in following["content"]
    assert begun("textarena:Mastermind-v0", 5).outcome().reward == 0.0
    assert game.answer(said("hm")) == []
    assert game.outcome().facts["invalid move"] == 1.0


def test_plays_at_once_draw_as_they_would_alone_and_nobody_else_sees_it() -> None:
    def heard(games: list[ArenaGame]) -> list[list[str]]:
        said_to = [[str(game.answer(said(move))) for game in games] for move in ("[up]", "[left]", "[down]")]
        return [list(each) for each in zip(*said_to, strict=True)]

    random.seed(3)
    before = random.getstate()
    alone = [heard([begun("textarena:2048-v0", seed)])[0] for seed in (1, 2)]
    assert heard([begun("textarena:2048-v0", seed) for seed in (1, 2)]) == alone
    assert random.getstate() == before
