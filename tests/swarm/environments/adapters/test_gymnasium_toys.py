"""gymnasium's toys as environments."""

from __future__ import annotations

import random

import pytest

from swarm.environments import Environment, Outcome, Task, said
from swarm.environments.adapters import adapted
from swarm.environments.bringing.drawing import LEAST, draw

pytestmark = pytest.mark.usefixtures("adapted_packages")
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
    environment = adapted(address)
    outcome = best_play(environment, environment.generate(5))
    assert outcome.success
    assert 0.99 < outcome.reward <= 1.0


def test_each_task_of_the_lake_has_a_map_that_the_player_sees() -> None:
    environment = adapted(LAKE)
    maps = [str(environment.generate(seed).data["opening"]) for seed in range(10)]
    assert len(set(maps)) > 5
    assert all("@" in each and "left edge" in each for each in maps)


@pytest.mark.parametrize("size", [3, 4, 5, 8])
@pytest.mark.parametrize("secret", [b"a" * 32, b"b" * 32, b"c" * 32])
def test_lakes_of_any_size_are_split_each_map_on_one_side(size: int, secret: bytes) -> None:
    environment = adapted(f"{LAKE}&size={size}&tasks=16")
    _, drawn = draw(environment, secret)
    maps = {split: {task.data["opening"] for task in tasks} for split, tasks in drawn.items()}
    assert {split: len(own) for split, own in maps.items()} == {split: len(tasks) for split, tasks in drawn.items()}
    assert not maps["train"] & maps["hidden"]
    assert len(maps["search"]) >= LEAST["search"]


def test_a_lake_of_one_map_on_slippery_ice_has_a_task_for_each_chance() -> None:
    _, drawn = draw(adapted("gymnasium:FrozenLake-v1?map_name=4x4&is_slippery=true&tasks=16"), b"a" * 32)
    assert len({task.data["chance"] for own in drawn.values() for task in own}) == 16 + 4 + 8


def test_an_answer_that_names_no_action_ends_the_play_with_the_least_reward() -> None:
    environment = adapted("gymnasium:Taxi-v4")
    game = environment.game(environment.generate(1))
    assert game.answer(said("no idea")) == []
    outcome = game.outcome()
    assert (outcome.reward, outcome.success) == (0.0, False)


def test_the_action_that_is_named_last_is_taken() -> None:
    environment = adapted("gymnasium:CliffWalking-v1")
    game = environment.game(environment.generate(1))
    (seen,) = game.answer(said("Not right, for there is the cliff: up"))
    assert seen["content"].startswith("row 2 column 0")


def test_demonstrations_are_whole_plays_that_reach_the_goal_only_at_times() -> None:
    environment, rng = adapted(LAKE), random.Random(0)
    ends = []
    for seed in range(30):
        task = environment.generate(seed)
        game = environment.game(task)
        for message in environment.imitate(task, rng):
            if message["role"] == "assistant":
                game.answer(message)
        ends.append(game.outcome().success)
    assert 0.2 < sum(map(bool, ends)) / len(ends) < 0.95


def test_a_toy_that_does_not_say_what_follows_has_no_oracle() -> None:
    environment = adapted("gymnasium:Blackjack-v1")
    game = environment.game(environment.generate(1))
    assert not environment.has("oracle")
    assert game.answer(said("stick")) == []
