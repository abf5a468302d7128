"""`ajet swarm shares`: who gets and has got what, and new shares while a real server trains."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.cli.swarm_admin import BadShares, require_same, shares_of
from swarm.client import NamedTask, SwarmClient
from swarm.wire import StreamStatus
from tests.research.cli.conftest import Ajet, client_of, own_server, small_job


def stream(name: str, share: float | None = 0.5, **fields: Any) -> StreamStatus:
    return StreamStatus(name=name, share=share, cursor=3, groups_open=1, groups_trained=2, **fields)


@pytest.fixture
def shared(home: Path) -> Iterator[SwarmClient]:
    """A client of a server of this installation whose job has two streams."""
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
    changed = json.loads(ajet("swarm", "shares", "math=3", "web=1", "--json").out)
    assert changed["changed"]
    rows = [(row["name"], row["share"], row["groups_per_batch"], row["reward"]) for row in changed["streams"]]
    assert rows == [("math", 0.75, 3, 1.0), ("web", 0.25, 1, 0.0)]
    ajet("swarm", "shares", "mth=1", "web=1").refused("'mth'")
    ajet("swarm", "shares", "math=1").refused("found none for web")
    replaced = json.loads(ajet("swarm", "shares", "math=1", "chess=1", "--replace", "--json").out)
    assert {row["name"]: row["share"] for row in replaced["streams"]} == {"math": 0.5, "chess": 0.5, "web": None}


@pytest.mark.usefixtures("shared")
def test_a_client_of_a_stream_without_a_share_is_told_which_there_are(ajet: Ajet) -> None:
    for words in ((), ("--stream", "mth")):
        ajet("client", "run", "--environment", "arith", *words).refused("--stream", "math, web")


@pytest.mark.usefixtures("server")
def test_a_server_with_its_engine_off_has_no_shares(ajet: Ajet) -> None:
    ended = ajet("swarm", "shares", "a=1")
    assert (ended.code != 0, "engine is off" in ended.line) == (True, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["math"], "NAME=SHARE; found 'math'"),
        (["=1"], "NAME=SHARE"),
        (["a=1", "a=2"], "found two for 'a'"),
        (["a="], "above 0 as the share of 'a'; found ''"),
        *[([f"a={bad}"], "above 0") for bad in ("0", "-1", "nan", "inf", "1e999", "x", "1,5")],
    ],
)
def test_shares_that_mean_nothing_are_refused_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(BadShares, match=said):
        shares_of(words)


@given(st.dictionaries(st.text(min_size=1), st.floats(1e-9, 1e9)))
def test_shares_are_read_as_they_are_written_whatever_the_names(shares: dict[str, float]) -> None:
    assert shares_of([f"{name}={share}" for name, share in shares.items()]) == shares


def test_streams_without_shares_are_those_that_played() -> None:
    require_same({"a": 1.0}, ())
    with pytest.raises(BadShares, match="none for b"):
        require_same({"a": 1.0}, (stream("a", None), stream("b", None)))
