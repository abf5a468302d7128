"""Rewards are relative: they keep the scores' order, and a person's word goes first. What is to be erased is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.passive import erasing
from swarm.passive.erasing import Eraser
from swarm.passive.judge import AnswerJudge, read_order
from swarm.passive.scoring import ScorerFailed, checked, preferred, relative
from swarm.wire import Erasure

SCORES = st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=12)


@given(SCORES)
def test_rewards_keep_the_mean_and_the_order(scores: list[float]) -> None:
    rewards = relative(scores)
    assert fmean(rewards) == pytest.approx(0.5)
    assert all(0 <= reward <= 1 for reward in rewards)
    pairs = [(a, b) for a in range(len(scores)) for b in range(len(scores))]
    assert all((scores[a] < scores[b]) == (rewards[a] < rewards[b]) for a, b in pairs)


@given(SCORES, st.data())
def test_a_persons_word_goes_before_all_scores(scores: list[float], data: st.DataObject) -> None:
    choice = data.draw(st.integers(0, len(scores) - 1))
    assert relative(preferred(scores, choice, "up"))[choice] == 1.0
    assert relative(preferred(scores, choice, "down"))[choice] == 0.0


@pytest.mark.parametrize("found", [None, [1.0], [1.0, float("nan")], [1.0, float("inf")], ["a", "b"], 3])
def test_what_is_no_number_for_each_answer_is_no_score(found: object) -> None:
    with pytest.raises(ScorerFailed):
        checked(found, 2)


@pytest.mark.parametrize("said", ["", "no order", "1,2", "1,1,2", "1,2,3,4", "0,1,2"])
def test_a_judgement_that_is_no_whole_order_is_none(said: str) -> None:
    with pytest.raises(ScorerFailed):
        read_order(said, 3)


async def test_a_judge_that_likes_the_longest_finds_it_wherever_it_is_shown() -> None:
    async def longest(messages: object) -> str:
        assert isinstance(messages, list)
        shown = messages[1]["content"].split("\n\n")[1:]
        order = sorted(range(len(shown)), key=lambda place: -len(shown[place]))
        return ",".join(str(place + 1) for place in order)

    for seed in range(5):
        judge = AnswerJudge(longest, random.Random(seed))
        scores = await judge.score({"messages": []}, ["aa", "aaaa", "a", "aaa"])
        assert list(scores) == [-2.0, 0.0, -3.0, -1.0]


class FullDisk:
    """Records of one episode, whose first note finds no room."""

    def __init__(self) -> None:
        self.left, self.gone, self.failures = ["e1"], asyncio.Event(), 1

    def to_erase(self, most: int) -> list[str]:
        return self.left[:most]

    def tried(self, episodes: Sequence[str], erased: Sequence[str]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        self.left = [each for each in self.left if each not in erased]
        self.gone.set()


async def test_a_full_disk_ends_no_eraser(monkeypatch: pytest.MonkeyPatch) -> None:
    async def erase(secret: str, episodes: Sequence[str]) -> Any:
        return Erasure(erased=tuple(episodes), left=(), unknown=())

    monkeypatch.setattr(erasing, "AGAIN_S", 0.01)
    records = FullDisk()
    eraser = Eraser(cast(Any, SimpleNamespace(erase=erase)), cast(Any, records), "secret")
    running = asyncio.create_task(eraser.run())
    await asyncio.wait_for(records.gone.wait(), 120)
    assert not running.done()
    assert records.left == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
