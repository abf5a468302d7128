"""The walk of a topic: what docs/architecture.md names is entered in that order, each from one named above it.

`ajet research` is run in this process on simulated training: planning, scheduling, collection, verdicts and the report
are the shipped ones; the sandbox, the tracker and the clock are SimLab's.
"""

from __future__ import annotations

import hashlib
import re
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from research.cli.research import research
from research.controller import session
from research.controller.controller import StudyController, TickResult
from research.design.noise_bank import NoiseBank
from research.design.pricing import Pricing
from research.installation.home import Home
from studies import EventLog, fold
from studies.records.design import Metric
from studies.records.procedure import Noise
from swarm.job import Job

ROOT = Path(__file__).parents[2]
TOPIC = "Does a larger group size make GRPO learn the guessing game better?"
MOST_FILES = 8


class Step(NamedTuple):
    file: str
    function: str


class Entry(NamedTuple):
    step: Step
    caller: Step | None


def walk() -> tuple[list[Step], list[Step]]:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text[text.index("\n## A topic\n") :]
    section = section[: section.index("\n## ", 1)]
    before, after = section[: section.index("\n### ", 1)].split("\nAfter the lock:\n")
    return _steps(before), _steps(after)


def _steps(text: str) -> list[Step]:
    return [Step(*found) for found in re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", text, re.MULTILINE)]


class Trace:
    def __init__(self, steps: list[Step]) -> None:
        self._codes = {(str(ROOT / step.file), step.function): step for step in steps}
        self.entries: list[Entry] = []

    def __enter__(self) -> Trace:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (step := self._named(frame)) is not None:
            caller = frame.f_back
            while caller is not None and self._named(caller) is None:
                caller = caller.f_back
            self.entries.append(Entry(step, None if caller is None else self._named(caller)))

    def _named(self, frame: FrameType) -> Step | None:
        return self._codes.get((frame.f_code.co_filename, frame.f_code.co_qualname))


class KnownNoise(NoiseBank):
    def find(self, environment: str, job: Job, metric: Metric) -> Noise:
        return Noise(sd=0.02, df=20, episodes=metric.episodes, basis="made up")


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
        def tick(self) -> TickResult:
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
    with Trace([step for part in walk() for step in part]) as trace:
        research(topic=TOPIC, budget="1d", sandbox="process", prefect=False, json=True)
    log = EventLog(Home.locate().database)
    state = fold(log.read(log.studies()[0]))
    assert state.status == "concluded"
    assert state.verdicts
    return trace.entries


@pytest.mark.slow
def test_a_topic_walks_through_the_functions_that_the_docs_name_in_their_order(entries: list[Entry]) -> None:
    above: list[Step] = []
    left = iter(entries)
    for step in [step for part in walk() for step in part]:
        callers = {None, *above} if not above else set(above)
        came = next((entry for entry in left if entry.step == step and entry.caller in callers), None)
        assert came is not None, f"{step.file} {step.function} is entered after {above[-1:]}, from one of those above"
        above.append(step)


@pytest.mark.parametrize("part", [0, 1], ids=["up to the lock", "after it"])
def test_a_part_of_the_walk_is_read_in_eight_files(part: int) -> None:
    steps = walk()[part]
    assert len(steps) >= 5
    assert len({step.file for step in steps}) <= MOST_FILES
