"""Rewards that can be had without solving, and an oracle that is none, are faults."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from research.environments.check import Player, faults, remarks
from research.environments.model_check import TRAINED, job_of
from swarm.job import Job


def players(**rewards: float) -> Mapping[str, Player]:
    named = {name.replace("_", " "): reward for name, reward in rewards.items()}
    return {
        name: Player(player=name, plays=8, reward=reward, success=reward, calls=1, characters=1, seconds=0)
        for name, reward in named.items()
    }


def test_an_environment_whose_oracle_is_best_and_whose_empty_answers_earn_nothing_is_sound() -> None:
    assert list(faults(players(oracle=1, demonstrations=0.4, empty_answers=0, random_answers=0.1), (0, 1))) == []


def test_a_reward_that_an_empty_answer_earns_is_a_fault() -> None:
    (fault,) = faults(players(oracle=1, empty_answers=0.8, random_answers=0.1), (0, 1))
    assert fault.startswith("an empty answer earns 0.8")


def test_a_success_that_an_empty_answer_has_for_half_the_reward_is_a_fault() -> None:
    found = {name: one.model_copy(update={"reward": 0.5}) for name, one in players(empty_answers=1.0).items()}
    (fault,) = faults(found, (0, 1))
    assert fault.startswith("an empty answer solves 100%")
    assert list(faults(players(empty_answers=0.5, random_answers=0.7), (0, 1))) == []


def test_half_of_a_range_that_goes_below_zero_is_no_reward_for_nothing() -> None:
    assert list(faults(players(oracle=1, empty_answers=0, random_answers=0), (-1, 1))) == []


@given(st.floats(0, 1), st.floats(0, 1))
def test_an_oracle_is_at_fault_just_where_somebody_earns_more(oracle: float, demonstrations: float) -> None:
    found = list(faults(players(oracle=oracle, demonstrations=demonstrations), (0, 1)))
    assert bool(found) == (demonstrations > oracle)


def test_what_is_missing_is_remarked() -> None:
    said = " ".join(remarks({}, oracle=False, demonstrations=False))
    assert "no oracle" in said
    assert "no demonstrations" in said
    assert list(remarks(players(oracle=1, demonstrations=0.4), oracle=True, demonstrations=True)) == []
    assert "solves 50%" in " ".join(remarks(players(oracle=0.5), oracle=True, demonstrations=True))
    assert "little left" in " ".join(remarks(players(demonstrations=0.95), oracle=True, demonstrations=True))


def test_demonstrations_that_never_succeed_are_remarked_with_their_share() -> None:
    (said,) = remarks(players(demonstrations=0.0), oracle=True, demonstrations=True)
    assert said.startswith("demonstrations solve 0%")
    assert list(remarks(players(demonstrations=0.1), oracle=True, demonstrations=True)) == []


def test_the_job_of_a_check_is_small_and_else_as_the_studys() -> None:
    base = Job(episodes_per_step=256, minibatches=64, steps=100, lr_warmup_steps=50, temperature=0.7)
    job = job_of(base, {"max_tokens": 9})
    assert (job.episodes_per_step, job.minibatches, job.lr_warmup_steps) == (TRAINED, TRAINED, 0)
    assert (job.temperature, job.max_tokens) == (0.7, 9)
    assert job_of(Job(minibatches=2), {}).minibatches == 2
