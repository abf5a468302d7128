from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from research.cli.top import TopFrame, screen, sparkline
from research.installation.servers import SwarmProcess
from swarm.client import NamedTask
from swarm.snapshot import OwnerSnapshot, Snapshot, StepRecord, StepWait, StreamSnapshot
from swarm.wire import EvaluationSummary, ServerState, Status
from tests.research.cli.conftest import Ajet, client_of, own_server, server_of, small_job

RISING = tuple(
    StepRecord(
        step=step,
        metrics={
            "critic/rewards/mean": step / 100, "critic/success/mean": step / 200, "actor/pg_loss": -step / 1000,
            "actor/ppo_kl": 0.0, **({"eval/success/mean": 0.5} if step % 10 == 0 else {}),
        },
    )
    for step in range(1, 41)
)  # fmt: skip


def frame(**fields: Any) -> TopFrame:
    """Return a frame of the 40th step of 100, unless `fields` of its snapshot say otherwise."""
    status = Status(
        state=ServerState.ROLLING, job_digest="ab" * 32, step=40, steps=100, open_episodes=7, collected_episodes=20,
        needed_episodes=64, evaluation=EvaluationSummary(step=40, episodes=64, reward=0.4, success=0.5),
        best=EvaluationSummary(step=30, episodes=64, reward=0.6, success=0.625),
    )  # fmt: skip
    told: dict[str, Any] = {
        "at": 1_700_000_000.0, "status": status, "environment": "guess", "model": "tiny (2 layers of 64)",
        "algorithm": "grpo", "seconds_left": 125.0, "line": 3, "line_age_s": 12.0, "sampled_per_s": 1234.0,
        "trained_per_s": 987.0, "drops": {"lease_expired": 4, "constant_group": 9},
        "waits": (
            StepWait(what="episodes", text="44 episodes of stream hard (nobody plays)", stream="hard", count=44),
            StepWait(what="episodes", text="8 episodes of stream easy (7 in play)", stream="easy", count=8),
        ),
        "streams": (
            StreamSnapshot(name="easy", share=0.4, cursor=9, groups_trained=12, groups_open=3, groups_whole=1,
                           episodes_open=7, lacking=0),
            StreamSnapshot(name="hard", share=0.6, cursor=2, groups_trained=5, groups_open=0, groups_whole=0,
                           episodes_open=0, lacking=2),
        ),
        "owners": (OwnerSnapshot(owner="host:123:abc", open=7, heard_s=0.2, oldest_s=44.0),),
    }  # fmt: skip
    return TopFrame(Snapshot(**{**told, **fields}), RISING[0], RISING)


def lines_of(shown: TopFrame, width: int = 80) -> list[str]:
    paper = Console(width=width, file=io.StringIO(), soft_wrap=True)
    paper.print(screen("http://127.0.0.1:8700", shown))
    return paper.file.getvalue().splitlines()


def test_a_frame_says_state_wait_streams_clients_curves_and_drops() -> None:
    said = "\n".join(lines_of(frame()))
    for words in (
        "state      ROLLING", "waits for  44 episodes of stream hard (nobody plays)", "40 of 100, about 2 min 5 s left",
        "8 episodes of stream easy (7 in play)", "1,234 sampled, 987 trained per second", "evaluation success 0.5 at",
        "best success 0.625 at step 30", "13: 9 constant_group, 4 lease_expired",
        "reward 0.4 at step 40, 0.01 at step 1 ▁",
        "clients host:123:abc: 7 open, heard 0 s ago, the oldest for 44 s",
        "streams easy (40%): groups 12 trained, 3 open",
    ):  # fmt: skip
        assert re.search(" +".join(map(re.escape, words.split())), said), said
    assert not re.search("^KL", said, re.MULTILINE)  # which is 0 throughout


def test_there_is_no_pace_while_nobody_plays() -> None:
    idle = frame().snapshot.status.model_copy(update={"open_episodes": 0})
    said = "\n".join(lines_of(frame(status=idle, line=0)))
    assert re.search(r"40 of 100 *\n", said)
    assert re.search(r"- sampled, - trained per second", said)


