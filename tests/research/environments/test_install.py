"""Bringing an environment ends in a whole folder or one line; a check finds what is wrong with plays and rewards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.environments import install as bringing
from research.environments.catalog import client_files, read_reference, records_of
from research.environments.check import PlayBounds, Player, Plays, faults, play_alone, remarks
from research.environments.install import (
    create_draft,
    how_to_install_apart,
    install_environment,
    load_environment,
    publish_draft,
    python_path,
)
from research.errors import BadEnvironment
from research.installation.home import Home
from swarm.environments.custom import CodeSource, CustomEnvironment
from tests.research.environments.written import GENERATE, line_of, sums
from tests.research.factories import make_wheel


def players(**rewards: float) -> Mapping[str, Player]:
    same = {"plays": 8, "calls": 1, "characters": 1, "seconds": 0}
    named = ((name.replace("_", " "), reward) for name, reward in rewards.items())
    return {name: Player(player=name, reward=reward, success=reward, **same) for name, reward in named}


@pytest.mark.parametrize(("rewards", "success", "least", "said"), [
    ({"oracle": 1, "demonstrations": 0.4, "empty_answers": 0, "random_answers": 0.1}, None, 0, ""),
    ({"oracle": 1, "empty_answers": 0.8, "random_answers": 0.1}, None, 0, "an empty answer earns"),
    ({"empty_answers": 0.5}, 1.0, 0, "an empty answer solves"),
    ({"empty_answers": 0.5, "random_answers": 0.7}, None, 0, ""),
    ({"oracle": 1, "empty_answers": 0, "random_answers": 0}, None, -1, ""),
], ids=["sound", "reward for nothing", "success for nothing", "chance", "half of a range below zero"])  # fmt: skip
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
    assert ("no oracle" in said, "no demonstrations" in said) == (True, True)
    for played, words in (
        (players(oracle=0.5), "solves 50%"), (players(demonstrations=0.95), "little left"),
        (players(demonstrations=0.0), "demonstrations solve 0%"), (players(oracle=1, demonstrations=0.1), ""),
    ):  # fmt: skip
        assert [words in each for each in remarks(played, oracle=True, demonstrations=True)] == [True] * bool(words)


FOLDER = CodeSource(kind="folder", place="environment.py")
NAME = "small_need_of_a_test"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_wheel(tmp_path / "wheels", NAME, "1.0", {f"{NAME}.py": b"VALUE = 7\n"}).parent
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
    assert len(notes) == 1  # the second time nothing is installed
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


SHORT = PlayBounds(plays=2, play_s=1.0, seconds=120.0)
HANGS = r"the play did not end within 1 s \(environment.py, line LINE\)"


@pytest.mark.slow
@pytest.mark.parametrize(("part", "code", "bounds", "said"), [
    ("outcome", "raise ValueError('no such thing')", QUICK, r"ValueError: .* \(environment.py, line LINE\)"),
    ("outcome", "return Outcome(7.0, right)", QUICK, "reward_range"),
    ("outcome", "raise SystemExit(3)", QUICK, "SystemExit"),
    ("answer", "self.all = bytearray(13 << 30)", QUICK, r"MemoryError \(environment.py, line LINE\)"),
    ("answer", "return [{'role': 'user', 'content': 'once more'}]", QUICK, "200 answers"),
    ("answer", "import time; time.sleep(600)", SHORT, HANGS),
    ("answer", "import re; re.match('(a+)+$', 60 * 'a' + 'b')", SHORT, HANGS),
    ("answer", "import time; time.sleep(600)", PlayBounds(plays=2, play_s=600.0, seconds=5.0), "within 5 s"),
    ("answer", "import os; print('bye', flush=True); os._exit(2)", QUICK, "exit code 2.*said: bye"),
    ("answer", "import ctypes; ctypes.string_at(0)", QUICK, "by signal 11"),
])  # fmt: skip
def test_a_play_that_fails_is_one_line_with_its_task(
    home: Home, tmp_path: Path, part: str, code: str, bounds: PlayBounds, said: str
) -> None:
    folder = sums(tmp_path / "sums", **{part: code if part == "outcome" else f"{code}; return []"})
    found = played(folder, home, bounds)
    (fault,) = found.faults  # the same fault is told once, whoever meets it
    assert re.match(rf"oracle, task 'sum-\d+': .*{said.replace('LINE', str(line_of(folder, code)))}", fault)
    assert "\n" not in fault


JUDGE = "def reward(task, messages):\n    return 1.0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sums(tmp_path / "sums")


def brought(folder: Path, home: Home) -> CustomEnvironment:
    return install_environment(read_reference(str(folder)), home, lambda _: None)


def judged(own: Path, lines: list[dict[str, str]], home: Home, notes: list[str]) -> CustomEnvironment:
    own.mkdir(exist_ok=True)
    (own / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (own / "judge.py").write_text(JUDGE)
    return install_environment(read_reference(str(own / "questions.jsonl"), str(own / "judge.py")), home, notes.append)


def left_in(home: Home) -> set[str]:
    return {path.name for path in home.environments.iterdir()} - {"secret"}


@pytest.mark.slow
def test_hidden_tasks_follow_from_the_installations_secret_which_is_its_owners(folder: Path, home: Home) -> None:
    first = brought(folder, home)
    secret = home.environments / "secret"
    assert secret.stat().st_mode & 0o077 == 0
    secret.unlink()
    other = brought(folder, home)
    assert other.name != first.name
    assert {t.id for t in other.tasks("hidden")} != {t.id for t in first.tasks("hidden")}
    secret.write_bytes(b"")
    with pytest.raises(BadEnvironment, match="secret of 32 bytes"):
        brought(folder, home)


@pytest.mark.slow
def test_a_brought_one_is_not_changed_by_what_becomes_of_its_folder(folder: Path, home: Home) -> None:
    first = brought(folder, home)
    sums(folder, tasks=GENERATE.replace("99", "98"))
    assert b"98" not in CustomEnvironment.open(first.folder).code()["environment.py"]
    second = brought(folder, home)
    assert second.name != first.name
    assert left_in(home) == {first.name, second.name}
    (record,) = records_of([first.name, "guess", first.name])
    assert (record.name, record.code, record.data) == (
        first.name, first.manifest.hashes["code"], first.manifest.hashes["data"],
    )  # fmt: skip
    assert record.code != second.manifest.hashes["code"]


RECORDS = """
import json
from pathlib import Path
from swarm.environments import Environment, Game, Outcome, Task
class Echo(Game):
    def opening(self): return [{"role": "user", "content": "?"}]
    def outcome(self): return Outcome(0.0, False)
