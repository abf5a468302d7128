"""Texts that people read, kept in one file a room: a test says who is told, `golden.json` says what.

    with refused(JobError, "group_size"):      # the error names the field; its text is the file's
        ...
    assert_golden(report)                      # any other text

Where a text is another one than the file's, the test fails and shows both. `pytest --golden` writes the texts of the
tests that run into the files, and forgets those of tests that are gone. Folders of a test's own read `<tmp>`.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from filelock import FileLock

HERE: Final = Path(__file__).parent
COLLECTED: Final = pytest.StashKey[set[str]]()
"""The ids of all tests that were collected, those that are left out too."""
_asked: Counter[str] = Counter()
_read: dict[Path, dict[str, str]] = {}
updating = False  # set by conftest, from --golden
temporary = ""  # where pytest makes the folders of tests


@contextmanager
def refused(
    error: type[BaseException] | tuple[type[BaseException], ...], *names: str
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect the error, the names in its text (a field, a value), and the text that the room's file has."""
    with pytest.raises(error) as caught:
        yield caught
    text = str(caught.value)
    assert [name for name in names if name not in text] == [], text
    assert_golden(text)


def assert_golden(text: str) -> None:
    """Expect the text that the room's file has for this call of this test."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    _asked[test] += 1
    key = test.partition("/")[2] + ("" if _asked[test] == 1 else f" #{_asked[test]}")
    room = key.split("/")[0]
    file = HERE / room / "golden.json" if (HERE / room).is_dir() else HERE / "golden.json"
    text = _of_any_run(text)
    if updating:
        _write(file, key, text)
    assert text == _texts(file).get(key), f"the text of {key} in {file.name} is another (pytest --golden writes it)"


def stale(collected: set[str]) -> list[str]:
    """Return the keys of texts that no test of the collected files asks for by its id: they hold nothing."""
    keys = [f"tests/{key}" for file in HERE.glob("**/golden.json") for key in json.loads(file.read_text())]
    files = {test.partition("::")[0] for test in collected}
    return [key for key in keys if key.partition("::")[0] in files and key.partition(" #")[0] not in collected]


def _of_any_run(text: str) -> str:
    own = re.escape(temporary) + r"(/popen-gw\d+)?(/[^\s/'\"]+)?" if temporary else r"(?!)"
    return re.sub(own, "<tmp>", text)


def _texts(file: Path) -> dict[str, str]:
    if file not in _read:
        _read[file] = json.loads(file.read_text()) if file.exists() else {}
    return _read[file]


def _write(file: Path, key: str, text: str) -> None:
    """Change one text; forget those whose test is gone."""
    with FileLock(Path(temporary) / f"{file.parent.name}.golden.lock"):
        texts = json.loads(file.read_text()) if file.exists() else {}
        texts[key] = text
        known = {key: text for key, text in sorted(texts.items()) if is_there(key)}
        file.write_text(json.dumps(known, indent=0, ensure_ascii=False) + "\n")
        _read[file] = known


def is_there(key: str) -> bool:
    """Say whether the test of a key is still written."""
    path, _, name = key.partition("::")
    file = HERE / path
    return file.exists() and f"def {name.split('[')[0].split(' #')[0].split('::')[-1]}(" in file.read_text()
