from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from research.cli.research import conduct
from research.cli.swarm import shares_of
from research.controller.session import Session, hold_lease
from research.errors import BadInput
from research.installation.base_job import LOCAL_PACKAGES
from research.text import warn
from studies import EventLog, EventType
from swarm.client import NamedTask, SwarmClient
from swarm.wire import StreamStatus
from tests.research.bench import STUDY, Bench
from tests.research.cli.conftest import Ajet, client_of, own_server, small_job
from tests.research.designs import design
from tests.research.fakes import ScriptedPlanner


def stream(name: str, share: float | None = 0.5, **fields: Any) -> StreamStatus:
    return StreamStatus(name=name, share=share, cursor=3, groups_open=1, groups_trained=2, **fields)


@pytest.fixture
def shared(home: Path) -> Iterator[SwarmClient]:
    job = small_job(steps=3, episodes_per_step=8, streams={"math": 2, "web": 2})
    with own_server(home, job=job), client_of(home) as client:
        yield client


def test_shares_are_shown_with_what_was_trained_and_changed_while_training(ajet: Ajet, shared: SwarmClient) -> None:
    for name in ("math", "web"):
        for _ in range(4):
            episode = shared.begin(NamedTask(name), stream=name, wait_s=60)
            episode.chat([{"role": "user", "content": "hi"}])
            episode.end(1.0 if name == "math" else 0.0)
    deadline = time.monotonic() + 60
    while shared.status().step == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    shown = ajet("swarm", "shares")
    assert [line.split()[:7] for line in shown.out.splitlines()[1:]] == [
        ["math", "50.0%", "2", "2", "0", "2", "2"],
        ["web", "50.0%", "2", "2", "0", "2", "2"],
    ]
    changed = ajet("swarm", "shares", "math=3", "web=1", "--json").data
    assert changed["changed"]
    rows = [(row["name"], row["share"], row["groups_per_batch"], row["reward"]) for row in changed["streams"]]
    assert rows == [("math", 0.75, 3, 1.0), ("web", 0.25, 1, 0.0)]
    ajet("swarm", "shares", "mth=1", "web=1").refused("'mth'")
    ajet("swarm", "shares", "math=1").refused("none for web")
    replaced = ajet("swarm", "shares", "math=1", "chess=1", "--replace", "--json").data
    assert {row["name"]: row["share"] for row in replaced["streams"]} == {"math": 0.5, "chess": 0.5, "web": None}


@pytest.mark.usefixtures("shared")
def test_a_client_of_a_stream_without_a_share_is_told_which_there_are(ajet: Ajet) -> None:
    for words in ((), ("--stream", "mth")):
        ajet("client", "run", "--environment", "arith", *words).refused("--stream", "math, web")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["math"], "NAME=SHARE; found 'math'"),
        (["=1"], "NAME=SHARE"),
        (["a=1", "a=2"], "found two for 'a'"),
        (["a="], "share of 'a'; found ''"),
        *[([f"a={bad}"], "above 0") for bad in ("0", "-1", "nan", "inf", "1e999", "x", "1,5")],
    ],
)
def test_shares_that_mean_nothing_are_refused_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        shares_of(words)


@pytest.mark.parametrize(
    ("how", "code"),
    [("concluded", 0), ("budget", 3), ("budget and look", 0), ("person", 130), ("person after budget", 130)],
)
def test_how_a_study_ended_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, code: int
) -> None:
    ends = ("ok",) if how == "concluded" or how == "person" else ("ok", "never") if "look" in how else ("never",)
    script = lambda order: ends[min(order.spec.seed - 101, 2 * len(ends) - 1) // 2]  # noqa: E731 - two seeds of each end
    bench = Bench(tmp_path, script, design=design(16), budget_s=60.0)
    loop = bench.loop()
    if how == "person":
        loop.tick()
        loop.stop("Ctrl-C")
    if how == "person after budget":
        bench.drive(loop)
        bench.append(EventType.STUDY_RESUMED, command=[])
        loop.stop("Ctrl-C")
    state = bench.drive(loop)
    assert state.status == ("concluded" if how == "concluded" else "stopped")
    monkeypatch.setattr(Session, "plan", lambda session: state)
    monkeypatch.setattr(Session, "run", lambda session, observer: state)
    with closing(EventLog(bench.home.database)) as log:
        expected = pytest.raises(typer.Exit) if code else nullcontext()
        with expected as ended, hold_lease(bench.home, log, STUDY, warn) as lease:
            conduct(bench.home, log, STUDY, ScriptedPlanner(), lease=lease, prefect=False, json=True)
    assert code == (ended.value.exit_code if ended else 0)


@pytest.mark.parametrize("missing", LOCAL_PACKAGES)
def test_a_study_needs_its_backend(ajet: Ajet, home: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr("research.installation.base_job.find_spec", lambda name: None if name == missing else name)
    ajet("research", "group size 4 vs 8 on guess", "--no-prefect").refused(missing, "pip install 'ajet[local]'")
    assert not home.exists()
