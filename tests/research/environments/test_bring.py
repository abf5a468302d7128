"""Bringing an environment ends in a whole folder under its hash, or in one line and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from research.environments import bring as bringing
from research.environments.bring import bring, environment_of
from research.environments.drafts import draft_in, place
from research.environments.record import client_files, records_of, requirements_of
from research.environments.reference import read_reference
from research.errors import BadEnvironment, HomeError, ResearchError
from research.installation.home import Home
from research.proposals.reward_code import MOST_BYTES as MOST_CODE_BYTES
from sandboxes.docker import archive
from swarm.environments.brought import MOST_GIVEN_BYTES, BroughtEnvironment
from swarm.environments.registry import get_environment, look_in
from swarm.errors import InvalidRequest

pytestmark = pytest.mark.slow

SUMS = """
import os, random, sys
from swarm.environments import Environment, Game, Outcome, Task, said, text_of
class SumGame(Game):
    def __init__(self, task): self._task, self._said = task, ""
    def opening(self): return [{"role": "user", "content": "{left} + {right}".format(**self._task.data)}]
    def answer(self, message): self._said = text_of(message)
    def outcome(self): return Outcome(float(self._said == str(sum(self._task.data.values()))))
class Sums(Environment):
    name, title, measures, solved_at = "sums", "sums", "the sum is right", 1.0
    sizes = {"train": 40, "search": 8, "hidden": 16}
    def generate(self, seed):
        rng = random.Random(seed)
        left, right = rng.randint(0, 30), rng.randint(0, 30)
        return Task(f"{left}+{right}", {"left": left, "right": right})
    def game(self, task): return SumGame(task)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate({"AJET_HOME": str(tmp_path / "home")}).prepare()


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    return folder_with(tmp_path / "sums", SUMS)


def folder_with(folder: Path, text: str, **files: str) -> Path:
    folder.mkdir()
    (folder / "environment.py").write_text(text)
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def brought(folder: Path, home: Home) -> BroughtEnvironment:
    return bring(read_reference(str(folder)), home, lambda _: None)


def left_in(home: Home) -> set[str]:
    """What lies among the brought ones, but for the secret."""
    return {path.name for path in home.environments.iterdir()} - {"secret"}


def test_the_same_folder_is_brought_under_the_same_name_wherever_it_lies(sums: Path, home: Home) -> None:
    first = brought(sums, home)
    (sums / "__pycache__").mkdir()
    (sums / "__pycache__" / "environment.cpython-311.pyc").write_bytes(b"x")
    os.utime(sums / "environment.py", (0, 0))
    moved = Path(shutil.copytree(sums, sums.with_name("elsewhere")))
    assert brought(moved, home).name == first.name
    assert left_in(home) == {first.name}
    assert first.manifest.hidden_apart
    assert {split: len(first.tasks(split)) for split in first.manifest.splits} == {
        "train": 40,
        "search": 8,
        "hidden": 16,
    }


def test_two_that_bring_at_once_get_the_same(sums: Path, home: Home) -> None:
    with ThreadPoolExecutor() as pool:
        names = {found.name for found in pool.map(lambda _: brought(sums, home), range(2))}
    assert left_in(home) == names
    assert len(names) == 1


def test_hidden_tasks_follow_from_the_installations_secret_which_is_its_owners(sums: Path, home: Home) -> None:
    first = brought(sums, home)
    secret = home.environments / "secret"
    assert secret.stat().st_mode & 0o077 == 0
    secret.unlink()
    other = brought(sums, home)
    assert other.name != first.name
    assert {t.id for t in other.tasks("hidden")} != {t.id for t in first.tasks("hidden")}
    secret.write_bytes(b"")
    with pytest.raises(BadEnvironment, match="expected a secret of 32 bytes in"):
        brought(sums, home)


