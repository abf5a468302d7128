"""One agent plays with several models on several servers: all learn, in their own time, and what goes wrong is said."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AgentFailed, AsyncSwarmClient, Earned, NamedTask, SwarmClient
from swarm.client.teams import SyncTeam, Team
from swarm.client.teams import members as team_members
from swarm.errors import InvalidRequest, JobConflict, ServerFailed, StoreUnavailable
from swarm.wire import ServerState
from tests.swarm.server.support import Served, eventually, job, serving

TASKS = [NamedTask(name) for name in "abcdef"]
HI: list[Any] = [{"role": "user", "content": "hi"}]
CONCURRENCY = 6


class Pair:
    """A speaker and a listener, each with a server and a client."""

    def __init__(self, served: dict[str, Served], clients: dict[str, AsyncSwarmClient]) -> None:
        self.served, self.clients = served, clients

    def counts(self, role: str) -> Counter[str]:
        return self.served[role].server.training.rollout.counts

    async def records(self, role: str) -> list[Any]:
        return list((await self.clients[role].episodes(1000)).episodes)

    async def trained(self, role: str) -> Counter[str]:
        """Return how often each task was trained at a member."""
        return Counter(record.task_id for record in await self.records(role) if record.state == "consumed")


@contextlib.asynccontextmanager
async def pair(folder: Path, **jobs: Mapping[str, Any]) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        served, clients = {}, {}
        for role in ("speaker", "listener"):
            served[role] = await stack.enter_async_context(serving(folder / role, job(**jobs.get(role, {}))))
            clients[role] = await stack.enter_async_context(AsyncSwarmClient(served[role].url, served[role].admin))
        yield Pair(served, clients)


def _states(records: list[Any]) -> set[str]:
    return {record.state for record in records}


async def play(team: Team) -> Mapping[str, Any]:
    for role in ("speaker", "listener"):
        await team[role].chat(HI)
    return {"speaker": 1.0, "listener": (0.5, True)}


async def test_both_members_train_on_every_play_with_their_own_rewards(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        summary = await Team.rollout(both.clients, TASKS, play, concurrency=CONCURRENCY)
        assert (summary.plays, summary.dropped) == (8, {})
        assert summary.reward_mean == {"speaker": 1.0, "listener": 0.5}
        assert summary.success_mean == {"speaker": None, "listener": 1.0}
        assert summary.trained == {"speaker": 8, "listener": 8}
        assert await both.trained("speaker") == await both.trained("listener") == Counter(dict.fromkeys("abcd", 2))
        for role, reward in (("speaker", 1.0), ("listener", 0.5)):
            assert {record.reward for record in await both.records(role)} == {reward}
            assert (await both.clients[role].status()).open_episodes == 0


async def test_an_agent_sees_address_key_and_model_of_each_member(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:

        async def seen(team: Team) -> Mapping[str, float]:
            for role, served in both.served.items():
                episode = team[role]
                assert episode.base_url == f"{served.url}/v1"
                answer = await served.post(
                    "/v1/chat/completions", episode.api_key, {"model": episode.model, "messages": HI}
                )
                assert answer.status == 200
            assert team["speaker"].api_key != team["listener"].api_key
            return {"speaker": 1.0, "listener": 1.0}

        summary = await Team.rollout(both.clients, TASKS, seen, concurrency=CONCURRENCY)
        assert summary.trained == {"speaker": 8, "listener": 8}  # calls by other ways than `chat` are calls too


@pytest.mark.parametrize(("speaker", "listener"), [(2, 8), (8, 2), (4, 6)])
async def test_members_take_batches_of_their_own_size_by_their_own_step_clock(
    tmp_path: Path, speaker: int, listener: int
) -> None:
    jobs = {
        "speaker": {"episodes_per_step": speaker, "steps": 24 // speaker},
        "listener": {"episodes_per_step": listener, "steps": 24 // listener},
    }
    async with pair(tmp_path, **jobs) as both:
        summary = await Team.rollout(both.clients, TASKS, play, concurrency=CONCURRENCY)
        assert (summary.trained, summary.dropped) == ({"speaker": 24, "listener": 24}, {})
        assert await both.trained("speaker") == await both.trained("listener") == Counter(dict.fromkeys("abcdef", 4))
        steps = {role: (await client.status()).step for role, client in both.clients.items()}
        assert steps == {role: fields["steps"] for role, fields in jobs.items()}


@pytest.mark.parametrize("first", ["speaker", "listener"])
async def test_a_member_whose_job_is_finished_plays_on_untrained_until_the_others_are(
    tmp_path: Path, first: str
) -> None:
    async with pair(tmp_path, **{first: {"steps": 1}}) as both:
        (other,) = {"speaker", "listener"} - {first}
        summary = await Team.rollout(both.clients, TASKS, play, concurrency=2)
        assert summary.trained == {first: 4, other: 8}
        assert summary.plays == 8
        assert both.counts(first)["evaluated"] == 4
        assert (await both.clients[first].status()).policy_version == 1
        assert sum((await both.trained(other)).values()) == 8
        again = await Team.rollout(both.clients, TASKS, play)
        assert again.plays == 0  # all are finished


async def test_a_member_that_fails_stops_the_team_and_leaves_nothing_open(tmp_path: Path) -> None:
    async with pair(tmp_path, speaker={"steps": 5}, listener={"steps": 5}) as both:
        both.served["listener"].backend.learner.fail_next = "loss is NaN"
        with pytest.raises(ServerFailed, match="loss is NaN"):
            await Team.rollout(both.clients, TASKS, play, concurrency=CONCURRENCY)
        speaker = await both.clients["speaker"].status()
        assert speaker.open_episodes == 0
        assert speaker.state is not ServerState.FAILED


async def test_what_lacks_a_member_is_given_back_though_its_play_is_cancelled_as_it_begins_to() -> None:
    given_back: list[int] = []

    class FakeEpisode:
        def __init__(self, number: int) -> None:
            self._number = number

        async def abort(self, reason: str) -> None:
            await asyncio.sleep(0)
            given_back.append(self._number)

    episodes: list[Any] = [FakeEpisode(number) for number in range(2)]
    giving_back = asyncio.create_task(team_members._give_back(episodes))
    await asyncio.sleep(0)  # it has begun, and nothing else has
    giving_back.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving_back
    assert given_back == [0, 1]


async def test_a_play_that_fails_is_aborted_everywhere_counted_and_played_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        plays = iter(range(100))

        async def careless(team: Team) -> Mapping[str, Any]:
            number = next(plays)
            answer = await play(team)
            if number == 1:
                raise RuntimeError("tool broke")
            return {**answer, "listener": math.nan} if number == 2 else answer

        summary = await Team.rollout(both.clients, TASKS, careless, concurrency=CONCURRENCY)
        assert summary.dropped == {"agent: RuntimeError": 1, "agent: InvalidRequest": 1}
        assert summary.trained == {"speaker": 8, "listener": 8}
        assert await both.trained("speaker") == await both.trained("listener") == Counter(dict.fromkeys("abcd", 2))
        assert both.counts("speaker")["aborted"] >= 2
        assert both.counts("listener")["aborted"] == 2


async def test_a_lease_lost_at_one_member_gives_the_others_up_too(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:

        async def agent(team: Team) -> Mapping[str, Any]:
            rollout = both.served["listener"].server.training.rollout
            if not rollout.counts["fenced"]:
                (found,) = [open_ for open_ in rollout.leases if open_.id == team["listener"].id]
                rollout.ledger.fence(found, "lease_expired")
            return await play(team)

        summary = await Team.rollout(both.clients, TASKS, agent, concurrency=CONCURRENCY)
        assert summary.dropped == {"lease_lost": 1}
        assert await both.trained("speaker") == await both.trained("listener") == Counter(dict.fromkeys("abcd", 2))


async def test_where_one_server_cannot_write_an_end_down_for_a_while_the_team_waits(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        teams = both.served["listener"].server.training.rollout.teams
        prepare, refusals = teams.prepare, iter(range(3))

        async def refusing(*args: Any) -> Any:
            if next(refusals, None) is not None:
                raise StoreUnavailable("the disk is full")
            return await prepare(*args)

        teams.prepare = refusing  # type: ignore[method-assign]
        summary = await Team.rollout(both.clients, TASKS, play, concurrency=CONCURRENCY)
        assert (summary.plays, summary.dropped) == (8, {})


async def test_leases_of_a_slow_play_are_kept_at_every_member(tmp_path: Path) -> None:
    async with pair(tmp_path, speaker={"steps": 1, "lease_ttl_s": 0.6}, listener={"steps": 1}) as both:

        async def slow(team: Team) -> Mapping[str, Any]:
            await team["listener"].chat(HI)
            await asyncio.sleep(1.5)  # more than twice the speaker's lease, in which nothing is called
            return await play(team)

        summary = await Team.rollout(both.clients, TASKS, slow, concurrency=4)
        assert (summary.plays, summary.dropped) == (4, {})


async def test_a_rollout_that_was_cancelled_gives_its_episodes_up_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with pair(tmp_path, speaker={"steps": 3}, listener={"steps": 3}) as both:
        plays, reached = iter(range(100)), asyncio.Event()

        async def stuck(team: Team) -> Mapping[str, Any]:
            if next(plays) >= 5:
                reached.set()
                await asyncio.Event().wait()
            return await play(team)

        playing = asyncio.create_task(Team.rollout(both.clients, TASKS, stuck, concurrency=2))
        await asyncio.wait_for(reached.wait(), 20)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        for role in both.clients:  # of a play that was just ending, the members agree whether it counts
            await eventually(partial(both.records, role), lambda records: not _states(records) & {"open", "prepared"})
        before = sum(record.state not in ("aborted", "fenced") for record in await both.records("speaker"))
        summary = await Team.rollout(both.clients, TASKS, play, concurrency=CONCURRENCY)
        assert before >= 4
        assert summary.plays == 12 - before
        expected = Counter(dict.fromkeys("abcdef", 2))
        assert await both.trained("speaker") == await both.trained("listener") == expected


async def test_one_server_may_restart_while_teams_play(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"steps": 3}
    async with contextlib.AsyncExitStack() as stack:
        speaker = await stack.enter_async_context(serving(tmp_path / "speaker", job(**fields)))
        client = await stack.enter_async_context(AsyncSwarmClient(speaker.url, speaker.admin))
        async with serving(tmp_path / "listener", job(**fields)) as listener:
            port = int(listener.url.rpartition(":")[2])
            other = await stack.enter_async_context(AsyncSwarmClient(listener.url, listener.admin))
            clients = {"speaker": client, "listener": other}
            playing = asyncio.create_task(Team.rollout(clients, TASKS, play, concurrency=3))
            await eventually(other.status, lambda status: status.step >= 1)
        async with serving(tmp_path / "listener", job(**fields), port=port):
            await playing
            for member in clients.values():
                await eventually(member.status, lambda status: bool(status.finished))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (1.0, "a reward by role"),
        (None, "NoneType None"),
        ({"speaker": 1.0}, "nobody else, found them for 'speaker'"),
        ({"speaker": 1.0, "listener": 1.0, "judge": 1.0}, "'judge'"),
        ({}, "found them for nobody"),
        ({"speaker": 1.0, "listener": "well done"}, "well done"),
        ({"speaker": 1.0, "listener": None}, "None"),
    ],
)
async def test_an_answer_that_is_no_reward_for_each_role_ends_the_rollout_with_one_line(
    tmp_path: Path, answer: Any, said: str
) -> None:
    async with pair(tmp_path) as both:
        plays: list[Team] = []

        async def wrong(team: Team) -> Any:
            plays.append(team)
            await play(team)
            return answer

        with pytest.raises(AgentFailed, match=said) as caught:
            await Team.rollout(both.clients, TASKS, wrong, concurrency=2)
        assert "\n" not in str(caught.value)
        assert len(plays) <= 2  # it was not played over and over
        for role, client in both.clients.items():
            assert (await client.status()).open_episodes == 0
            assert both.counts(role)["ended"] == 0


async def test_a_member_whose_model_is_never_called_ends_the_rollout_with_one_line(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:

        async def alone(team: Team) -> Mapping[str, float]:
            await team["speaker"].chat(HI)
            return {"speaker": 1.0, "listener": 1.0}

        with pytest.raises(AgentFailed, match="without a call of 'listener'"):
            await Team.rollout(both.clients, TASKS, alone, concurrency=2)
        assert both.counts("speaker")["ended"] == both.counts("listener")["ended"] == 0


async def test_an_agent_that_always_fails_ends_the_rollout_with_its_last_error(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:

        async def broken(_: Team) -> Mapping[str, float]:
            raise RuntimeError("tool broke")

        with pytest.raises(AgentFailed, match="tool broke"):
            await Team.rollout(both.clients, TASKS, broken, concurrency=CONCURRENCY)


async def test_members_that_can_be_no_team_are_refused_before_anything_is_begun(tmp_path: Path) -> None:
    async with pair(tmp_path, listener={"group_size": 4}) as both:
        with pytest.raises(InvalidRequest, match="speaker 2, listener 4"):
            await Team.rollout(both.clients, TASKS, play)
        with pytest.raises(InvalidRequest, match="found none"):
            await Team.rollout({}, TASKS, play)
        with pytest.raises(InvalidRequest, match="a server of its own"):
            await Team.rollout({**both.clients, "twin": both.clients["speaker"]}, TASKS, play)
        with pytest.raises(InvalidRequest, match="decider"):
            await Team.rollout(both.clients, TASKS, play, decider="judge")
        with pytest.raises(ValueError, match="at least one task"):
            await Team.rollout({"speaker": both.clients["speaker"]}, [], play)
        assert both.counts("speaker")["begun"] == both.counts("listener")["begun"] == 0


async def test_a_server_without_a_job_is_named(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as both,
        serving(tmp_path / "idle", start=False) as idle,
        AsyncSwarmClient(idle.url, idle.admin) as client,
    ):
        with pytest.raises(InvalidRequest, match="server of judge has no job"):
            await Team.rollout({**both.clients, "judge": client}, TASKS, play)


async def test_evaluation_plays_each_task_at_all_members_and_trains_none(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        results = await Team.evaluate(both.clients, TASKS, play, samples=2)
        assert [(result.task_id, result.sample) for result in results] == [(t.id, n) for t in TASKS for n in (0, 1)]
        assert all(result.rewards == {"speaker": 1.0, "listener": 0.5} and not result.trained for result in results)
        assert both.counts("speaker")["evaluated"] == both.counts("listener")["evaluated"] == 12


async def test_a_leaders_episode_is_given_back_where_another_member_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_members, "WITHDRAW_S", 0.1)
    async with pair(tmp_path) as both:
        held = [await both.clients["listener"].begin(NamedTask(name)) for name in ("x", "y")]  # both groups of a batch
        playing = asyncio.create_task(Team.rollout(both.clients, TASKS, play, concurrency=2))
        await eventually(lambda: both.counts("speaker")["aborted"], lambda count: bool(count >= 2))
        for episode in held:
            await episode.abort()
        summary = await playing
        assert (summary.plays, summary.dropped) == (8, {})


async def test_plain_functions_play_teams_too(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:

        def plain(team: SyncTeam) -> Mapping[str, Any]:
            assert team.task.id in "abcdef"
            for role in team.episodes:
                team[role].chat(HI)
            return {"speaker": 1.0, "listener": 0.0}

        def blocking() -> tuple[Any, Any]:
            served = both.served
            with (
                SwarmClient(served["speaker"].url, served["speaker"].admin) as speaker,
                SwarmClient(served["listener"].url, served["listener"].admin) as listener,
            ):
                clients = {"speaker": speaker, "listener": listener}
                evaluated = SyncTeam.evaluate(clients, TASKS[:2], plain)
                return evaluated, SyncTeam.rollout(clients, TASKS, plain, concurrency=CONCURRENCY)

        evaluated, summary = await asyncio.to_thread(blocking)
        assert [result.rewards["speaker"] for result in evaluated] == [1.0, 1.0]
        assert summary.trained == {"speaker": 8, "listener": 8}


async def test_what_single_calls_of_a_member_earned_is_kept_with_its_end(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:

        async def credited(team: Team) -> Mapping[str, Any]:
            await play(team)
            return {"speaker": Earned(0.25, by_call={0: 1.0}), "listener": 0.5}

        await Team.rollout(both.clients, TASKS, credited, concurrency=CONCURRENCY)
        for role, earned in (("speaker", 1.0), ("listener", None)):
            ended = [each for each in await both.records(role) if each.reward is not None]
            record = await both.clients[role].episode(ended[0].id)
            assert [call.reward for call in record.record] == [earned]


async def test_a_team_trains_once_each_server_serves_its_job_and_its_clients_are_closed(tmp_path: Path) -> None:
    jobs = {role: job(seed=seed) for seed, role in enumerate(("speaker", "listener"))}
    async with serving(tmp_path / "a", jobs["speaker"]) as a, serving(tmp_path / "b", start=False) as b:
        clients = {"speaker": AsyncSwarmClient(a.url, a.admin), "listener": AsyncSwarmClient(b.url, b.admin)}
        async with Team.training(clients, jobs) as members:
            assert {role: (await client.status()).job_digest for role, client in members.items()} == {
                role: wanted.digest() for role, wanted in jobs.items()
            }
            await Team.rollout(members, TASKS, play, concurrency=CONCURRENCY)
        assert [client._transport._session for client in clients.values()] == [None, None]
        assert a.server.training.finished
        assert b.server.training.finished


async def test_a_team_of_which_a_server_trains_something_else_is_refused_and_its_clients_are_closed(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as both:
        clients = {role: AsyncSwarmClient(each.url, each.admin) for role, each in both.served.items()}
        with pytest.raises(JobConflict, match="seed"):
            async with Team.training(clients, {"speaker": job(), "listener": job(seed=9)}):
                raise AssertionError("nothing is begun")
        assert [client._transport._session for client in clients.values()] == [None, None]
        with pytest.raises(InvalidRequest, match=r"a job for each of speaker, listener; found one for speaker$"):
            async with Team.training(clients, {"speaker": job()}):
                raise AssertionError("nothing is begun")
