"""What every built-in environment promises, and addresses of those whose package is missing."""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Environment, Outcome, Split, environments, get_environment, said
from swarm.environments.adapters import ADAPTERS, adapted, slug
from swarm.environments.base import split_of
from swarm.errors import InvalidRequest
from tests.golden import refused

SPLITS: tuple[Split, ...] = get_args(Split)
NAMES = sorted(environments())


@pytest.fixture(params=NAMES)
def environment(request: pytest.FixtureRequest) -> Environment:
    return get_environment(request.param)


def outcomes(environment: Environment, plays: int, split: Split = "hidden") -> Iterator[Outcome]:
    """Judge the scripted player's plays by fresh games."""
    rng = random.Random(0)
    tasks = environment.tasks(split)
    for _ in range(plays):
        task = rng.choice(tasks)
        game = environment.game(task)
        for message in environment.imitate(task, rng):
            if message["role"] == "assistant":
                game.answer(message)
        yield game.outcome()


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    assert NAMES == ["arith", "guess", "market"]
    with pytest.raises(InvalidRequest, match=r"arith, guess, market.*'chess'"):
        get_environment("chess")


def test_ids_and_problems_are_unique_over_all_splits_and_come_in_the_same_order(environment: Environment) -> None:
    tasks = [task for split in SPLITS for task in environment.tasks(split)]
    assert len(environment.tasks("hidden")) >= 200
    assert len({task.id for task in tasks}) == len({json.dumps(task.data, sort_keys=True) for task in tasks})
    assert len({task.id for task in tasks}) == len(tasks)
    assert tasks == [task for split in SPLITS for task in type(environment)().tasks(split)]


def test_the_scripted_player_is_mediocre(environment: Environment) -> None:
    rate = sum(outcome.success for outcome in outcomes(environment, 2000)) / 2000
    assert 0.2 < rate < 0.5


def test_rewards_lie_between_0_and_1_and_1_means_success(environment: Environment) -> None:
    for outcome in outcomes(environment, 300):
        assert 0.0 <= outcome.reward <= 1.0
        assert outcome.success == (outcome.reward == 1.0)


def test_a_demonstration_is_what_the_game_said_to_the_players_answers(environment: Environment) -> None:
    rng = random.Random(1)
    for task in environment.tasks("train")[:50]:
        game = environment.game(task)
        messages = environment.imitate(task, rng)
        replayed = game.opening()
        for message in messages:
            if message["role"] == "assistant":
                replayed.append(message)
                replayed += game.answer(message)
        assert replayed == messages


def test_the_same_random_numbers_make_the_same_demonstration(environment: Environment) -> None:
    task = environment.tasks("train")[0]
    assert environment.imitate(task, random.Random(7)) == environment.imitate(task, random.Random(7))


def test_unknown_text_ends_a_play_without_success(environment: Environment) -> None:
    for text in ("", "I pass", "7 or 8", "é"):
        game = environment.game(environment.tasks("train")[0])
        assert game.answer(said(text)) == []
        assert not game.outcome().success


@given(st.text())
def test_every_key_has_one_split_that_never_changes(key: str) -> None:
    assert split_of(key) == split_of(key)
    assert split_of(key) in SPLITS


def test_splits_have_about_their_shares() -> None:
    found = [split_of(f"key {number}") for number in range(10_000)]
    shares = {split: found.count(split) / len(found) for split in SPLITS}
    assert shares == pytest.approx({"train": 0.60, "search": 0.15, "hidden": 0.25}, abs=0.02)


def test_a_split_is_fixed_for_good() -> None:
    """Another assignment would move tasks of finished studies between splits."""
    found = [split_of(f"guess-1-10-{secret}") for secret in range(1, 7)]
    assert found == ["train", "hidden", "hidden", "search", "train", "hidden"]


def test_a_kind_of_task_is_told_of_every_task_and_each_kind_has_enough_to_tell_it_apart(
    environment: Environment,
) -> None:
    kinds = Counter(task.kind for task in environment.tasks("hidden"))
    assert kinds.total() == len(environment.tasks("hidden"))
    assert min(kinds.values()) >= 20, kinds


@pytest.mark.parametrize("scheme", ADAPTERS)
def test_a_missing_package_is_told_with_the_line_to_type(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = ADAPTERS[scheme]
    monkeypatch.setitem(sys.modules, adapter.package, None)
    with refused(InvalidRequest, adapter.package, adapter.example, f"pip install '{adapter.requirement}'"):
        adapted(adapter.example)


def test_a_long_address_is_cut_to_a_name() -> None:
    name = slug("reasoning-gym:" + "+".join(["leg_counting"] * 9))
    assert len(name) <= 64
    assert name[-1].isalnum()
