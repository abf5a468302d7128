"""One attempt's log at W&B, sent by the real client to the stand-in: while it grows, late, cut short."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from research.controller import wandb as calling
from research.controller.mirror import AttemptCopy, CopyState
from research.controller.wandb import OnlineLogging, WandbClient
from research.errors import NotReady
from research.runs.files import AttemptFolder
from research.runs.wandb_log import find_log
from tests.research.tracking.logs import Writing, write
from tests.wandb_standin import StandIn, standing_in

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
DEADLINE_S = 300.0
STEPS = 4


class Clock:
    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with standing_in() as found:
        yield found


def client_of(standin: StandIn) -> WandbClient:
    online = OnlineLogging(base_url=standin.url, entity="standin")
    return WandbClient(online, {**os.environ, **standin.environment})


def copy_of(folder: Path, client: WandbClient, clock: Clock) -> AttemptCopy:
    return AttemptCopy("r1-a1", AttemptFolder(folder), client, clock, settled=False)


@pytest.fixture
def calls(standin: StandIn) -> Iterator[WandbClient]:
    with client_of(standin) as client:
        yield client


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write(folder, "r1-a1", steps=STEPS)
    return folder


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copy(tmp_path: Path, calls: WandbClient, clock: Clock) -> Iterator[AttemptCopy]:
    copy = copy_of(tmp_path, calls, clock)
    yield copy
    copy.end()


@pytest.fixture
def whole(tmp_path: Path, written: Path, copy: AttemptCopy) -> AttemptCopy:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return copy


def followed(copy: AttemptCopy, clock: Clock, *, over: bool = True, until: Callable[[], bool]) -> list[CopyState]:
    found: list[CopyState] = []
    deadline = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < deadline, (found, copy.reason)
        if (standing := copy.advance(over=over, may_send=True)) is not None:
            found.append(standing)
        clock.skipped += 0.0 if copy.sending else 5.0
        time.sleep(0.05)
    return found


def settled(copy: AttemptCopy, clock: Clock) -> list[CopyState]:
    return followed(copy, clock, until=lambda: copy.settled)


def test_a_log_is_sent_while_it_grows(tmp_path: Path, standin: StandIn, copy: AttemptCopy, clock: Clock) -> None:
    writing = Writing(tmp_path, "r1-a1")
    writing.log(1)
    known = standin.runs.by_name
    assert followed(copy, clock, over=False, until=lambda: bool(known)) == ["sending"]
    writing.log(*range(2, STEPS + 1))
    writing.close()
    assert followed(copy, clock, over=False, until=lambda: copy.settled) == ["sent"]
    run = standin.run("r1-a1")
    assert (run.steps, run.group, run.state) == (list(range(1, STEPS + 1)), "s1", "finished")
    assert run.values["run_id"] == "r1"
    assert run.history[1]["kl"] == "NaN"
    assert not standin.unknown


@pytest.mark.parametrize("withheld", [2, STEPS])
def test_rows_shown_late_are_waited_for(standin: StandIn, whole: AttemptCopy, clock: Clock, withheld: int) -> None:
    standin.withheld = withheld
    missing = f"W&B shows {STEPS - withheld} of {STEPS} steps"
    assert followed(whole, clock, until=lambda: whole.reason == missing) == ["sending"]
    looks = standin.seen["RunHistoryKeys"]
    followed(whole, clock, until=lambda: standin.seen["RunHistoryKeys"] > looks or whole.sending)
    standin.withheld = 0
    assert settled(whole, clock) == ["sent"]
    assert standin.seen["RunHistoryKeys"] >= 2
    assert standin.run("r1-a1").steps == list(range(1, STEPS + 1))  # nothing was sent twice


def test_an_answer_that_is_lost_doubles_no_row(standin: StandIn, whole: AttemptCopy, clock: Clock) -> None:
    standin.fail("file_stream", keep=True)
    assert settled(whole, clock) == ["sending", "sent"]
    assert standin.run("r1-a1").steps == list(range(1, STEPS + 1))


def test_a_sending_that_was_cut_short_is_made_good_and_doubles_no_row(
    tmp_path: Path, standin: StandIn, calls: WandbClient, copy: AttemptCopy, clock: Clock
) -> None:
    writing = Writing(tmp_path, "r1-a1")
    writing.log(1, 2, 3)
    with client_of(standin) as killed:
        first = copy_of(tmp_path, killed, clock)
        shown = followed(first, clock, over=False, until=lambda: standin.rows("r1-a1") >= 2)
        assert shown == ["sending"]
        first.end()  # the controller is killed, and what it started with it
    writing.log(4, 5, 6)
    writing.close()
    assert settled(copy, clock) == ["sent"]
    assert standin.run("r1-a1").steps == list(range(1, 7))
    assert standin.run("r1-a1").history[1]["kl"] == "NaN"


def test_a_server_that_is_gone_is_said_and_the_log_sent_once_it_is_back(
    standin: StandIn, whole: AttemptCopy, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(whole, clock, until=lambda: standin.holds("r1-a1"))
    standin.fail("Run", times=1000)
    monkeypatch.setattr(calling, "ANSWER_S", 4.0)
    with pytest.raises(NotReady, match=r"not answer|50\d"):
        settled(whole, clock)
    standin.faults.clear()
    monkeypatch.undo()
    assert settled(whole, clock) == ["sent"]


@pytest.mark.parametrize("words", [("sync",), ("beta", "sync")])
def test_a_finished_log_that_is_synced_by_hand_keeps_its_names_and_steps(
    tmp_path: Path, whole: AttemptCopy, standin: StandIn, words: tuple[str, ...]
) -> None:
    folder = find_log(tmp_path, "r1-a1").parent
    command = [sys.executable, "-m", "wandb", *words, str(folder)]
    quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_DIR": str(tmp_path)}
    for _ in range(2):  # the second time it says that it was synced
        environment = {**os.environ, **standin.environment, **quiet}
        done = subprocess.run(command, env=environment, capture_output=True, timeout=DEADLINE_S, text=True)
        assert done.returncode == 0, done.stderr
    run = standin.run("r1-a1")
    assert (run.group, run.tags, run.display_name) == ("s1", ["s1", "arm"], "n")
    assert (run.steps, run.state) == (list(range(1, STEPS + 1)), "finished")
    assert not standin.unknown
