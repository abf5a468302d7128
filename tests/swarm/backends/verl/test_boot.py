"""In which order the parts of a backend come up, over fakes of all of them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.backends.verl import backend as module
from swarm.job import Job
from swarm.verl_fields import VerlFields


class _FakeParts:
    """Learner, engine and cluster that write down when they come up; the learner waits to be let."""

    def __init__(self, fields: VerlFields) -> None:
        self.done: list[str] = []
        self.may_learn = threading.Event()
        self.cluster: Any = SimpleNamespace(fields=fields, device="cpu", leave=lambda: None)

    def prepared(self, job: Job, models: Path) -> Any:
        return Path(), SimpleNamespace(template=""), self.cluster

    def learner(self, *arguments: Any) -> Any:
        assert self.may_learn.wait(30)
        self.done.append("learner")
        return SimpleNamespace()

    def engine(self, *arguments: Any) -> Any:
        async def start() -> None:
            self.done.append("engine")
            self.may_learn.set()

        return SimpleNamespace(start=start)


@pytest.fixture
def come_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def order(fields: VerlFields, *, engine_first: bool) -> list[str]:
        parts = _FakeParts(fields)
        for name in ("prepared", "learner", "engine"):
            monkeypatch.setattr(module, f"_{name}", getattr(parts, name))
        monkeypatch.setattr(module, "_hash_of", lambda learner: "")
        if not engine_first:
            asyncio.get_running_loop().call_later(0.05, parts.may_learn.set)
        await module._begun(Job(backend="verl", verl=fields), Path())
        return parts.done

    return order


async def test_an_engine_comes_up_beside_a_learner_that_takes_its_time(come_up: Any) -> None:
    assert await come_up(VerlFields(), engine_first=True) == ["engine", "learner"]


async def test_where_they_share_devices_the_learner_has_left_them_before(come_up: Any) -> None:
    assert await come_up(VerlFields(colocated=True), engine_first=False) == ["learner", "engine"]
