"""Bringing an environment ends in a whole folder under its hash, or in one line and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from research.environments import install as bringing
from research.environments.install import create_draft, install_environment, publish_draft
from research.environments.reference import client_files, read_reference, records_of
from research.errors import BadEnvironment
from research.installation.home import Home
from swarm.environments.custom import CustomEnvironment
from tests.golden import refused
from tests.research.environments.written import GENERATE, sums

pytestmark = pytest.mark.slow

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


def test_the_same_folder_is_brought_under_the_same_name_wherever_it_lies(folder: Path, home: Home) -> None:
    first = brought(folder, home)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "environment.cpython-311.pyc").write_bytes(b"x")
    os.utime(folder / "environment.py", (0, 0))
    moved = Path(shutil.copytree(folder, folder.with_name("elsewhere")))
    assert brought(moved, home).name == first.name
    assert left_in(home) == {first.name}
    assert first.manifest.hidden_apart
    counts = {split: len(first.tasks(split)) for split in first.manifest.splits}
    assert counts == {"train": 40, "search": 10, "hidden": 20}


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
    name, title, measures = "words", "words", "it is said"
    def records(self):
        lines = (Path(__file__).parent / FILE).read_text().splitlines()
        return [Task(line, {"word": line}) for line in lines]
    def game(self, task): return Echo()
"""


@pytest.mark.parametrize(("file", "apart"), [("tasks.jsonl", True), ("words.txt", False)])
def test_a_client_holds_no_records_or_is_said_to(file: str, apart: bool, tmp_path: Path, home: Home) -> None:
    folder = tmp_path / "words"
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


@pytest.mark.parametrize("named", ["answers.csv", "tasks_answers.json"])
def test_files_beside_a_judge_that_hold_hidden_tasks_are_found_and_said(named: str, tmp_path: Path, home: Home) -> None:
    own, notes = tmp_path / "own", list[str]()
    own.mkdir()
    lines = [{"prompt": f"What is {n} and seven more?", "answer": str(n + 7)} for n in range(200)]
    (own / named).write_text("\n".join(f"{line['prompt']},{line['answer']}" for line in lines))
    found = judged(own, lines, home, notes)
    assert found.manifest.hidden_apart == (named != "answers.csv")
    assert any("answers.csv" in note for note in notes) == (named == "answers.csv")


def test_code_and_tasks_that_no_container_holds_are_refused_when_they_are_brought(
    folder: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "words.txt").write_bytes(b"x" * 3000)
    brought(folder, home)
    monkeypatch.setattr(bringing, "MOST_GIVEN_BYTES", 4000)
    with refused(BadEnvironment, "MiB of code"):
        brought(folder, home)
    assert len(left_in(home)) == 1


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


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_had_is_refused_in_a_line_and_leaves_nothing(kind: str, tmp_path: Path, home: Home) -> None:
    parts, expected = BAD[kind]
    with pytest.raises(BadEnvironment) as caught:
        brought(sums(tmp_path / "bad", **parts), home)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left_in(home) == set()


def test_code_that_prints_answers_nothing_and_sees_no_secret(tmp_path: Path, home: Home) -> None:
    head = (
        "import atexit; print('hello'); os.write(1, b'{\"name\": 1}\\n'); atexit.register(os.write, 1, b'bye\\n')\n"
        f"open({str(tmp_path / 'seen')!r}, 'a').write(open('/proc/self/environ').read() + repr(sys.argv))"
    )
    found = brought(sums(tmp_path / "noisy", head=head), home)
    assert found.title == "sums"
    assert (home.environments / "secret").read_bytes().hex() not in (tmp_path / "seen").read_text()


def test_a_demonstration_that_hangs_is_named_with_its_line_and_no_task_is_blamed(tmp_path: Path, home: Home) -> None:
    hanging = sums(tmp_path / "hanging", opening="import time; time.sleep(600)")
    with pytest.raises(BadEnvironment, match=r"imitate\(\) did not end within 0.5 s \(environment.py, line"):
        install_environment(read_reference(str(hanging)), home, lambda _: None, play_s=0.5)


def test_tasks_that_seeds_gave_again_are_counted_in_a_line(tmp_path: Path, home: Home) -> None:
    told: list[str] = []
    home.environments.mkdir(parents=True, exist_ok=True)
    (home.environments / "secret").write_bytes(b"\x01" * 32)  # the split is alike each time
    few = sums(tmp_path / "few", tasks=GENERATE.replace("99", "7"))
    found = install_environment(read_reference(str(few)), home, told.append)
    different = sum(found.manifest.splits.values())
    assert different <= 49
    assert [line for line in told if f"70 tasks were asked for, {different} different" in line] != []


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
    assert psutil.wait_procs(started, timeout=120)[1] == [], "nothing that it started lives"


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