class Words(Environment):
    name, title, measures = "spoken", "spoken", "it is said"
    def records(self):
        lines = (Path(__file__).parent / FILE).read_text().splitlines()
        return [Task(line, {"word": line}) for line in lines]
    def game(self, task): return Echo()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("file", "apart"), [("tasks.jsonl", True), ("words.txt", False)])
def test_a_client_holds_no_records_or_is_said_to(file: str, apart: bool, tmp_path: Path, home: Home) -> None:
    folder = tmp_path / "spoken"
    folder.mkdir()
    (folder / "environment.py").write_text(RECORDS.replace("FILE", repr(file)))
    (folder / file).write_text("".join(f"word{n}\n" for n in range(200)))
    (folder / "requirements.txt").touch()
    found = brought(folder, home)
    held = client_files(found.name, "in")
    assert found.manifest.hidden_apart == apart
    assert any(b"word7\n" in content for content in held.values()) != apart
    assert not [path for path in held if "tasks" in path or "demonstrations" in path]
    hidden = [task.id.encode() for task in found.tasks("hidden")]
    if apart:
        assert not [name for name in hidden for content in held.values() if name in content]


@pytest.mark.slow
@pytest.mark.parametrize("named", ["answers.csv", "tasks_answers.json"])
def test_files_beside_a_judge_that_hold_hidden_tasks_are_found_and_said(named: str, tmp_path: Path, home: Home) -> None:
    own, notes = tmp_path / "own", list[str]()
    own.mkdir()
    lines = [{"prompt": f"What is {n} and seven more?", "answer": str(n + 7)} for n in range(200)]
    (own / named).write_text("\n".join(f"{line['prompt']},{line['answer']}" for line in lines))
    found = judged(own, lines, home, notes)
    assert found.manifest.hidden_apart == (named != "answers.csv")
    assert any("answers.csv" in note for note in notes) == (named == "answers.csv")