def test_a_brought_one_is_not_changed_by_what_becomes_of_its_folder(sums: Path, home: Home) -> None:
    first = brought(sums, home)
    (sums / "environment.py").write_text(SUMS.replace("30", "31"))
    assert b"31" not in BroughtEnvironment.open(first.folder).code()["environment.py"]
    second = brought(sums, home)
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
    words = "".join(f"word{n}\n" for n in range(200))
    folder = folder_with(
        tmp_path / "words", RECORDS.replace("FILE", repr(file)), **{file: words, "requirements.txt": ""}
    )
    found = brought(folder, home)
    held = client_files(found.name, "in")
    assert found.manifest.hidden_apart == apart
    assert any(b"word7\n" in content for content in held.values()) != apart
    assert not [path for path in held if "tasks" in path or "demonstrations" in path]
    hidden = [task.id.encode() for task in found.tasks("hidden")]
    if apart:
        assert not [name for name in hidden for content in held.values() if name in content]


def test_a_file_of_tasks_is_held_by_no_client(tmp_path: Path, home: Home) -> None:
    lines = "".join(json.dumps({"prompt": f"say word{n}", "answer": f"word{n}"}) + "\n" for n in range(200))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "questions.jsonl").write_text(lines)
    (tmp_path / "own" / "judge.py").write_text("def reward(task, messages):\n    return 1.0\n")
    reference = read_reference(str(tmp_path / "own" / "questions.jsonl"), str(tmp_path / "own" / "judge.py"))
    found = bring(reference, home, lambda _: None)
    assert found.name.startswith("questions@")
    held = client_files(found.name, "in")
    assert sorted(path.rpartition("/")[2] for path in held) == ["judge.py", "manifest.json"]