@given(st.integers(20, 200), st.text(max_size=200), st.text(max_size=200))
def test_no_line_is_wider_than_a_terminal_or_steers_it(width: int, owner: str, text: str) -> None:
    owners = (OwnerSnapshot(owner=owner, open=1, heard_s=0.0, oldest_s=0.0),)
    for line in lines_of(frame(owners=owners, waits=(StepWait(what="episodes", text=text),)), width):
        assert cell_len(line) <= width
        assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in line)


def test_a_server_that_does_not_answer_or_failed_is_told_first() -> None:
    assert lines_of(replace(frame(), silent=True))[1].startswith("no answer")
    status = Status(state=ServerState.FAILED, reason="no room left")
    assert "FAILED: no room" in lines_of(frame(status=status, waits=(), streams=(), owners=()))[1]


def test_what_does_not_fit_is_averaged_and_what_is_not_known_is_a_gap() -> None:
    assert sparkline([0.0, 0.0, 10.0, 10.0], 2) == "▁█"
    assert sparkline([0.0, None, 10.0], 9) == "▁ █"
    assert sparkline([0.0, None, 10.0, 10.0], 2) == "▁█"  # a part is the mean of what is known of it
    assert sparkline([3.0, 3.0, 3.0], 9) == "▅▅▅"
    assert sparkline([], 9) == ""


DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installation whose server has done two of four steps, and has an episode open: nobody here goes on with it."""
    folder = tmp_path_factory.mktemp("watched")
    with own_server(folder, job=small_job(steps=4, episodes_per_step=2)) as running, client_of(folder) as client:
        for step in (1, 2):
            for reward in (0.0, float(step)):
                running.run(running.served.play("t", reward))
            running.run(running.served.until(step=step, state="ROLLING"))
        client.begin(NamedTask("t"), wait_s=60)
        yield folder


@pytest.fixture
def home(home: Path, installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AJET_HOME", str(installation))
    return installation


@pytest.fixture
def server(home: Path) -> SwarmProcess:
    return server_of(home)


@pytest.mark.usefixtures("server")
def test_one_frame_is_printed_where_no_terminal_is_and_its_data_for_a_script(ajet: Ajet) -> None:
    for asked in (["--once"], []):
        ended = ajet("swarm", "top", *asked)
        assert (ended.code, ended.err, "\x1b" in ended.out) == (0, "", False)
        assert ("2 of 4" in ended.out, "2 episodes (1 in play)" in ended.out) == (True, True)
    found = ajet("swarm", "top", "--json").data
    assert found["snapshot"]["status"]["step"] == 2
    assert [record["metrics"]["critic/rewards/mean"] for record in found["steps"]] == [0.5, 1.0]
    assert [owner["open"] for owner in found["snapshot"]["owners"]] == [1]


def test_status_is_one_frame_for_people_and_all_it_had_for_scripts(ajet: Ajet, server: SwarmProcess) -> None:
    shown = ajet("swarm", "status").out
    assert f"{server.url} (pid {server.pid})" in shown
    assert "1 at step 2, 0.5 at step 1" in shown
    found = ajet("swarm", "status", "--json").data
    assert (found["url"], found["pid"], found["step"]) == (server.url, server.pid, 2)
    assert found["metrics"]["critic/rewards/mean"] == 1.0


@pytest.mark.slow
def test_the_live_screen_is_drawn_again_and_q_ends_it(server: SwarmProcess) -> None:
    master, slave = pty.openpty()
    own = {"AJET_SERVER": server.url, "AJET_TOKEN": server.admin_token}
    environment = {**os.environ, **own, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    command = [sys.executable, "-m", "research", "swarm", "top"]
    live = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True, close_fds=True
    )
    os.close(slave)
    try:
        shown = read_until(master, lambda shown: shown.count(b"ROLLING") >= 2)
        os.write(master, b"xq")
        read_until(master, lambda _: live.poll() is not None)
        assert live.wait(DEADLINE_S) == 0
    finally:
        live.kill()
        live.wait()
        os.close(master)
    assert (b"2 of 4" in shown, b"Traceback" in shown) == (True, False)


def read_until(terminal: int, enough: Callable[[bytes], bool]) -> bytes:
    shown, deadline = b"", time.monotonic() + DEADLINE_S
    while not enough(shown):
        assert time.monotonic() < deadline, shown[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            with suppress(OSError):  # how a terminal's end is told
                shown += os.read(terminal, 65536)
    return shown
