"""What is wrong with an environment's plays is one line with the player, the task and the line of code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from research.environments.check import PlayBounds, Plays, play_alone
from research.environments.install import load_environment
from research.installation.home import Home
from tests.research.environments.written import line_of, sums

pytestmark = pytest.mark.slow

QUICK = PlayBounds(plays=30, play_s=30.0, seconds=120.0)


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


HANGS = r"the play did not end within 1 s \(environment.py, line LINE\)"


@pytest.mark.parametrize(
    ("part", "code", "bounds", "said"),
    [
        ("outcome", "raise ValueError('no such thing')", QUICK, r"ValueError: .* \(environment.py, line LINE\)"),
        ("outcome", "return Outcome(7.0, right)", QUICK, "reward_range"),
        ("outcome", "raise SystemExit(3)", QUICK, "SystemExit"),
        ("answer", "self.all = bytearray(13 << 30)", QUICK, r"MemoryError \(environment.py, line LINE\)"),
        ("answer", "return [{'role': 'user', 'content': 'once more'}]", QUICK, "200 answers"),
        ("answer", "import time; time.sleep(600)", PlayBounds(plays=2, play_s=1.0, seconds=120.0), HANGS),
        (
            "answer",
            "import re; re.match('(a+)+$', 60 * 'a' + 'b')",
            PlayBounds(plays=2, play_s=1.0, seconds=120.0),
            HANGS,
        ),
        ("answer", "import time; time.sleep(600)", PlayBounds(plays=2, play_s=600.0, seconds=5.0), "within 5 s"),
        (
            "answer",
            "import os; print('bye', flush=True); os._exit(2)",
            QUICK,
            "by itself, with exit code 2.*said: bye",
        ),
        ("answer", "import ctypes; ctypes.string_at(0)", QUICK, "by signal 11"),
    ],
)
def test_a_play_that_fails_is_one_line_with_its_task(
    home: Home, tmp_path: Path, part: str, code: str, bounds: PlayBounds, said: str
) -> None:
    folder = sums(tmp_path / "sums", **{part: code if part == "outcome" else f"{code}; return []"})
    found = played(folder, home, bounds)
    assert len(found.faults) == 1, "the same fault is told once, whoever meets it"
    assert re.match(r"oracle, task 'sum-\d+': ", found.faults[0])
    assert re.search(said.replace("LINE", str(line_of(folder, code))), found.faults[0])
    assert "\n" not in found.faults[0]


def test_memory_that_each_play_leaves_behind_is_found(home: Home, tmp_path: Path) -> None:
    folder = sums(tmp_path / "sums", answer="random.kept = [*getattr(random, 'kept', ()), b'x' * (4 << 20)]; return []")
    assert any(re.search(r"[345]\.\d MiB of memory", each) for each in played(folder, home).faults)