@pytest.mark.parametrize("named", ["answers.csv", "tasks_answers.json"])
def test_files_beside_a_judge_that_hold_hidden_tasks_are_found_and_said(named: str, tmp_path: Path, home: Home) -> None:
    own = tmp_path / "own"
    own.mkdir()
    lines = [{"prompt": f"What is {n} and seven more?", "answer": str(n + 7)} for n in range(200)]
    (own / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (own / named).write_text("\n".join(f"{line['prompt']},{line['answer']}" for line in lines))
    (own / "judge.py").write_text("def reward(task, messages):\n    return 1.0\n")
    notes: list[str] = []
    found = bring(read_reference(str(own / "questions.jsonl"), str(own / "judge.py")), home, notes.append)
    assert found.manifest.hidden_apart == (named != "answers.csv")
    assert any("clients get answers.csv, which holds hidden" in note for note in notes) == (named == "answers.csv")


def test_code_and_tasks_that_no_container_holds_are_refused_when_they_are_brought(
    sums: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sums / "words.txt").write_bytes(b"x" * 3000)
    brought(sums, home)
    monkeypatch.setattr(bringing, "MOST_GIVEN_BYTES", 4000)
    with pytest.raises(
        BadEnvironment, match=r"of code and train tasks together in .*MiB of code; give fewer"
    ) as refused:
        brought(sums, home)
    assert "\n" not in str(refused.value)
    assert len(left_in(home)) == 1


def test_what_may_be_brought_is_what_a_container_holds() -> None:
    most = {"tasks.json": b"x" * MOST_GIVEN_BYTES, "environments/manifest.json": b"x" * (1 << 20)}
    assert archive.check(archive.pack({**most, "reward.py": b"x" * MOST_CODE_BYTES})).keys() > most.keys()


def sums_after(code: str) -> str:
    """The sums, whose file does something else before."""
    return SUMS.replace("import os, random, sys", f"import os, random, sys\n{code}", 1)


OVERLAPPING = SUMS.replace("generate(self, seed)", "tasks(self, split)").replace(
    "rng = random.Random(seed)", "return [Task(f'{split}{n}', {'left': n, 'right': 1}) for n in range(9)]"
)
BAD: Mapping[str, tuple[str, str]] = {
    "raises": (SUMS.replace("rng = ", "1/0; rng = "), "raised ZeroDivisionError: division by zero (environment.py"),
    "ends": (SUMS.replace("rng = ", "sys.exit(0); rng = "), "raised SystemExit: 0"),
    "ends at once": (SUMS.replace("rng = ", "os._exit(0); rng = "), "by itself, with exit code 0 (os._exit"),
    "ends with words": (
        SUMS.replace("rng = ", "print('bye', flush=True); os._exit(2); rng = "),
        "with exit code 2 (os._exit, or a library's exit), while its tasks were drawn, last saying: bye; mend it",
    ),
    "is killed": (SUMS.replace("rng = ", "os.kill(os.getpid(), 9); rng = "), "process by signal 9 (SIGKILL: is"),
    "is killed when it is posed": (
        SUMS.replace("def opening(self): ", "def opening(self): os.abort(); "),
        "by signal 6 (SIGABRT: a library of C gave up), while some of its tasks were posed by what clients hold",
    ),
    "hoards": (SUMS.replace("rng = ", "bytearray(1 << 60); rng = "), "raised MemoryError"),
    "overlaps": (OVERLAPPING, "expected disjoint splits of sums"),
    "is of no kind": ("x = 1\n", "expected one subclass of Environment in environment.py; found none"),
    "needs a package": ("import surely_not_installed\n" + SUMS, "it needs the package 'surely_not_installed'"),
    "has another name": (SUMS.replace('"sums", "sums"', '"Sums!", "sums"'), "expected a name of 1 to 64 letters a-z"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_had_is_refused_in_a_line_and_leaves_nothing(kind: str, tmp_path: Path, home: Home) -> None:
    text, expected = BAD[kind]
    with pytest.raises(BadEnvironment) as refused:
        brought(folder_with(tmp_path / "bad", text), home)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    assert left_in(home) == set()


def test_what_code_prints_is_no_answer_and_the_secret_is_in_no_variable_of_its_process(
    tmp_path: Path, home: Home
) -> None:
    noise = (
        "import atexit; print('hello'); os.write(1, b'{\"name\": 1}\\n'); atexit.register(os.write, 1, b'bye\\n')\n"
        f"open({str(tmp_path / 'seen')!r}, 'a').write(open('/proc/self/environ').read() + repr(sys.argv))"
    )
    found = brought(folder_with(tmp_path / "noisy", sums_after(noise)), home)
    assert found.title == "sums"
    assert (home.environments / "secret").read_bytes().hex() not in (tmp_path / "seen").read_text()


def test_code_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "SECONDS", 8.0)
    pids = tmp_path / "pids"
    hang = (
        "import subprocess, time\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{subprocess.Popen([\"sleep\", \"600\"]).pid}}')\n"
        "time.sleep(600)"
    )
    with pytest.raises(BadEnvironment, match="to give its tasks within 8 s; its code did not return"):
        brought(folder_with(tmp_path / "hanging", sums_after(hang)), home)
    assert left_in(home) == set()
    deadline = time.monotonic() + 10.0
    while any(runs(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline, "something that it started lives"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_installation_that_cannot_be_written_is_told_as_that(sums: Path, home: Home) -> None:
    home.environments.touch()
    with pytest.raises(HomeError, match="expected a folder that can be written"):
        brought(sums, home)


def test_what_is_gone_is_missed_by_its_name() -> None:
    with pytest.raises(
        InvalidRequest, match="expected the environment gone@000000000000 among those that were brought"
    ):
        requirements_of(["gone@000000000000"])


def test_a_built_in_one_is_brought_by_nobody(home: Home) -> None:
    assert environment_of("guess", None, home, lambda _: None) is get_environment("guess")
    assert not home.environments.exists()
    with pytest.raises(ResearchError):
        environment_of("guess", "judge.py", home, lambda _: None)


def test_a_brought_one_is_taken_by_its_name(sums: Path, home: Home) -> None:
    name = brought(sums, home).name
    look_in(home.environments)
    assert environment_of(name, None, home, lambda _: None).name == name


def test_a_draft_is_placed_once_and_those_of_the_dead_are_swept_away(home: Home) -> None:
    dead, alive = home.environments / ".draft-dead", home.environments / ".draft-alive"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
        (folder / "x").touch()
    os.utime(dead, (0, 0))
    for text in ("first", "second"):
        with draft_in(home.environments, home) as draft:
            (draft / "x").write_text(text)
            place(draft, home.environments / "placed")
    assert left_in(home) == {".draft-alive", "placed"}
    assert (home.environments / "placed" / "x").read_text() == "first"
