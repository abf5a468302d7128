"""Files that clients are given hold hidden tasks where they say what a hidden task alone says, in whatever form."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

import pytest

from research.environments.code_files import holds_hidden
from swarm.environments.base import Split, Task

TASKS: Mapping[Split, list[Task]] = {
    split: [
        Task(
            f"q{start + n}",
            {
                "messages": [
                    {"role": "system", "content": "Answer in one word, nothing else."},
                    {"role": "user", "content": f'What is "{start + n}" and\n{n}\u00e9?'},
                ],
                "answer": str(start + 2 * n),
            },
        )
        for n in range(10)
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
    found = holds_hidden({"a.py": b"import random", "data/b.txt": text.encode()}, TASKS)
    assert found == ("data/b.txt" if held else None)


@pytest.mark.parametrize("make", [lambda n: f"one of {n} and many more words", lambda n: f"{n:x}" * 20])
def test_a_large_file_and_many_tasks_take_seconds(make: Callable[[int], str]) -> None:
    many: dict[Split, list[Task]] = {
        split: [Task(f"{split}-{n}", {"text": make(start + n)}) for n in range(4_000)]
        for split, start in {"train": 0, "search": 4_000, "hidden": 8_000}.items()
    }  # fmt: skip
    content = "\n".join(make(n) for n in range(8_000)) * 3
    began = time.perf_counter()
    assert holds_hidden({"a": content.encode()}, many) is None
    assert holds_hidden({"a": (content + "\n" + make(9_000)).encode()}, many) == "a"
    assert time.perf_counter() - began < 60


def test_an_id_without_a_word_stands_in_no_file() -> None:
    marks: dict[Split, list[Task]] = {"train": [], "search": [], "hidden": [Task("--", {}), Task("??", {})]}
    assert holds_hidden({"a.py": b"-- ?? and all else"}, marks) is None
