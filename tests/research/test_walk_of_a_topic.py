"""The walk of a topic: what docs/architecture.md names is entered in that order, each from one named above it.

`ajet research` is run in this process on simulated training: planning, scheduling, collection, verdicts and the report
are the shipped ones; the sandbox, the tracker and the clock are SimLab's.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from research.cli.research import research
from research.controller import session
from research.controller.controller import StudyController
from research.design.pricing import Pricing
from research.installation.home import Home
from studies import EventLog, StudyState, fold
from swarm.job import Job
from tests.research.bench import Knows

ROOT = Path(__file__).parents[2]
TOPIC = "Does a larger group size make GRPO learn the guessing game better?"
MOST_FILES = 8


class Step(NamedTuple):
    file: str
    function: str


class Entry(NamedTuple):
    step: Step
    caller: Step | None


def walk() -> list[list[Step]]:
    """Return the steps of `A topic` in docs/architecture.md up to the lock, and those after it."""
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## A topic\n")[2].partition("\n## ")[0]
    parts = section.partition("\n### ")[0].split("\nAfter the lock:\n")
    listed = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", re.MULTILINE)
    return [[Step(*found) for found in listed.findall(part)] for part in parts]


@contextmanager
def traced(steps: list[Step]) -> Iterator[list[Entry]]:
    """Yield the list of entries into the functions of these steps, with the nearest of them that called it."""
    codes = {(str(ROOT / step.file), step.function): step for step in steps}
    entries: list[Entry] = []

    def named(frame: FrameType | None) -> Step | None:
        return frame and codes.get((frame.f_code.co_filename, frame.f_code.co_qualname))

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (step := named(frame)) is not None:
            caller = frame.f_back
            while caller is not None and named(caller) is None:
                caller = caller.f_back
            entries.append(Entry(step, named(caller)))

    sys.setprofile(note)
    try:
        yield entries
    finally:
        sys.setprofile(None)


class KnownNoise(Knows):
    sd = 0.02


def simulated(**settings: Any) -> StudyController:
    from simlab.sim_clock import SimClock
    from simlab.sim_run import MODEL
    from simlab.sim_sandbox import SimSandbox, SimTracker
    from simlab.worlds import MainEffect, Planted

    world = Planted(
        7, {"group_size": (4, 8, 16, 32)}, {"group_size": 8}, (MainEffect("group_size", {16: 0.2, 32: 0.2}),),
        seed_sd=0.02, steps=8,
    )  # fmt: skip
    home: Home = settings["home"]
    clock = SimClock()
    sandbox = SimSandbox(home.sandboxes, world, clock)

    class OnSimulatedTime(StudyController):
        def tick(self) -> StudyState:
            ends = [(moment - clock.true).total_seconds() for moment in sandbox.running().values()]
            clock.advance(max([1.0, *ends]))
            return super().tick()

    return OnSimulatedTime(
        **{
            **settings, "sandbox": sandbox, "clock": clock, "seconds": clock.seconds,
            "pricing": Pricing(lambda job: 60.0, 2, 0.0, "made up"),
            "base": Job.model_validate({"steps": world.steps, "model": MODEL}),
            "read_tracking": SimTracker(clock), "noise_bank": lambda log: KnownNoise(),
            "draw_secret": lambda size: hashlib.sha256(b"walk").hexdigest()[: 2 * size],
        }
    )  # fmt: skip


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("AJET_HOME", str(tmp_path))
    monkeypatch.setattr(session, "StudyController", simulated)
    monkeypatch.setattr(session, "drive", partial(session.drive, poll_s=0.0))
    with traced([step for part in walk() for step in part]) as found:
        research(topic=TOPIC, budget="1d", sandbox="process", prefect=False, json=True)
    log = EventLog(Home.locate().database)
    state = fold(log.read(log.studies()[0]))
    assert (state.status, len(state.verdicts)) == ("concluded", 1)
    return found


@pytest.mark.slow
def test_a_topic_walks_through_the_functions_that_the_docs_name_in_their_order(entries: list[Entry]) -> None:
    above: list[Step] = []
    left = iter(entries)
    for step in [step for part in walk() for step in part]:
        callers = {None, *above} if not above else set(above)
        came = next((entry for entry in left if entry.step == step and entry.caller in callers), None)
        assert came is not None, f"{step.file} {step.function} is entered after {above[-1:]}"
        above.append(step)


@pytest.mark.parametrize("part", [0, 1], ids=["before", "after"])
def test_a_part_of_the_walk_is_read_in_eight_files(part: int) -> None:
    steps = walk()[part]
    assert (len(steps) >= 5, len({step.file for step in steps}) <= MOST_FILES) == (True, True)
