"""The loop around an agent: what a failed play says of it is counted, played again after a pause, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
import threading
import urllib.error
from contextlib import suppress
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from swarm.client import (
    AgentFailed,
    AgentMisplays,
    AsyncSwarmClient,
    Episode,
    NamedTask,
    SwarmClient,
    SyncEpisode,
    plain_agent,
)  # fmt: skip
from swarm.client.episode import Result, RolloutSummary
from swarm.client.rollout import MOST_MISPLAYS, find_retry_after_s, is_server_error
from swarm.client.transport import Transport
from swarm.environments import Outcome
from swarm.errors import JobConflict, StoreUnavailable, SwarmError
from swarm.wire import Ack, ServerState
from tests.swarm.factories import HI
from tests.swarm.server.support import Served, job, serving

TASKS = [NamedTask("a"), NamedTask("b")]


class Limited(Exception):
    status_code = 429
    retry_after = 0.01


def raises() -> float:
    raise RuntimeError("tool broke")


def agent_of(*results: Any, then: Any = 1.0) -> Any:
    """Return an agent whose plays come to these results in turn; what can be called is called for it."""
    left = iter(results)

    async def agent(episode: Episode[Any]) -> Result:
        await episode.chat(HI)
        result = next(left, then)
        return result() if callable(result) else result

    return agent


async def silent(_: Episode[Any]) -> float:
    return 1.0


async def refused(episode: Episode[Any]) -> float:
    """Do as command lines do: hide what the server said."""
    with suppress(SwarmError):
        await episode.chat([{"role": "user", "content": "x" * 20_000}])
    return 0.0


@pytest.mark.parametrize(("misplay", "reason"), [
    (math.nan, "agent: InvalidRequest"), (math.inf, "agent: InvalidRequest"), (1e300, "agent: InvalidRequest"),
    (raises, "agent: RuntimeError"),
])  # fmt: skip
async def test_a_play_without_a_usable_reward_is_dropped_and_played_again(
    served: Served, client: AsyncSwarmClient, misplay: Any, reason: str
) -> None:
    summary = await client.rollout(agent_of(*[misplay] * 3), TASKS, concurrency=4)
    assert summary.dropped == {reason: 3}
    assert (summary.episodes, summary.reward_mean) == (12, 1.0)
    assert served.server.training.rollout.counts["aborted"] == 3
    assert len(served.server.training.rollout.leases) == 0


async def test_an_agent_that_always_fails_ends_the_rollout_with_its_last_error(client: AsyncSwarmClient) -> None:
    with pytest.raises(AgentFailed, match="tool broke"):
        await client.rollout(agent_of(then=raises), TASKS, concurrency=4)


@pytest.mark.parametrize(("agent", "named", "plays"), [
    (agent_of(then=None), "None", 1),
    *((agent_of(then=wrong), type(wrong).__name__, 1) for wrong in ("good", (1.0, True, 2), [1.0], object())),
    (silent, "model", MOST_MISPLAYS), (refused, "maximum context length", MOST_MISPLAYS),
    (agent_of(then=math.nan), "nan", MOST_MISPLAYS),
])  # fmt: skip
async def test_an_agent_that_never_plays_well_is_refused_at_once_or_after_a_few_plays(
    served: Served, client: AsyncSwarmClient, agent: Any, named: str, plays: int
) -> None:
    with pytest.raises(AgentMisplays, match=named):
        await client.rollout(agent, TASKS, concurrency=1)
    rollout = served.server.training.rollout
    assert (rollout.counts["begun"], rollout.counts["trained"]) == (plays, 0)
    assert len(rollout.leases) == 0


@pytest.mark.parametrize(("odd", "reason"), [(None, "no_calls"), (math.nan, "agent: InvalidRequest")])
async def test_an_agent_with_a_good_play_may_err_for_good(client: AsyncSwarmClient, odd: Any, reason: str) -> None:
    """A silent or wrong play is then dropped, counted, and played again, however many there are."""
    plays, most = itertools.count(), 2 * MOST_MISPLAYS

    async def agent(episode: Episode[Any]) -> Any:
        good_one = not 1 < (number := next(plays)) <= most
        if good_one or odd is not None:
            await episode.chat(HI)
        return 1.0 if good_one or odd is None else None if number == most else odd

    summary = await client.rollout(agent, TASKS, concurrency=1)
    assert summary.episodes >= 12  # a group that waited for long is dropped, and played again
    wrong = 0 if odd is None else 1
    assert summary.dropped == {reason: most - 1 - wrong, **({"agent: WrongResult": 1} if wrong else {})}


class Refused(Exception):
    """As an SDK raises it."""

    status_code = 503


@pytest.mark.parametrize(("error", "reason"), [
    (Limited("slow down"), "rate_limited"), (StoreUnavailable("full"), "store_unavailable"),
    (Refused("Error code: 503 - {'error': {'code': 'store_unavailable'}}"), "store_unavailable"),
])  # fmt: skip
async def test_a_rate_limited_play_and_a_server_without_room_to_write_are_played_again_after_a_pause(
    served: Served, client: AsyncSwarmClient, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """However often in a row: it says nothing of the agent."""

    def fails() -> float:
        raise error

    monkeypatch.setattr("swarm.client.rollout.MOST_WAIT_S", 0.01)
    summary = await client.rollout(agent_of(*[fails] * 70), TASKS, concurrency=4)
    assert (summary.episodes, summary.dropped) == (12, {reason: 70})
    assert served.server.training.rollout.counts["aborted"] == 70


async def test_a_task_whose_plays_all_fail_is_skipped_counted_named(served: Served, client: AsyncSwarmClient) -> None:
    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        return raises() if episode.task.id == "b" else 1.0

    summary = await client.rollout(agent, [*TASKS, NamedTask("c")], concurrency=2)
    ledger = served.server.training.rollout
    assert (summary.episodes, set(ledger.skipped)) == (12, {"b"})
    assert ledger.counts["tasks_skipped"] == ledger.skipped["b"] > 0


@pytest.mark.parametrize("heeds_cancel", [True, False])
async def test_a_hanging_play_has_an_end_and_costs_itself_alone(
    client: AsyncSwarmClient, monkeypatch: pytest.MonkeyPatch, heeds_cancel: bool
) -> None:
    monkeypatch.setattr("swarm.client.rollout.CLEANUP_TIMEOUT_S", 0.01)
    plays, over = itertools.count(), asyncio.Event()
    unheeded = () if heeds_cancel else (asyncio.CancelledError,)

    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        while next(plays) == 0 and not over.is_set():
            with contextlib.suppress(*unheeded):
                await over.wait()
        return 1.0

    summary = await client.rollout(agent, TASKS, concurrency=4, timeout_s=0.3)
    over.set()
    assert (summary.episodes, summary.dropped.keys()) == (12, {"agent: TimeoutError"})


async def test_a_hanging_function_holds_neither_its_rollout_nor_its_client_up(served: Served) -> None:
    plays, over = itertools.count(), threading.Event()

    def agent(episode: SyncEpisode) -> float:
        episode.chat(HI)
        if next(plays) == 0:
            over.wait()
        return 1.0

    def play() -> RolloutSummary:
        with SwarmClient(served.url, served.admin) as client:
            return client.rollout(agent, TASKS, concurrency=4, timeout_s=0.3)

    summary = await asyncio.to_thread(play)
    over.set()
    assert (summary.episodes, summary.dropped.keys()) == (12, {"agent: TimeoutError"})


async def test_leases_are_kept_of_agents_that_block_their_event_loop(served: Served, client: AsyncSwarmClient) -> None:
    """The server lives in the blocked loop, too: that it was asked is enough."""
    asked = threading.Event()

    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        if not asked.is_set():
            episode.heartbeat = beat  # type: ignore[method-assign]
            assert asked.wait(60)
        return 1.0

    async def beat(by: Transport | None = None) -> Ack:
        asked.set()
        return Ack(episode_id="", state="open")

    assert (await client.rollout(agent, TASKS, concurrency=1)).episodes == 12


@pytest.mark.parametrize("solved", [True, None])
async def test_an_evaluations_play_that_its_agent_fails_counts_once_and_is_not_solved(
    served: Served, client: AsyncSwarmClient, solved: bool | None
) -> None:
    async def agent(episode: Episode[Any]) -> Result:
        await episode.chat(HI)
        if int(episode.task.id) % 3:
            raise ValueError("no JSON")
        return 1.0 if solved is None else (1.0, solved)

    tasks = [NamedTask(str(number)) for number in range(300)]
    results = await client.evaluate(agent, tasks, worst=Outcome(-1.0, facts={"guesses": 9.0}))
    counts = served.server.training.rollout.counts
    assert (len(results), counts["begun"], counts["evaluated"]) == (300, 300, 300)
    failed = [result for result in results if result.failed]
    assert [int(result.task_id) % 3 > 0 for result in results] == [bool(result.failed) for result in results]
    assert {(one.reward, one.success, one.facts["guesses"], one.failed) for one in failed} == {
        (-1.0, None if solved is None else False, 9.0, "ValueError: no JSON")
    }  # fmt: skip


async def test_what_server_or_network_lost_of_evaluations_is_replayed(served: Served, client: AsyncSwarmClient) -> None:
    lost = iter([Carrier(503), ConnectionResetError("gone"), caused_by(Carrier(502)), Limited("wait")])

    async def agent(episode: Episode[Any]) -> Result:
        await episode.chat(HI)
        for error in lost:
            raise error
        return 1.0, True

    results = await client.evaluate(agent, [NamedTask(str(number)) for number in range(8)], concurrency=2)
    counts = served.server.training.rollout.counts
    assert ([result.success for result in results], counts["begun"], counts["aborted"]) == ([True] * 8, 12, 4)


async def test_an_agent_that_never_calls_the_model_is_not_evaluated(client: AsyncSwarmClient) -> None:
    async def broken(_: Episode[Any]) -> float:
        raise NameError("name 'jsn' is not defined")

    with pytest.raises(AgentFailed, match="64 plays in a row failed; the last one with NameError"):
        await client.evaluate(broken, [NamedTask(str(number)) for number in range(99)], concurrency=1)


async def test_an_engine_stopped_before_the_end_loses_the_play_and_not_the_rollout(
    client: AsyncSwarmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, end = asyncio.Event(), Episode.end

    async def observed(episode: Episode[Any], reward: float, success: bool | None = None, **own: Any) -> Ack:
        try:
            return await end(episode, reward, success, **own)
        finally:
            answered.set()

    async def agent(episode: Episode[Any]) -> float:
        await episode.chat(HI)
        if not answered.is_set():
            await client.stop()
        return 1.0

    monkeypatch.setattr(Episode, "end", observed)
    playing = asyncio.create_task(client.rollout(agent, TASKS, concurrency=1))
    await answered.wait()
    await client.ensure_training(job(steps=3))
    summary = await playing
    assert (summary.episodes, summary.dropped) == (12, {"lease_lost": 1})


async def test_who_lost_the_race_to_load_a_job_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path, start=False) as served, AsyncSwarmClient(served.url, served.admin) as client:
        start = served.server.start

        async def overtaken() -> Any:
            served.server.load(job(steps=7))  # another client's POST /job comes between this one's two calls
            return await start()

        served.server.start = overtaken  # type: ignore[method-assign]
        with pytest.raises(JobConflict, match="trains job"):
            await client.ensure_training(job())
        assert (await client.status()).state is not ServerState.OFFLINE


class Carrier(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        super().__init__("no")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = SimpleNamespace(status_code=status, headers=named)


class Listed(Exception):
    status, headers = 429, ("Retry-After", "7")


def caused_by(cause: Exception) -> Exception:
    error = RuntimeError("the tool failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(("error", "found"), [
    (Limited("x"), 0.01), (Carrier(429, retry_after="7"), 7.0),
    (Carrier(429, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), 0.0),
    (Carrier(500, retry_after="7"), None), (caused_by(Carrier(429, Retry_After="2")), 2.0),
    (urllib.error.HTTPError("http://x", 429, "no", Message(), None), 0.0),
    (Listed(), 0.0), (ValueError("429"), None),
])  # fmt: skip
def test_rate_limits_are_known_by_what_the_libraries_errors_carry(error: Exception, found: float | None) -> None:
    assert find_retry_after_s(error) == found


@pytest.mark.parametrize(("error", "lost"), [
    (httpx.ReadTimeout("x"), True), (httpx.RemoteProtocolError("x"), True), (caused_by(httpx.ConnectError("x")), True),
    (httpx.UnsupportedProtocol("no scheme"), False), (httpx.ResponseNotRead(), False),
])  # fmt: skip
def test_what_an_agent_asks_wrongly_is_no_error_of_the_network(error: Exception, lost: bool) -> None:
    assert is_server_error(error) is lost


PAGE = Path(__file__).parents[3] / "docs" / "agents.md"


async def test_the_agents_of_the_page_play_as_they_are_written(client: AsyncSwarmClient) -> None:
    tasks = [SimpleNamespace(id="q", data={"question": "hi", "answer": "no such answer"})]
    played = []
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if "def agent(episode)" in block:
            exec(block, page := {})
            agent = page["agent"]
            played += await client.evaluate(agent if asyncio.iscoroutinefunction(agent) else plain_agent(agent), tasks)
    assert [(play.reward, play.failed, bool(play.tokens)) for play in played] == [(0.0, "", True)] * 2
