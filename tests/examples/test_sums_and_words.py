"""The example for a real model: what it asks, and the job that goes with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from research.environments.install import load_environment
from research.installation.base_job import read_job
from research.installation.home import Home
from swarm.environments import Environment, said
from swarm.environments.loading import load_playable
from swarm.environments.play import judge_outcome
from swarm.environments.user_code import call

FOLDER = Path(__file__).parents[2] / "examples" / "sums_and_words"


@pytest.fixture(scope="module")
def environment(home: Home) -> Environment:
    return load_playable(load_environment(str(FOLDER), None, home, lambda _: None).name)


def solved(environment: Environment, answers: str | None = None) -> list[bool]:
    async def play(number: int) -> bool:
        task = environment.tasks("train")[number]
        game = await call(environment.game, task)
        messages = await call(game.opening)
        right = environment.oracle(task, messages)
        await call(game.answer, said(answers or str(right)))
        return bool(judge_outcome(environment, await call(game.outcome)).success)

    return [asyncio.run(play(number)) for number in range(20)]


@pytest.mark.slow
def test_the_right_answer_counts_and_nothing_beside_it(environment: Environment) -> None:
    assert all(solved(environment))
    assert not any(solved(environment, "The answer is 7 anchor"))


def test_its_job_is_one() -> None:
    job = read_job(FOLDER / "job.json")
    assert (job.lora_rank, job.episodes_per_step % job.group_size) == (16, 0)
