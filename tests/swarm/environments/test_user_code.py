"""Tests of user code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.environments import Outcome, Task
from swarm.environments.custom import CodeSource, Kind
from swarm.environments.loading import load_source
from swarm.environments.user_code import Reward, RewardFailed
from swarm.errors import InvalidRequest

HEAD = "from swarm.environments import Environment\n"
WORLD = "class World(Environment):\n    name = 'world'\n"


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """Forget what a test imported, and where from."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def loaded(code: Path, item: str = "", *, kind: Kind = "folder", place: str = "environment.py", **files: str) -> str:
    for name, text in files.items():
        (code / f"{name}.py").write_text(text)
    return load_source(CodeSource(kind=kind, place=place, item=item), code).name


@pytest.mark.parametrize(
    ("text", "item", "said"),
    [
        ("", "", "expected one subclass of Environment in environment.py; found none"),
        (WORLD + "class Other(World):\n    pass\n", "", "found World, Other; write one, or name it"),
        (WORLD, "Missing", "expected Missing in environment.py to be an Environment; found nothing of that name"),
        (WORLD + "x = 3\n", "x", "to be an Environment; found int"),
        (WORLD + "    def __init__(self):\n        raise RuntimeError('no disk')\n", "", "RuntimeError: no disk"),
        ("1/0\n", "", "(environment.py, line 2)"),  # as `playing/test_code.py` has it of all that a file may do
        ("import surely_not_installed\n", "", "'surely_not_installed'"),
    ],
)
def test_code_that_gives_none_is_refused_in_one_line(text: str, item: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        loaded(tmp_path, item, environment=HEAD + text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_module_is_loaded_from_the_files_that_were_brought(tmp_path: Path) -> None:
    assert loaded(tmp_path, "World", kind="module", place="my_brought_world", my_brought_world=HEAD + WORLD) == "world"


@pytest.mark.parametrize("name", ["random", "json", "pydantic"])
def test_a_module_with_the_name_of_another_one_is_not_mistaken_for_it(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(HEAD + WORLD)
    __import__(name)
    with pytest.raises(InvalidRequest, match=f"module {name} in"):
        load_source(CodeSource(kind="module", place=name, item="World"), tmp_path)


TASK = Task("sum", {"left": 1, "right": 2})
MESSAGES = [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "4"}]
LOST = Outcome(reward=0.0, success=False)


async def judged(function: Callable[..., Any], outcome: Outcome = LOST) -> Outcome:
    return await Reward(function)(TASK, list(MESSAGES), outcome)


async def test_success_stays_the_games_own_whatever_an_async_function_does() -> None:
    async def reward(task: Any, messages: Any, outcome: Any) -> float:
        outcome["success"] = True
        task["data"].clear()
        messages.clear()
        return 1.0

    assert await judged(reward) == Outcome(reward=1.0, success=False)
    assert TASK.data == {"left": 1, "right": 2}


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
