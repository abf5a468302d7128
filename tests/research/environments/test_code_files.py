from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from research.environments.catalog import read_reference
from research.environments.install import CodeFiles, find_hidden_leak, is_record, read_code
from research.errors import BadEnvironment
from swarm.environments.base import Split, Task


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shop"
    write(folder, {"environment.py": "a", "words.txt": "b", "tasks.jsonl": "c", "data/prices.csv": "d"})
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def code(text: str = "shop", reward: str | None = None) -> CodeFiles:
    return read_code(read_reference(text, reward))


RECORDS = ["tasks.json", "tasks.jsonl", "tasks-hidden.jsonl", "data/tasks.json", "tasks/train.csv", "hidden/x.txt",
           "a/hidden/x.py", "a/tasks/b/c.txt"]  # fmt: skip
OTHERS = ["environment.py", "tasks.py", "tasks/__init__.py", "words.json", "hidden", "my_tasks.json"]


def test_records_are_known_by_their_place() -> None:
    assert [path for path in (*RECORDS, *OTHERS) if is_record(path)] == RECORDS


def test_clients_get_all_but_the_records_and_requirements_are_read(shop: Path) -> None:
    assert sorted(code().files) == ["data/prices.csv", "environment.py", "tasks.jsonl", "words.txt"]
    assert sorted(code().shared) == ["data/prices.csv", "environment.py", "words.txt"]
    write(shop, {"requirements.txt": "numpy\n"})
    assert code().requirements == "numpy\n"


def test_the_tasks_that_a_function_judges_are_kept_from_clients_whatever_they_are_called(tmp_path: Path) -> None:
    write(tmp_path / "q", {"judge.py": "a", "questions.jsonl": '{"prompt": "?"}', "copy.txt": '{"prompt": "?"}'})
    assert sorted(code("q/questions.jsonl", "q/judge.py").files) == ["judge.py"]


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo])
def test_what_is_no_file_is_refused_and_holds_nobody_up(shop: Path, make: Callable[[Path], None]) -> None:
    make(shop / "odd")
    with pytest.raises(BadEnvironment, match=r"shop, .*odd"):
        code()


@pytest.mark.parametrize(("limit", "value"), [("MOST_BYTES", 3), ("MOST_FILES", 3)])
def test_a_folder_that_is_too_large_is_refused(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"research.environments.install.{limit}", value)
    with pytest.raises(BadEnvironment, match=rf"at most {value} "):
        code()


def test_a_module_here_is_copied_with_its_package(tmp_path: Path) -> None:
    write(tmp_path, {"worlds/__init__.py": "", "worlds/market.py": "x", "alone.py": "y", "other.py": "z"})
    assert sorted(code("worlds.market:Market").files) == ["worlds/__init__.py", "worlds/market.py"]
    assert code("alone:Market").files == {"alone.py": b"y"}


@pytest.mark.slow
def test_an_installed_package_is_copied_and_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    write(site, {
        "offered_worlds/__init__.py": "raise RuntimeError('imported')",
        "offering-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n"
        "Requires-Dist: numpy>=1\nRequires-Dist: ajet\nRequires-Dist: pytest; extra == 'dev'\n",
        "offering-1.0.dist-info/top_level.txt": "offered_worlds\n",
    })  # fmt: skip
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    found = code("offered_worlds:World")
    assert list(found.files) == ["offered_worlds/__init__.py"]
    assert found.requirements == "numpy>=1\n"


def test_a_module_without_files_is_refused_and_an_adapter_brings_no_code_but_names_its_package() -> None:
    for text in ("no_such_module_here:X", "sys:X", "os:X"):
        with pytest.raises(BadEnvironment, match=f"{text[:-2]} of {text}"):
            code(text)
    found = code("textarena:Wordle-v0")
    assert (dict(found.files), found.requirements.partition("==")[0]) == ({}, "textarena")


SYSTEM = {"role": "system", "content": "Answer in one word, nothing else."}


def user(number: int) -> dict[str, str]:
    return {"role": "user", "content": f'What is "{number}" and\n{number % 100}\u00e9?'}


TASKS: Mapping[Split, list[Task]] = {
    split: [
        Task(f"q{n}", {"messages": [SYSTEM, user(n)], "answer": str(2 * n - start)}) for n in range(start, start + 10)
    ]
    for split, start in {"train": 100, "search": 200, "hidden": 300}.items()
}


def as_lines(*splits: Split) -> str:
    return "\n".join(json.dumps({"id": task.id, **task.data}) for split in splits for task in TASKS[split])


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("def reward(task, messages):\n    return 'Answer in one word, nothing else.' in messages", False),
        (as_lines("train", "search"), False),
        (as_lines("train", "hidden"), True),
        (as_lines("hidden").splitlines()[3], True),
        ('copy = "what is 303 and\\n3\\u00e9"', True),
        ("# What is 303\n# and 3\u00e9?", True),
        ("\n".join(f"{task.id},{task.data['answer']}" for task in TASKS["hidden"]), True),
        ("\n".join(f"{task.id},{task.data['answer']}" for task in TASKS["hidden"][:3]), False),
        (" ".join(map(str, range(400))), False),
        ("", False),
    ],
)
def test_a_file_holds_what_only_hidden_tasks_say(text: str, held: bool) -> None:
    found = find_hidden_leak({"a.py": b"import random", "data/b.txt": text.encode()}, TASKS)
    assert found == ("data/b.txt" if held else None)
