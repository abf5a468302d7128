"""Code from a file is loaded and called, or refused in one line; its hash changes with it, not with what it writes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from swarm.client import EpisodeResult
from swarm.environments import Outcome, Task
from swarm.environments import user_code as module
from swarm.environments.custom import CodeSource, Kind
from swarm.environments.loading import load_source
from swarm.environments.play import try_recorded, try_slot
from swarm.environments.user_code import Advantage, Reward, RewardFailed, TaskWeights, call, code_files, code_hash, load
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


@contextmanager
def one_line(*words: str) -> Iterator[None]:
    with pytest.raises(InvalidRequest) as refused:
        yield
    assert [word for word in words if word not in str(refused.value)] == []
    assert "\n" not in str(refused.value)


def loaded(code: Path, item: str = "", *, kind: Kind = "folder", place: str = "environment.py", **files: str) -> str:
    for name, text in files.items():
        (code / f"{name}.py").write_text(text)
    return load_source(CodeSource(kind=kind, place=place, item=item), code).name


@pytest.mark.parametrize(
    ("text", "item", "said"),
    [
        ("", "", "in environment.py; found none"),
        (WORLD + "class Other(World):\n    pass\n", "", "found World, Other; "),
        (WORLD, "Missing", "Environment; found nothing"),
        (WORLD + "x = 3\n", "x", "an Environment; found int"),
        (WORLD + "    def __init__(self):\n        raise RuntimeError('no disk')\n", "", "RuntimeError: no disk"),
        ("1/0\n", "", "(environment.py, line 2)"),
        ("import surely_not_installed\n", "", "'surely_not_installed'"),
    ],
)
def test_code_that_gives_none_is_refused_in_one_line(text: str, item: str, said: str, tmp_path: Path) -> None:
    with one_line(said):
        loaded(tmp_path, item, environment=HEAD + text)


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


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_function_is_found_by_its_name_in_a_file_that_finds_what_lies_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "WORTH = 3\n", "beside.py")
    place = written(
        tmp_path, "from beside import WORTH\ndef agent(e):\n    return 1\ndef other(e):\n    return WORTH\n"
    )
    assert load(place, "agent", takes="episode")(None) == 1
    assert load(place + ":other", "agent", takes="episode")(None) == 3


def test_a_file_named_like_a_known_module_does_not_take_its_place(tmp_path: Path) -> None:
    place = written(tmp_path, "def agent(episode):\n    return 4\n", "json.py")
    assert load(place, "agent", takes="episode")(None) == 4
    import json

    assert json.loads("4") == 4


@pytest.mark.parametrize(("text", "expected"), [
    ("def agent(episode:\n    return 1\n", ("line 1", "never closed")),
    ("import no_such_package_here\n", ("'no_such_package_here'", "--requirements")),
    ("from no_such_package_here.sub import x\n", ("'no_such_package_here'", "--requirements")),
    ("x = 1\ny = x / 0\n", ("ZeroDivisionError", "mine.py, line 2")),
    ("import sys\nsys.exit(3)\n", ("SystemExit: 3", "line 2")),
    ("def play(episode):\n    return 1\n", ("`agent`", "found play", "mine.py:NAME")),
    ("agent = 3\n", ("`agent`", "found none")),
    ("def agent():\n    return 1\n", ("expected agent(episode)", "found agent()")),
    ("def agent(episode, tools):\n    return 1\n", ("found agent(episode, tools)",)),
    ("def agent(*, episode):\n    return 1\n", ("found agent(*, episode)",)),
])  # fmt: skip
def test_what_cannot_be_played_is_refused_with_its_place(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    with one_line(*expected):
        load(written(tmp_path, text), "agent", takes="episode")


@pytest.mark.parametrize("place", ["missing.py", "agent.txt", "", ".", "mine.py:not a name"])
def test_what_is_no_file_of_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "def agent(episode):\n    return 1\n")
    with one_line(repr(place)):
        load(place, "agent", takes="episode")


@pytest.mark.parametrize("error", [SystemExit(0), StopIteration(1), KeyboardInterrupt()])
async def test_what_would_end_the_process_ends_its_call_only(error: BaseException) -> None:
    def bad() -> None:
        raise error

    async def later() -> None:
        sys.exit(5)

    for function, named in ((bad, type(error).__name__), (later, "SystemExit")):
        with pytest.raises(RuntimeError, match=named):
            await call(function)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text("def agent(episode): ...\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "prompt.md").write_text("Be brief.\n")
    return tmp_path


@pytest.mark.parametrize(("name", "counts"), [
    *((name, True) for name in ("agent.py", "parts/prompt.md", "new.py", "parts/new.yaml")),
    *((name, False) for name in ("log.txt", "seen.json", ".hidden.py", "__pycache__/agent.py", ".git/hook.py")),
])  # fmt: skip
def test_the_hash_changes_with_code_and_prompts_and_not_with_what_an_agent_writes(
    folder: Path, name: str, counts: bool
) -> None:
    before = code_hash(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("something else\n")
    assert (code_hash(folder) != before) is counts


def test_it_is_of_contents_and_names_not_time_or_place(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("elsewhere")
    (copy / "parts").mkdir()
    for path in code_files(folder):
        (copy / path.relative_to(folder)).write_bytes(path.read_bytes())
        os.utime(copy / path.relative_to(folder), (1, 1))
    assert code_hash(copy) == code_hash(folder)
    (copy / "agent.py").rename(copy / "other.py")
    assert code_hash(copy) != code_hash(folder)


def test_of_a_folder_with_too_many_files_its_own_alone_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 1)
    assert code_files(folder) == [folder / "agent.py"]


EXAMPLES = Path(__file__).parents[2] / "examples" / "slots"


async def test_an_advantage_by_an_expression_and_by_code_is_the_same() -> None:
    rewards, groups = [0.0, 1.0, 0.5, 2.0, 2.0, 7.0], [0, 0, 0, 1, 1, 2]
    by_code = await Advantage.load(str(EXAMPLES / "leave_one_out.py"))(rewards, groups)
    formula = "=(reward - mean) * n / (n - 1) if n > 1 else 0"
    assert await Advantage.load(formula)(rewards, groups) == pytest.approx(by_code)
    assert by_code == pytest.approx([-0.75, 0.75, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "body",
    ["return 1", "return []", "return [1]", "return [float('nan')] * 2", "return [10 ** 400] * 2", "return ['1'] * 2",
     "raise SystemExit", "return 1 / 0", "while True: pass", "return (x for x in rewards)"],
)  # fmt: skip
async def test_an_advantage_that_is_no_list_of_numbers_fails(body: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def advantage(rewards, groups):\n    {body}\n")
    given = Advantage(load(str(tmp_path / "mine.py"), "advantage", takes="rewards, groups"), most_s=0.2)
    with pytest.raises(RewardFailed) as failed:
        await given([0.0, 1.0], [0, 0])
    assert "advantage function" in str(failed.value)
    assert "\n" not in str(failed.value)


async def test_a_reward_sees_facts_and_an_expression_names_them() -> None:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x" * 100}]
    outcome = Outcome(1.0, True, {"guesses": 3.0})
    by_facts = Reward.load("=reward - 0.1 * guesses - 0.001 * characters - turns + success")
    assert (await by_facts(Task("t"), messages, outcome)).reward == pytest.approx(0.6)
    shorter = Reward.load(str(EXAMPLES / "length_penalty.py"))
    assert (await shorter(Task("t"), messages, outcome)).reward == 0.5
    assert (await shorter(Task("t"), messages[:1], outcome)).reward == 1.0
    with pytest.raises(RewardFailed, match="missing"):
        await Reward.load("=missing")(Task("t"), messages, outcome)


async def test_weights_follow_the_rewards_that_were_seen() -> None:
    tasks = [Task("easy"), Task("hard"), Task("open")]
    weights = TaskWeights(str(EXAMPLES / "by_success_rate.py"), tasks, seed=1)
    outcomes = {"easy": [1.0] * 40, "hard": [0.0] * 40, "open": [0.0, 1.0] * 20}
    seen = [EpisodeResult(task, 0, reward, None, 0) for task, rewards in outcomes.items() for reward in rewards]
    drawn = [(await weights(seen)).id for _ in range(200)]
    assert drawn.count("open") > 140
    assert len({(await weights([])).id for _ in range(50)}) == 3


async def test_equal_weights_make_passes_in_new_orders_and_others_what_is_due(tmp_path: Path) -> None:
    tasks, file = [Task(name) for name in "abcdefgh"], tmp_path / "weights.py"
    file.write_text("def task_weights(history):\n    return [1.0] * len(history)\n")
    alike = TaskWeights(str(file), tasks, seed=1)
    passes = ["".join([(await alike([])).id for _ in tasks]) for _ in range(40)]
    assert {"".join(sorted(one)) for one in passes} == {"abcdefgh"}
    assert len(set(passes)) > 30
    file.write_text("def task_weights(history):\n    return [0.0, 5.0, 3.0, 1.0, 1.0, 0.0, 0.0, 0.0]\n")
    skewed = TaskWeights(str(file), tasks, seed=1)
    drawn = [(await skewed([])).id for _ in range(100)]
    due = {"b": 50, "c": 30, "d": 10, "e": 10}
    assert {*drawn} == {*due}
    assert max(abs(drawn.count(name) - count) for name, count in due.items()) <= 2


@pytest.mark.parametrize(
    ("slot", "body", "said"),
    [
        ("reward", "return outcome['reward'] + outcome['facts'].get('x', 0) + task['data']['left']", ""),
        ("reward", "return outcome['worth']", "KeyError"), ("advantage", "return rewards", ""),
        ("advantage", "return rewards[:2]", "4 finite numbers"), ("task_weights", "return [1 for _ in history]", ""),
        ("task_weights", "return [-1 for _ in history]", "0 and more"), ("prompt", "return messages[:1]", ""),
        ("prompt", "return [m['text'] for m in messages]", "KeyError"),
    ],
)  # fmt: skip
async def test_code_is_tried_on_a_play(slot: str, body: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "tried.py").write_text(f"def {slot}({module.SLOTS[slot]}):\n    {body}\n")
    if not said:
        return await try_slot(slot, str(tmp_path / "tried.py"), "arith")
    with pytest.raises(RewardFailed, match=said):
        await try_slot(slot, str(tmp_path / "tried.py"), "arith")
    return None


def recorded(task: str, reward: float, *said: str, **more: Any) -> dict[str, Any]:
    words = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "tool"), said, strict=False)]
    kept = {"task_id": task, "sample": 0, "reward": reward, "success": reward > 0, "data": {"n": 1}, "messages": words}
    return kept | more


PLAYS = [
    recorded("a", 1.0, "Add.", "12", facts={"tries": 2.0}), recorded("b", 0.0, "Add.", "123", facts={"tries": 0.0}),
    recorded("a", 0.5), recorded("b", 0.0), recorded("c", 0.25),
    recorded("c", 0.25, "Add.", "x" * 2000, facts={"tries": 1.0}),
    recorded("a", 1.0, "Buy.", "", "7", facts={"tries": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("slot", "source", "found"), [
    ("reward", "return outcome['reward'] - len(messages[-1]['content'])", [2, -3, -1]),  # those kept whole alone
    ("reward", "= reward - 0.1 * tries", [4, 0.0, 0.9]), ("advantage", "= reward - mean", [6, -0.25, 0.25]),
    ("advantage", "return [2.0 * group for group in groups]", [6, 0, 4]),
    ("task_weights", "return [1.0 + sum(task['rewards']) * task['data']['n'] for task in history]", [7, 1.0, 3.5]),
    ("prompt", "return [*messages, *messages]", [2, 2, 2]), ("agent", "return []", []),
    ("reward", "= reward / tries", "play 2: the reward function raised ValueError: 'reward / tries' has no value"),
    ("reward", "return 1.0 / outcome['reward']", "play 2: the reward function raised ZeroDivisionError"),
    ("reward", "return float('nan') if outcome['success'] else 0.0", "play 1: expected the reward function to return"),
    ("advantage", "return rewards[1:]", "plays 1 to 6: expected the advantage function to return 6 finite"),
    ("advantage", "return [*rewards[:4], float('inf'), 0.0]", "6 finite numbers, found inf as number 5 of 6"),
    ("task_weights", "return [sum(task['rewards']) - 1 for task in history]", "plays 1 to 7: expected the task_"),
    ("prompt", "return messages[1:]", "play 1: expected a list of chat messages of prompt(), found None"),
    ("prompt", "raise ValueError('two\\nlines')", "play 1: the prompt function raised ValueError: two lines"),
])  # fmt: skip
async def test_code_is_tried_on_recorded_plays(slot: str, source: str, found: Any, tmp_path: Path) -> None:
    place = source
    if not source.startswith("="):
        (file := tmp_path / "tried.py").write_text(f"def {slot}({module.SLOTS[slot]}):\n    {source}\n")
        place = str(file)
    if isinstance(found, list):
        assert await try_recorded(slot, place, PLAYS) == pytest.approx(found)
        assert await try_recorded(slot, place, []) == []
        return
    with pytest.raises(RewardFailed) as refused:
        await try_recorded(slot, place, PLAYS)
    assert str(refused.value).startswith("on recorded play")
    assert found in str(refused.value)
    assert "\n" not in str(refused.value)
