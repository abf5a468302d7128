"""Rewards from a file judge plays; what is no finite number fails the play, and success stays the game's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Outcome, Task
from swarm.environments.user_code import Reward, RewardFailed

TASK = Task("sum", {"left": 1, "right": 2})
MESSAGES = [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "4"}]
LOST = Outcome(reward=0.0, success=False)


async def judged(function: Callable[..., Any], outcome: Outcome = LOST) -> Outcome:
    return await Reward(function)(TASK, list(MESSAGES), outcome)


async def test_the_function_sees_the_task_the_conversation_and_the_games_word() -> None:
    seen: list[Any] = []

    def reward(task: Any, messages: Any, outcome: Any) -> float:
        seen.extend((task, messages, outcome))
        return 0.5

    assert await judged(reward) == Outcome(reward=0.5, success=False)
    assert seen == [{"id": "sum", "data": {"left": 1, "right": 2}}, MESSAGES, {"reward": 0.0, "success": False}]


async def test_an_async_function_judges_too() -> None:
    async def reward(task: Any, messages: Any, outcome: Any) -> float:
        return 0.25

    assert (await judged(reward)).reward == 0.25


async def test_success_stays_the_games_own_whatever_the_function_does() -> None:
    def reward(task: Any, messages: Any, outcome: Any) -> float:
        outcome["success"] = True
        task["data"].clear()
        messages.clear()
        return 1.0

    assert await judged(reward) == Outcome(reward=1.0, success=False)
    assert TASK.data == {"left": 1, "right": 2}


@given(
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(10**9), 10**9)
    | st.booleans()
    | st.fractions(-9, 9)
)
async def test_every_finite_number_is_a_reward(value: Any) -> None:
    assert (await judged(lambda *_: value)).reward == float(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, None, "1.0", [1.0], 1j])
async def test_what_is_no_finite_number_fails_the_play(value: Any) -> None:
    with pytest.raises(RewardFailed, match="finite number"):
        await judged(lambda *_: value)


async def test_a_function_that_raises_fails_the_play_with_its_words_and_place(tmp_path: Path) -> None:
    """The place is the file's own, also where what it calls raised."""
    path = tmp_path / "mine.py"
    path.write_text("import json\n\ndef reward(task, messages, outcome):\n    return json.loads('nonsense')\n")
    with pytest.raises(RewardFailed, match=r"JSONDecodeError: Expecting value.* \(mine.py, line 4\)"):
        await Reward.load(str(path))(TASK, list(MESSAGES), LOST)


async def test_a_function_that_does_not_return_fails_the_play_in_time() -> None:
    never = threading.Event()

    def reward(task: Any, messages: Any, outcome: Any) -> float:
        never.wait()
        return 1.0

    try:
        with pytest.raises(RewardFailed, match=r"within 0\.05 s"):
            await Reward(reward, most_s=0.05)(TASK, list(MESSAGES), LOST)
    finally:
        never.set()
