"""What an environment's check finds of its plays and rewards, and the packages that its code needs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.environments.check import PlayBounds, Player, Plays, faults, play_alone, remarks
from research.environments.install import how_to_install_apart, load_environment, python_path
from research.environments.model_check import TRAINED, job_of
from research.errors import BadEnvironment
from research.installation.home import Home
from swarm.environments.custom import CodeSource
from swarm.job import Job
from tests.research.environments.written import line_of, sums, wheel_in


def players(**rewards: float) -> Mapping[str, Player]:
    same = {"plays": 8, "calls": 1, "characters": 1, "seconds": 0}
    named = ((name.replace("_", " "), reward) for name, reward in rewards.items())
    return {name: Player(player=name, reward=reward, success=reward, **same) for name, reward in named}


@pytest.mark.parametrize(
    ("rewards", "success", "least", "said"),
    [
        ({"oracle": 1, "demonstrations": 0.4, "empty_answers": 0, "random_answers": 0.1}, None, 0, ""),
        ({"oracle": 1, "empty_answers": 0.8, "random_answers": 0.1}, None, 0, "an empty answer earns 0.8"),
        ({"empty_answers": 0.5}, 1.0, 0, "an empty answer solves 100%"),
        ({"empty_answers": 0.5, "random_answers": 0.7}, None, 0, ""),
        ({"oracle": 1, "empty_answers": 0, "random_answers": 0}, None, -1, ""),
    ],
    ids=["sound", "a reward for nothing", "success for nothing", "chance", "half of a range below zero"],
)
def test_rewards_for_nothing_are_faults(
    rewards: dict[str, float], success: float | None, least: float, said: str
) -> None:
    update = {} if success is None else {"success": success}
    found = {name: one.model_copy(update=update) for name, one in players(**rewards).items()}
    assert [fault.startswith(said) for fault in faults(found, (least, 1))] == [True] * bool(said)


@given(st.floats(0, 1), st.floats(0, 1))
def test_an_oracle_is_at_fault_just_where_somebody_earns_more(oracle: float, demonstrations: float) -> None:
    found = list(faults(players(oracle=oracle, demonstrations=demonstrations), (0, 1)))
    assert bool(found) == (demonstrations > oracle)


def test_what_is_missing_is_remarked() -> None:
    said = " ".join(remarks({}, oracle=False, demonstrations=False))
    assert "no oracle" in said
    assert "no demonstrations" in said
    assert list(remarks(players(oracle=1, demonstrations=0.4), oracle=True, demonstrations=True)) == []
    for played, words in (
        (players(oracle=0.5), "solves 50%"), (players(demonstrations=0.95), "little left"),
        (players(demonstrations=0.0), "demonstrations solve 0%"), (players(demonstrations=0.1), ""),
    ):  # fmt: skip
        assert [words in each for each in remarks(played, oracle=True, demonstrations=True)] == [True] * bool(words)


def test_the_job_of_a_check_is_small_and_else_as_the_studys() -> None:
    base = Job(episodes_per_step=256, minibatches=64, steps=100, lr_warmup_steps=50, temperature=0.7)
    job = job_of(base, {"max_tokens": 9})
    assert (job.episodes_per_step, job.minibatches, job.lr_warmup_steps) == (TRAINED, TRAINED, 0)
    assert (job.temperature, job.max_tokens) == (0.7, 9)
    assert job_of(Job(minibatches=2), {}).minibatches == 2


FOLDER = CodeSource(kind="folder", place="environment.py")
NAME = "small_need_of_a_test"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = wheel_in(tmp_path / "wheels", NAME)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
def test_what_a_text_names_is_installed_once_and_apart(home: Home, wheels: Path) -> None:
    notes: list[str] = []
    (folder,) = python_path(home, FOLDER, f"{NAME}\n", notes.append)
    assert (folder / f"{NAME}.py").read_text() == "VALUE = 7\n"
    assert NAME not in subprocess.run([sys.executable, "-m", "pip", "list"], capture_output=True, text=True).stdout
    (wheels / f"{NAME}-1.0-py3-none-any.whl").unlink()
    assert python_path(home, FOLDER, f"{NAME}\n", notes.append) == (folder,)
    assert len(notes) == 1, "the second time nothing is installed"
    assert [path.name for path in home.packages.iterdir()] == [folder.name]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["surely-not-there==3\n", "not a requirement\n", "-r ../no-such-file.txt\n"])
def test_what_pip_cannot_bring_is_told_in_a_line_and_leaves_nothing(text: str, home: Home, wheels: Path) -> None:
    with pytest.raises(BadEnvironment, match=r"requirements\.txt names; .*: \S") as refused:
        python_path(home, FOLDER, text, lambda _: None)
    assert "\n" not in str(refused.value)
    assert list(home.packages.iterdir()) == []


def test_a_python_without_pip_is_told_as_that(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '/usr/bin/python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(BadEnvironment, match=r"/usr/bin/python: No module .*pip$"):
        python_path(home, FOLDER, "x\n", lambda _: None)


@pytest.mark.parametrize("text", ["", " \n"])
def test_nothing_is_installed_where_nothing_is_named(text: str, home: Home) -> None:
    assert python_path(home, FOLDER, text, lambda _: None) == ()
    assert python_path(home, CodeSource(kind="module", place="x"), "numpy\n", lambda _: None) == ()
    assert not home.packages.exists()


def test_the_package_of_an_adapter_is_found_where_its_line_puts_it(home: Home) -> None:
    address = "textarena:Wordle-v0"
    source = CodeSource(kind="adapter", place=address)
    assert python_path(home, source, "", lambda _: None) == ()
    (home.packages / "textarena").mkdir(parents=True)
    assert python_path(home, source, "", lambda _: None) == (home.packages / "textarena",)
    assert f"pip install --target {home.packages / 'textarena'} 'textarena==" in how_to_install_apart(home, address)


QUICK = PlayBounds(plays=30, play_s=30.0, seconds=120.0)


def played(folder: Path, home: Home, bounds: PlayBounds = QUICK) -> Plays:
    environment = load_environment(str(folder), None, home, lambda _: None)
    return play_alone(environment.name, home, (), bounds, lambda _: None)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_memory_that_each_play_leaves_behind_is_found(home: Home, tmp_path: Path) -> None:
    folder = sums(tmp_path / "sums", answer="random.kept = [*getattr(random, 'kept', ()), b'x' * (4 << 20)]; return []")
    assert any(re.search(r"[345]\.\d MiB of memory", each) for each in played(folder, home).faults)
