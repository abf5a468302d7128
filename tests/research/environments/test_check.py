"""What is wrong with an environment's plays is one line with the player, the task and the line of code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from research.environments.check import PlayBounds, Plays, play_alone
from research.environments.install import load_environment
from research.installation.home import Home
from tests.research.environments.written import line_of, sums
from tests.research.factories import make_home

pytestmark = pytest.mark.slow

QUICK = PlayBounds(plays=30, play_s=30.0, seconds=120.0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


def played(folder: Path, home: Home, bounds: PlayBounds = QUICK) -> Plays:
    environment = load_environment(str(folder), None, home, lambda _: None)
    return play_alone(environment.name, home, (), bounds, lambda _: None)


def test_players_that_learn_nothing_show_what_rewards_are_worth(home: Home, tmp_path: Path) -> None:
    found = played(sums(tmp_path / "sums"), home)
    assert found.faults == ()
    assert set(found.players) == {"oracle", "demonstrations", "empty answers", "random answers"}
    oracle, empty = found.players["oracle"], found.players["empty answers"]
    assert (oracle.reward, oracle.success, oracle.calls, oracle.plays) == (1.0, 1.0, 1.0, 30)
    assert (empty.reward, empty.success) == (0.0, 0.0)
    assert oracle.seconds > 0
    assert found.example is not None
    assert [message["role"] for message in found.example["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        ("outcome", "raise ValueError('no such thing')", r"ValueError: .* \(environment.py, line LINE\)"),
        ("outcome", "return Outcome(7.0, right)", "reward_range"), ("outcome", "raise SystemExit(3)", "SystemExit"),
        ("answer", "self.all = bytearray(13 << 30); return []", r"MemoryError \(environment.py, line LINE\)"),
        ("answer", "return [{'role': 'user', 'content': 'once more'}]", "200 answers"),
    ],
)  # fmt: skip
def test_a_play_that_fails_is_one_line_with_its_task(
    home: Home, tmp_path: Path, part: str, code: str, said: str
) -> None:
    folder = sums(tmp_path / "sums", **{part: code})
    found = played(folder, home)
    assert len(found.faults) == 1, "the same fault is told once, whoever meets it"
    assert re.match(r"oracle, task 'sum-\d+': ", found.faults[0])
    assert re.search(said.replace("LINE", str(line_of(folder, code))), found.faults[0])
    assert "\n" not in found.faults[0]


@pytest.mark.parametrize("code", ["import time; time.sleep(600)", "import re; re.match('(a+)+$', 'a' * 60 + 'b')"])
def test_a_play_that_hangs_is_ended_with_the_line_on_which_it_stood(home: Home, tmp_path: Path, code: str) -> None:
    folder = sums(tmp_path / "sums", answer=f"{code}; return []")
    found = played(folder, home, PlayBounds(plays=2, play_s=1.0, seconds=120.0))
    assert len(found.faults) == 1
    where = rf"did not end within 1 s \(environment.py, line {line_of(folder, code)}\)"
    assert re.search(rf"oracle, task 'sum-\d+': the play {where}", found.faults[0])


def test_all_plays_together_are_bounded(home: Home, tmp_path: Path) -> None:
    folder = sums(tmp_path / "sums", answer="import time; time.sleep(600)")
    found = played(folder, home, PlayBounds(plays=2, play_s=600.0, seconds=5.0))
    assert len(found.faults) == 1
    assert "within 5 s" in found.faults[0]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; print('bye', flush=True); os._exit(2)", "by itself, with exit code 2"),
        ("import ctypes; ctypes.string_at(0)", "by signal 11"),
    ],
)
def test_code_that_ends_its_process_is_told_with_its_task(home: Home, tmp_path: Path, code: str, how: str) -> None:
    found = played(sums(tmp_path / "sums", answer=f"{code}; return []"), home)
    assert len(found.faults) == 1
    assert re.match(r"oracle, task 'sum-\d+': ", found.faults[0])
    assert how in found.faults[0]
    assert ("last said: bye" in found.faults[0]) == ("bye" in code)


def test_memory_that_each_play_leaves_behind_is_found(home: Home, tmp_path: Path) -> None:
    folder = sums(tmp_path / "sums", answer="random.kept = [*getattr(random, 'kept', ()), b'x' * (4 << 20)]; return []")
    assert any(re.search(r"[345]\.\d MiB of memory", each) for each in played(folder, home).faults)