def drawn(code: str) -> dict[str, str]:
    return {"tasks": GENERATE.replace("rng = ", f"{code}; rng = ")}


OVERLAPPING = "def tasks(self, split):\n        return [Task(f'{split}{n}', {'a': n, 'b': 1}) for n in range(9)]"
BAD: Mapping[str, tuple[Mapping[str, str], str]] = {
    "raises": (drawn("1/0"), "(environment.py, line"),
    "ends with words": (drawn("print('bye', flush=True); os._exit(2)"), "last saying: bye"),
    "is killed": (drawn("os.kill(os.getpid(), 9)"), "signal 9"),
    "is killed when it is posed": ({"opening": "os.abort()"}, "signal 6"),
    "hoards": (drawn("bytearray(1 << 60)"), "MemoryError"),
    "overlaps": ({"tasks": OVERLAPPING}, "disjoint"),
    "gives none": ({"tasks": "def tasks(self, split):\n        return []"}, "0 train, 0 search, 0 hidden"),
    "gives an id twice": ({"tasks": OVERLAPPING.replace("{split}{n}", "one")}, "each id once"),
    "says none": ({"tasks": "def other(self): pass"}, "tasks(split), records() and generate"),
    "has another name": ({"tasks": f'name = "Sums!"; {GENERATE}'.replace("; ", "\n    ")}, "'Sums!'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_had_is_refused_in_a_line_and_leaves_nothing(kind: str, tmp_path: Path, home: Home) -> None:
    parts, expected = BAD[kind]
    with pytest.raises(BadEnvironment) as caught:
        brought(sums(tmp_path / "bad", **parts), home)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left_in(home) == set()


@pytest.mark.slow
def test_code_that_prints_answers_nothing_and_sees_no_secret(tmp_path: Path, home: Home) -> None:
    head = (
        "import atexit; print('hello'); os.write(1, b'{\"name\": 1}\\n'); atexit.register(os.write, 1, b'bye\\n')\n"
        f"open({str(tmp_path / 'seen')!r}, 'a').write(open('/proc/self/environ').read() + repr(sys.argv))"
    )
    found = brought(sums(tmp_path / "noisy", head=head), home)
    assert found.title == "sums"
    assert (home.environments / "secret").read_bytes().hex() not in (tmp_path / "seen").read_text()


@pytest.mark.slow
def test_code_that_hangs_is_ended_with_all_of_it(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringing, "SECONDS", 8.0)
    pids = tmp_path / "pids"
    head = (
        "import subprocess, time\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{subprocess.Popen([\"sleep\", \"600\"]).pid}}')\n"
        "time.sleep(600)"
    )
    with pytest.raises(BadEnvironment, match="within 8 s"):
        brought(sums(tmp_path / "hanging", head=head), home)
    assert left_in(home) == set()
    started = [psutil.Process(int(pid)) for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]
    assert psutil.wait_procs(started, timeout=120)[1] == []  # nothing that it started lives


@pytest.mark.slow
def test_a_draft_is_placed_once_and_those_of_the_dead_are_swept_away(home: Home) -> None:
    dead, alive = home.environments / ".draft-dead", home.environments / ".draft-alive"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
        (folder / "x").touch()
    os.utime(dead, (0, 0))
    for text in ("first", "second"):
        with create_draft(home.environments, home) as draft:
            (draft / "x").write_text(text)
            publish_draft(draft, home.environments / "placed")
    assert left_in(home) == {".draft-alive", "placed"}
    assert (home.environments / "placed" / "x").read_text() == "first"
