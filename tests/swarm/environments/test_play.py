"""Tests of play."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.episode import EpisodeResult
from swarm.environments import (
    Environment,
    Game,
    Message,
    Outcome,
    Split,
    Task,
    Tool,
    calling,
    calls_of,
    environments,
    get_environment,
    said,
    tool,
    tool_result,
)
from swarm.environments.adapters import ADAPTERS, adapt
from swarm.environments.base import split_of
from swarm.environments.play import (
    MOST_CHARACTERS,
    MOST_MESSAGES,
    Transcripts,
    agent_of,
    choose_plays,
    judge_outcome,
    play,
    rounds,
    write_json,
)
from swarm.environments.user_code import Reward, RewardFailed
from swarm.errors import ContextExceeded, InvalidRequest
from tests.golden import refused


def test_a_play_is_kept_once_within_bounds() -> None:
    plays = Transcripts(["t", "never played"])
    parts = [{"type": "text", "text": "How much?"}]
    long = [{"role": "user", "content": "x" * 9000}] * 50
    plays.record(Task("t"), [{"role": "user", "content": parts}, calling("price", item="tea"), *long])
    plays.record(Task("t"), [said("a second play")])
    (kept,) = plays.take()
    assert plays.take() == []
    assert len(kept["messages"]) == MOST_MESSAGES
    question, call, answer, *_ = (message["content"] for message in kept["messages"])
    assert (question, call) == (json.dumps(parts), 'price({"item": "tea"})')
    assert len(answer) == MOST_CHARACTERS


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from(["", "", "it raised"])), max_size=60),
    st.integers(1, 40),
)
def test_half_of_what_is_kept_of_plays_are_failures_spread_over_the_kinds(
    played: list[tuple[str, bool, str]], most: int
) -> None:
    results = [
        EpisodeResult(f"t{n}", 0, float(solved), solved, 3, failed=failed)
        for n, (_, solved, failed) in enumerate(played)
    ]
    kinds = {f"t{n}": kind for n, (kind, _, _) in enumerate(played)}
    chosen = choose_plays([*results, replace(results[0], sample=1)] if results else [], kinds, most)
    usable = {result.task_id: bool(result.success) for result in results if not result.failed}
    assert len(chosen) == len(set(chosen)) == min(most, len(usable))
    assert set(chosen) <= usable.keys()
    lost, won = ([task for task in chosen if usable[task] is sort] for sort in (False, True))
    sparse = min(list(usable.values()).count(sort) for sort in (False, True))
    assert min(len(lost), len(won)) >= min(sparse, most // 2)
    for sort, tasks in ((False, lost), (True, won)):
        taken = Counter(kinds[task] for task in tasks)
        left = Counter(kinds[task] for task, solved in usable.items() if solved is sort) - taken
        assert all(taken[kind] >= max(taken.values(), default=0) - 1 for kind in left)  # none is passed over


def test_the_seed_alone_decides_what_is_evaluated_and_tasks_are_equally_often_give_or_take_one() -> None:
    tasks = get_environment("arith").tasks("hidden")
    assert rounds(tasks, 500, 1) == rounds(tasks, 500, 1)
    assert rounds(tasks, 500, 1) != rounds(tasks, 500, 2)
    played = Counter(task.id for part in rounds(tasks, 2 * len(tasks) + 3, 0) for task in part)
    assert sorted(played.values()) == [2] * (len(tasks) - 3) + [3] * 3


def test_what_cannot_be_written_leaves_the_old_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "during.json"
    write_json(path, {"evaluations": []})

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:5])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="full"):
        write_json(path, {"evaluations": [1]})
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == '{"evaluations": []}'


TASK = Task("t", {"answer": "7"})


class FakeEpisode:
    """An episode whose policy says what a test wrote down; it keeps what it was shown."""

    def __init__(self, *answers: Message | Exception, task: Task = TASK) -> None:
        self.task = task
        self.shown: list[list[Message]] = []
        self.options: list[dict[str, Any]] = []
        self._answers = list(answers)

    async def chat(self, messages: Sequence[Message], **options: Any) -> Any:
        self.shown.append([dict(message) for message in messages])
        self.options.append(options)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(raw={"choices": [{"message": {"refusal": None, **answer}}]})


QUESTION = [{"role": "user", "content": "?"}]


def results(message: Message) -> Any:
    return [tool_result(call, "7") for call in calls_of(message)]


class Quiz(Game):
    tools: Sequence[Tool] = (tool("look", "Look it up."),)

    def __init__(self, opening: Any = QUESTION, following: Callable[[Message], Any] = results) -> None:
        """`following`: what an answer is answered; by default the play is over with the first that calls no tool."""
        self.said = ""
        self._opening, self._following = opening, following

    def opening(self) -> Any:
        return self._opening

    def answer(self, message: Message) -> Any:
        self.said = message["content"] or ""
        return self._following(message)

    def outcome(self) -> Any:
        return Outcome(float(self.said == "7"), success=self.said == "7")


class AsyncQuiz(Quiz):
    async def opening(self) -> Any:
        return super().opening()

    async def answer(self, message: Message) -> Any:
        await asyncio.sleep(0)
        return super().answer(message)

    async def outcome(self) -> Any:
        return super().outcome()


class World(Environment):
    name, title, measures = "world", "a world", "it is solved"

    def __init__(self, make: Callable[[], Game] = Quiz, **own: Any) -> None:
        self._make = make
        for name, value in own.items():
            setattr(self, name, value)

    def game(self, task: Task) -> Game:
        return self._make()


async def played(game: Game, *answers: Message | Exception) -> tuple[list[Message], Outcome, FakeEpisode]:
    episode = FakeEpisode(*answers)
    messages, outcome = await play(game, episode)  # type: ignore[arg-type]
    return messages, outcome, episode


@pytest.mark.parametrize("kind", [Quiz, AsyncQuiz])
async def test_a_play_of_several_turns_carries_calls_and_their_results(kind: type[Quiz]) -> None:
    messages, outcome, episode = await played(kind(), calling("look", "c1"), said("7"))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert episode.shown == [messages[:1], messages[:3]]
    assert messages[2]["tool_call_id"] == "c1"
    assert messages[1] == calling("look", "c1")
    assert [options["tools"][0]["function"]["name"] for options in episode.options] == ["look", "look"]
    assert outcome == Outcome(1.0, True)


async def test_a_full_context_ends_the_play_with_its_worth_so_far_and_a_task_that_does_not_fit_is_no_play() -> None:
    game = Quiz(following=lambda _: [{"role": "user", "content": "go on"}])
    messages, outcome, _ = await played(game, said("7"), ContextExceeded("it is full"))
    assert outcome.reward == 1.0
    assert messages[-1] == {"role": "user", "content": "go on"}
    with pytest.raises(ContextExceeded):
        await played(Quiz(), ContextExceeded("it is full"))


@pytest.mark.parametrize(("opening", "answer", "expected"), [
    ({"role": "user", "content": "?"}, [], "of opening(), found {'role'"),
    ("how many?", [], "of opening(), found 'how many?'"),
    (None, [], "of opening(), found None"), ([], [], "or more of opening()"),
    ([{"content": "?"}], [], "of opening(), found [{'content'"),
    (QUESTION, {"role": "user", "content": "?"}, "of answer(), found {'role'"),
    (QUESTION, "no", "of answer(), found 'no'"), (QUESTION, ["no"], "of answer(), found ['no']"),
])  # fmt: skip
async def test_what_is_no_list_of_messages_is_a_failed_play(opening: Any, answer: Any, expected: str) -> None:
    with pytest.raises(TypeError) as failed:
        await played(Quiz(opening, lambda _: answer), said("7"))
    assert expected in str(failed.value)


async def test_a_game_that_blocks_holds_up_no_other_play() -> None:
    other_is_over = threading.Event()

    class Blocking(Quiz):
        def outcome(self) -> Any:
            assert other_is_over.wait(120)
            return super().outcome()

    async def other() -> Outcome:
        _, outcome, _ = await played(AsyncQuiz(), said("7"))
        other_is_over.set()
        return outcome

    blocked, free = await asyncio.gather(played(Blocking(), said("7")), other())
    assert (blocked[1].reward, free.reward) == (1.0, 1.0)


async def test_an_environment_may_play_by_an_agent_of_its_own_that_returns_an_outcome() -> None:
    class Own(World):
        async def agent(self, episode: Any) -> Any:
            reply = await episode.chat([{"role": "user", "content": "?"}])
            success = reply.raw["choices"][0]["message"]["content"] == "7"
            return Outcome(0.5, success=success, facts={"turns": 1}) if success else 1.0

    found: Any = await agent_of(Own())(FakeEpisode(said("7")))  # type: ignore[arg-type]
    assert (found.reward, found.success, found.facts) == (0.5, True, {"turns": 1.0})
    with pytest.raises(RewardFailed, match=r"Outcome.*float"):
        await agent_of(Own())(FakeEpisode(said("8")))  # type: ignore[arg-type]
    for code in ({"reward": max}, {"prompt": max}, {"player": max}):
        with pytest.raises(InvalidRequest, match="plays and judges by itself"):
            agent_of(Own(), **code)  # type: ignore[arg-type]


async def test_a_reward_function_is_shown_the_conversation_and_what_the_game_said() -> None:
    seen: list[Any] = []

    def reward(task: Any, messages: Any, outcome: Any) -> float:
        seen.append((task, messages, outcome))
        return 0.25

    heard: list[Any] = []
    agent = agent_of(World(), Reward(reward), lambda task, messages: heard.append((task.id, len(messages))))
    found: Any = await agent(FakeEpisode(calling("look"), said("7")))  # type: ignore[arg-type]
    assert (found.reward, found.success) == (0.25, True)
    ((task, messages, outcome),) = seen
    assert task == {"id": "t", "data": {"answer": "7"}}
    assert outcome == {"reward": 1.0, "success": True, "facts": {}}
    assert heard == [("t", len(messages))] == [("t", 4)]


@pytest.mark.parametrize(
    ("found", "named"),
    [
        *((found, "Outcome") for found in (None, 1.0, (1.0, True), {"reward": 1.0})),
        *((Outcome(reward, True), "finite number as")  # type: ignore
          for reward in (math.nan, math.inf, 10**400, None, "1", [1.0], 1j)),
        *((Outcome(reward, True), "reward within reward_range") for reward in (1.5, -0.1)),
        *((Outcome(0.5, success), f"success as .*'{success}'") for success in ("no", "yes", "")),  # type: ignore
        *((Outcome(1.0, True, facts), "facts as|fact 'turns'") for facts in (
            None, [("turns", 1)], {1: 1.0}, {"turns": math.nan}, {"turns": "3"}, {"turns": None},
        )),
    ],
)  # fmt: skip
def test_what_is_no_outcome_or_has_no_such_reward_success_or_facts_is_refused(found: Any, named: str) -> None:
    with pytest.raises(RewardFailed, match=named):
        judge_outcome(World(), found)


def test_an_outcome_without_success_needs_a_reward_at_which_it_is_solved() -> None:
    with pytest.raises(RewardFailed, match="solved_at"):
        judge_outcome(World(), Outcome(1.0))
    environment = World(solved_at=0.5)
    assert [judge_outcome(environment, Outcome(reward)).success for reward in (0.4, 0.5, 1)] == [False, True, True]
    assert judge_outcome(environment, Outcome(0.9, success=False)).success is False


@given(st.integers(-3, 3), st.integers(-3, 3) | st.booleans() | st.fractions(-3, 3) | st.floats(-3, 3))
def test_any_real_number_within_a_range_is_a_reward_and_none_other(low: int, reward: float | Fraction) -> None:
    environment = World(reward_range=(low, low + 2))
    if low <= reward <= low + 2:
        found = judge_outcome(environment, Outcome(reward, success=False)).reward  # type: ignore[arg-type]
        assert (type(found), found) == (float, float(reward))
    else:
        with pytest.raises(RewardFailed):
            judge_outcome(environment, Outcome(reward, success=False))  # type: ignore[arg-type]


SPLITS: tuple[Split, ...] = get_args(Split)
NAMES = sorted(environments())


@pytest.fixture(params=NAMES)
def environment(request: pytest.FixtureRequest) -> Environment:
    return get_environment(request.param)


def test_ids_and_problems_are_unique_over_all_splits_and_come_in_the_same_order(environment: Environment) -> None:
    tasks = [task for split in SPLITS for task in environment.tasks(split)]
    assert len(environment.tasks("hidden")) >= 200
    assert len({task.id for task in tasks}) == len({json.dumps(task.data, sort_keys=True) for task in tasks})
    assert len({task.id for task in tasks}) == len(tasks)
    assert tasks == [task for split in SPLITS for task in type(environment)().tasks(split)]


def test_a_demonstration_is_what_the_game_said_and_the_same_for_the_same_random_numbers(
    environment: Environment,
) -> None:
    for seed, task in enumerate(environment.tasks("train")[:50]):
        messages, again = (environment.imitate(task, random.Random(seed)) for _ in range(2))
        game = environment.game(task)
        replayed = game.opening()
        for message in messages[len(replayed) :]:
            if message["role"] == "assistant":
                replayed.append(message)
                replayed += game.answer(message)
        assert replayed == messages == again


def test_splits_have_about_their_shares_and_are_fixed_for_good() -> None:
    """Another assignment would move tasks of finished studies between splits."""
    found = [split_of(f"key {number}") for number in range(10_000)]
    shares = {split: found.count(split) / len(found) for split in SPLITS}
    assert shares == pytest.approx({"train": 0.60, "search": 0.15, "hidden": 0.25}, abs=0.02)
    known = [split_of(f"guess-1-10-{secret}") for secret in range(1, 7)]
    assert known == ["train", "hidden", "hidden", "search", "train", "hidden"]


@pytest.mark.parametrize("scheme", ADAPTERS)
def test_a_missing_package_is_told_with_the_line_to_type(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = ADAPTERS[scheme]
    monkeypatch.setitem(sys.modules, adapter.package, None)
    with refused(InvalidRequest, adapter.package, adapter.example, f"pip install {adapter.command}"):
        adapt(adapter.example)
