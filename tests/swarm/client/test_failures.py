"""What a failed play says of its agent: refused at once, after a few, or played again after a pause."""

from __future__ import annotations

import asyncio
import itertools
import math
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client import AgentFailed, AgentMisplays, AsyncSwarmClient, Episode, NamedTask
from swarm.client.agents import UnusableReward, WrongResult
from swarm.client.failures import MOST_MISPLAYS, MOST_WAIT_S, LimitPauses, Misplays, limited_s
from tests.swarm.server.support import job, serving

TASKS = [NamedTask("a"), NamedTask("b")]
HI: list[Any] = [{"role": "user", "content": "hi"}]


class Limited(Exception):
    status_code = 429
    retry_after = 0.01


async def refused(folder: Path, agent: Any, concurrency: int = 1) -> tuple[str, int, int]:
    """Return what an agent is refused with, how many episodes were begun, and how many were trained."""
    async with serving(folder, job(steps=3)) as served, AsyncSwarmClient(served.url, served.admin) as client:
        with pytest.raises(AgentMisplays) as error:
            await client.rollout(agent, TASKS, concurrency=concurrency)
        counts = served.server.training.rollout.counts
        assert len(served.server.training.rollout.leases) == 0, "every place is free again"
        return str(error.value), counts["begun"], counts["trained"]


@pytest.mark.parametrize("wrong", [None, "good", (1.0, True, 2), [1.0], object()])
async def test_a_result_of_the_wrong_type_is_refused_after_the_first_play(tmp_path: Path, wrong: Any) -> None:
    async def agent(episode: Episode[Any]) -> Any:
        await episode.chat(HI)
        return wrong

    said, begun, trained = await refused(tmp_path, agent)
    assert "expected an agent to return a reward, (reward, solved) or an Outcome; found" in said
    assert ("nothing (None)" if wrong is None else type(wrong).__name__) in said
    assert (begun, trained) == (1, 0)


async def test_an_agent_that_never_calls_the_model_is_refused_after_a_few_plays(tmp_path: Path) -> None:
    async def agent(_: Episode[Any]) -> float:
        return 1.0

    said, begun, trained = await refused(tmp_path, agent)
    assert "expected the agent to call the model" in said
    assert (begun, trained) == (MOST_MISPLAYS, 0)


async def test_a_reward_that_is_never_a_number_is_refused_after_a_few_plays(tmp_path: Path) -> None:
    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        return math.nan

    said, begun, trained = await refused(tmp_path, agent)
    assert "nan" in said
    assert (begun, trained) == (MOST_MISPLAYS, 0)


async def test_an_agent_with_a_good_play_may_err_as_any_other(tmp_path: Path) -> None:
    """A silent or wrong play is then dropped, counted, and played again."""
    plays = itertools.count()
    odd: dict[int, Any] = {1: None, 2: "silent", 3: math.nan}

    async def agent(episode: Episode[Any]) -> Any:
        what = odd.get(next(plays), 1.0)
        if what == "silent":
            return 1.0
        await episode.chat(HI)
        return what

    async with serving(tmp_path, job(steps=3)) as served, AsyncSwarmClient(served.url, served.admin) as client:
        summary = await client.rollout(agent, TASKS, concurrency=1)
    assert summary.episodes == 12
    assert summary.dropped == {"agent: WrongResult": 1, "no_calls": 1, "agent: InvalidRequest": 1}


async def test_a_rate_limited_play_is_played_again_after_a_pause_and_the_others_go_on(tmp_path: Path) -> None:
    """However often in a row: it says nothing of the agent."""
    plays = itertools.count()

    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        if next(plays) < 100:
            raise Limited("slow down")
        return 1.0

    async with serving(tmp_path, job(steps=3)) as served, AsyncSwarmClient(served.url, served.admin) as client:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("swarm.client.failures.MOST_WAIT_S", 0.01)
            summary = await client.rollout(agent, TASKS, concurrency=4)
        assert served.server.training.rollout.counts["aborted"] == 100
    assert (summary.episodes, summary.dropped) == (12, {"rate_limited": 100})


async def test_a_hanging_tool_costs_its_own_play_alone(tmp_path: Path) -> None:
    plays = itertools.count()

    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        if next(plays) < 2:
            await asyncio.Event().wait()
        return 1.0

    async with serving(tmp_path, job(steps=3)) as served, AsyncSwarmClient(served.url, served.admin) as client:
        summary = await client.rollout(agent, TASKS, concurrency=4, timeout_s=0.3)
    assert (summary.episodes, summary.dropped) == (12, {"agent: TimeoutError": 2})


class _Response:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code, self.headers = status, headers


class _Carrier(Exception):
    def __init__(self, response: _Response) -> None:
        super().__init__("no")
        self.response = response


def _raised(cause: Exception) -> Exception:
    try:
        try:
            raise cause
        except Exception as error:
            raise RuntimeError("the tool failed") from error
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (Limited("x"), 0.01),
        (_Carrier(_Response(429, {"retry-after": "7"})), 7.0),
        (_Carrier(_Response(429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})), 0.0),
        (_Carrier(_Response(500, {"retry-after": "7"})), None),
        (_raised(_Carrier(_Response(429, {"Retry-After": "2"}))), 2.0),
        (urllib.error.HTTPError("http://x", 429, "no", Message(), None), 0.0),
        (ValueError("429"), None),
    ],
)
def test_rate_limits_are_known_by_what_the_libraries_errors_carry(error: Exception, found: float | None) -> None:
    assert limited_s(error) == found


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=40))
def test_pauses_are_bounded_and_never_shorter_than_was_asked_within_the_bound(asked: list[float]) -> None:
    pauses = LimitPauses()
    for seconds in asked:
        assert min(seconds, MOST_WAIT_S) <= pauses.met(seconds) <= MOST_WAIT_S


def test_a_pause_begins_anew_after_a_play_without_a_limit() -> None:
    pauses = LimitPauses()
    grown = [pauses.met(0.0) for _ in range(8)]
    pauses.over()
    assert pauses.met(0.0) <= 0.5 < grown[-1]


@pytest.mark.parametrize("kind", ["unusable_reward", "no_calls"])
def test_one_good_play_clears_an_agent_for_good(kind: Any) -> None:
    counted = Misplays()
    for _ in range(MOST_MISPLAYS - 1):
        counted.count(kind, "odd")
    counted.clear()
    for _ in range(2 * MOST_MISPLAYS):
        counted.count(kind, "odd")


def test_what_is_refused_is_a_failed_agent_too() -> None:
    """So that whoever catches AgentFailed goes on to do so."""
    assert issubclass(AgentMisplays, AgentFailed)
    assert issubclass(WrongResult, TypeError)
    assert issubclass(UnusableReward, ValueError)
    with pytest.raises(AgentFailed, match="expected x"):
        Misplays().count("wrong_result", "expected x")
