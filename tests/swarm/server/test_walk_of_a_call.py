"""A real chat call enters the functions of the walk in docs/architecture.md in that order, each from an earlier one."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from swarm.backends.fake import FakeEngine
from tests.swarm.server.support import job, serving

DOCUMENT = Path(__file__).parents[3] / "docs" / "architecture.md"
MOST_FILES = 8


class Step(NamedTuple):
    path: str
    function: str

    @property
    def code(self) -> CodeType:
        module = importlib.import_module(self.path.removesuffix(".py").replace("/", "."))
        found: Any = reduce(getattr, self.function.split("."), module)
        code = found.__code__
        assert isinstance(code, CodeType)
        return code


class Entry(NamedTuple):
    """The first time that a function was entered: what called it, the nearest first."""

    code: CodeType
    callers: tuple[CodeType, ...]

    @property
    def begins_a_task(self) -> bool:
        return Path(self.callers[0].co_filename).parts[-2:] == ("asyncio", "events.py")


def walk() -> list[Step]:
    section = DOCUMENT.read_text().partition("\n## A token\n")[2].partition("\n## ")[0]
    items = re.findall(r"^\d+\. (.*)$", section, re.MULTILINE)
    named = [re.match(r"`([\w/]+\.py)` `([\w.]+)`", item) for item in items]
    assert all(named), "each item of the walk begins with `file.py` `function`"
    return [Step(found[1], found[2]) for found in named if found]


@contextlib.contextmanager
def traced(*codes: CodeType) -> Iterator[list[Entry]]:
    entered: list[Entry] = []
    missing = set(codes)

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in missing:
            missing.remove(frame.f_code)
            entered.append(Entry(frame.f_code, tuple(_callers(frame))))

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


def _callers(frame: FrameType) -> Iterator[CodeType]:
    caller = frame.f_back
    while caller is not None:
        yield caller.f_code
        caller = caller.f_back


async def test_a_call_takes_the_walk_of_the_document(tmp_path: Path) -> None:
    codes = {step.code: step for step in walk()}
    async with serving(tmp_path, job()) as served:
        lease = await served.begin()
        await served.verb(await served.begin(), "abort")  # is answered when all before it is written
        with traced(*codes, FakeEngine.generate.__code__) as entered:
            assert (await served.chat(lease, "hi")).status == 200
    names = [codes[entry.code].function for entry in entered if entry.code in codes]
    assert names == [step.function for step in walk()]
    engine = [entry.code for entry in entered].index(FakeEngine.generate.__code__)
    assert names[engine - 1] == "AnswerGeneration.run", "the engine is asked by the generation"
    for number, entry in enumerate(entered[1:], start=1):
        earlier = {one.code for one in entered[:number]}
        assert entry.begins_a_task or not earlier.isdisjoint(entry.callers), f"who called {entry.code.co_qualname}?"


def test_the_walk_of_a_call_is_read_in_few_files() -> None:
    files = {step.path for step in walk()}
    assert 1 < len(files) <= MOST_FILES
    assert all((DOCUMENT.parents[1] / path).is_file() for path in files)
