"""Teams over two real servers: all of them end or none, whoever dies in between, and all models learn in their time."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AgentFailed, AsyncSwarmClient, Episode, NamedTask, SwarmClient
from swarm.client import teams as team_members
from swarm.client.sync_client import SyncTeam
from swarm.client.teams import Team
from swarm.client.transport import Transport
from swarm.errors import InvalidRequest, ServerFailed, StoreUnavailable, TeamAborted, Unreachable
from swarm.rollout import teams
from swarm.rollout.rollout import Rollout
from swarm.rollout.teams import Resolver
from swarm.wire import ServerState
from tests.golden import refused
from tests.swarm.factories import HI
from tests.swarm.server.support import Served, eventually, job, serving

TASKS = [NamedTask(name) for name in "abcdef"]
CONCURRENCY = 6
REWARDS = {"speaker": 1.0, "listener": 0.5}
ENDED = dict.fromkeys(REWARDS, "ended")
ABORTED, PREPARED = dict.fromkeys(REWARDS, "aborted"), dict.fromkeys(REWARDS, "prepared")


class Pair:
    """A speaker and a listener, each with a server and a client; the speaker decides."""

    def __init__(self, served: dict[str, Served], clients: dict[str, AsyncSwarmClient]) -> None:
        self.served, self.clients = served, clients
        self.episodes: dict[str, Episode[Any]] = {}

    def rollout(self, role: str) -> Rollout:
        return self.served[role].server.training.rollout

    async def begin(self, patience_s: float = 5.0) -> Team:
        for role, client in self.clients.items():
            self.episodes[role] = await client.begin(NamedTask("t"))
            await self.episodes[role].chat(HI)
        return Team(self.episodes, patience_s=patience_s)

    async def prepare(self) -> Team:
        """Do what a client does that dies after the first phase."""
        team = await self.begin()
        await self.episodes["speaker"].prepare(1.0)
        await self.episodes["listener"].prepare(0.5, decider=self.episodes["speaker"])
        return team

    def states(self) -> dict[str, str | None]:
        return {role: self.rollout(role).leases.state_of(e.id) for role, e in self.episodes.items()}

    def collected(self) -> list[int]:
        return [self.rollout(role).groups.collected for role in self.served]

    async def records(self, role: str) -> list[Any]:
        return list((await self.clients[role].episodes(1000)).episodes)

    async def trained(self) -> Counter[str]:
        """Return how often each task was trained, which is the same at both members."""
        speaker, listener = [
            Counter(record.task_id for record in await self.records(role) if record.state == "consumed")
            for role in REWARDS
        ]
        assert speaker == listener
        return speaker


@contextlib.asynccontextmanager
async def pair(folder: Path, **jobs: Mapping[str, Any]) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        served, clients = {}, {}
        for role in REWARDS:
            served[role] = await stack.enter_async_context(serving(folder / role, job(**jobs.get(role, {}))))
            clients[role] = await stack.enter_async_context(AsyncSwarmClient(served[role].url, served[role].admin))
        yield Pair(served, clients)


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair(tmp_path) as made:
        yield made


def failing(times: int, error: Exception, call: Callable[..., Awaitable[Any]]) -> Any:
    """Return a verb that fails so many times before it is tried."""
    left = iter(range(times))

    async def tried(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is not None:
            raise error
        return await call(*args, **kwargs)

    return tried


async def play(team: Team) -> Mapping[str, Any]:
    for role in REWARDS:
        await team[role].chat(HI)
    return {"speaker": 1.0, "listener": (0.5, True)}


async def test_where_one_cannot_be_prepared_none_is_ended(both: Pair) -> None:
    team = await both.begin()
    await both.episodes["listener"].abort()
    with pytest.raises(TeamAborted, match=r"^listener "):
        await team.end(REWARDS)
    assert both.states() == ABORTED
    assert both.collected() == [0, 0]


async def test_rewards_that_do_not_fit_are_refused_before_anything_is_sent(both: Pair) -> None:
    team = await both.begin()
    for wrong in ({"speaker": 1.0}, {"speaker": 1.0, "listener": math.nan}, {"speaker": 1.0, "judge": 1.0}):
        with pytest.raises(InvalidRequest):
            await team.end(wrong)
    assert both.states() == dict.fromkeys(REWARDS, "open")
    with pytest.raises(InvalidRequest, match="decider"):
        Team(both.episodes, decider="judge")
    with pytest.raises(InvalidRequest, match="none"):
        Team({})


@pytest.mark.parametrize("verb", ["prepare", "commit"])
@pytest.mark.parametrize("role", ["speaker", "listener"])
async def test_a_server_that_cannot_answer_for_a_while_is_asked_again(both: Pair, role: str, verb: str) -> None:
    team, verbs = await both.begin(), both.rollout(role).teams
    setattr(verbs, verb, failing(2, StoreUnavailable("full"), getattr(verbs, verb)))
    acks = await team.end(REWARDS)
    assert {role: ack.state for role, ack in acks.items()} == both.states() == ENDED
    assert both.collected() == [1, 1]


async def test_a_decider_that_gave_up_before_the_decision_aborts_the_team(both: Pair) -> None:
    team, speaker = await both.begin(), both.episodes["speaker"]
    commit = speaker.commit

    async def late() -> Any:
        await speaker.abort("undecided")
        return await commit()

    speaker.commit = late  # type: ignore[method-assign]
    with pytest.raises(TeamAborted):
        await team.end(REWARDS)
    assert both.states() == ABORTED


@pytest.mark.parametrize("decided", [True, False])
async def test_a_followers_server_finds_the_decision_of_a_dead_client_by_itself(both: Pair, decided: bool) -> None:
    await both.prepare()
    resolver = Resolver(both.rollout("listener").teams, [both.served["speaker"].url])
    if decided:
        await both.episodes["speaker"].commit()
    else:
        await resolver.resolve_all()
        assert both.states() == PREPARED
        (held,) = both.rollout("speaker").leases.prepared
        await both.rollout("speaker").teams.decide(held, ended=False, reason="undecided")
    await resolver.resolve_all()
    assert both.states() == (ENDED if decided else ABORTED)
    await resolver.close()


async def test_a_decider_that_nobody_knows_decides_no_and_nobody_but_peers_is_asked(both: Pair) -> None:
    await both.begin()
    url = both.served["speaker"].url
    known, token = both.episodes["speaker"], both.served["speaker"].server.keys.lease_key("unknown", 1)
    lease = known.lease.model_copy(update={"episode_id": "unknown", "lease_token": token})
    await both.episodes["listener"].prepare(0.5, decider=Episode(known._transport, lease, known.task))
    for peers in ([], ["http://127.0.0.1:9"], [url[:-1]], [url]):
        resolver = Resolver(both.rollout("listener").teams, peers)
        await resolver.resolve_all()
        assert both.states()["listener"] == ("aborted" if peers == [url] else "prepared")
        await resolver.close()


async def test_a_deciders_server_that_stands_still_is_asked_again_and_others_meanwhile(
    both: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teams, "ANSWER_S", 0.05)
    await both.begin()
    over, known = asyncio.Event(), both.episodes["speaker"]
    silent = await asyncio.start_server(lambda *_: over.wait(), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    await both.episodes["listener"].prepare(0.5, decider=Episode(Transport(url), known.lease, known.task))
    resolver = Resolver(both.rollout("listener").teams, [url])
    async with asyncio.timeout(60), silent:
        await resolver.resolve_all()
        over.set()
        await resolver.close()
    assert both.states()["listener"] == "prepared"


@pytest.mark.parametrize("decided", [True, False])
async def test_another_client_passes_the_decision_on_and_makes_none(both: Pair, decided: bool) -> None:
    await both.prepare()
    if decided:
        await both.episodes["speaker"].commit()
    acks = await Team(both.episodes).settle()
    assert {role: ack.state for role, ack in acks.items()} == both.states() == (ENDED if decided else PREPARED)


@pytest.mark.parametrize("verb", [Team.settle, partial(Team.abort, reason="cancelled meanwhile")])
async def test_a_follower_that_went_away_after_the_decision_is_told_prepared_and_ends_however_it_is_asked(
    both: Pair, verb: Callable[[Team], Awaitable[Any]]
) -> None:
    team, listener = await both.begin(patience_s=0.0), both.episodes["listener"]
    listener.commit = failing(1, Unreachable("gone"), listener.commit)  # type: ignore[method-assign]
    acks = await team.end(REWARDS)
    assert {role: ack.state for role, ack in acks.items()} == both.states() == {**ENDED, "listener": "prepared"}
    await verb(team)
    assert both.states() == ENDED


async def test_where_nobody_knows_whether_a_team_was_decided_giving_it_up_changes_nothing(both: Pair) -> None:
    team, speaker = await both.begin(patience_s=0.0), both.episodes["speaker"]
    speaker.commit = failing(1, Unreachable("gone"), speaker.commit)  # type: ignore[method-assign]
    speaker.abort = failing(1, Unreachable("gone"), speaker.abort)  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        await team.end(REWARDS)
    await team.abort("cancelled meanwhile")
    assert both.states() == PREPARED
    acks = await team.abort("it is back")
    assert {role: ack.state for role, ack in acks.items()} == both.states() == ABORTED


async def test_a_member_in_an_evaluation_decides_nothing_and_ends_with_the_others(both: Pair) -> None:
    await both.begin()
    watching = await both.clients["listener"].begin(NamedTask("t"), kind="eval")
    members = {"listener": watching, "speaker": both.episodes["speaker"]}
    with pytest.raises(InvalidRequest, match="decider"):
        Team(members, decider="listener")
    acks = await Team(members).end(REWARDS)
    assert {role: ack.state for role, ack in acks.items()} == ENDED
    assert (both.collected(), both.rollout("listener").counts["evaluated"]) == ([1, 0], 1)


async def test_a_server_that_dies_between_the_phases_comes_back_prepared_and_learns_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teams, "ASK_EVERY_S", 0.1)
    may_ask, ask = asyncio.Event(), teams.Resolver.resolve_all

    async def once_it_may(resolver: teams.Resolver) -> None:
        await may_ask.wait()
        await ask(resolver)

    monkeypatch.setattr(teams.Resolver, "resolve_all", once_it_may)
    async with contextlib.AsyncExitStack() as stack:
        speaker = await stack.enter_async_context(serving(tmp_path / "speaker"))
        clients = {"speaker": await stack.enter_async_context(AsyncSwarmClient(speaker.url, speaker.admin))}
        async with serving(tmp_path / "listener", peers=[speaker.url]) as listener:
            clients["listener"] = await stack.enter_async_context(AsyncSwarmClient(listener.url, listener.admin))
            both = Pair({"speaker": speaker, "listener": listener}, clients)
            await both.prepare()
        await both.episodes["speaker"].commit()
        assert speaker.server.training.rollout.groups.collected == 1
        async with serving(tmp_path / "listener", peers=[speaker.url]) as listener:
            assert (await listener.status())["collected_episodes"] == 0
            may_ask.set()
            await eventually(listener.status, lambda status: bool(status["collected_episodes"] == 1))
            (group,) = listener.server.training.rollout.groups
            assert [(sample.episode, sample.reward) for sample in group.ended] == [(both.episodes["listener"].id, 0.5)]


async def test_both_members_train_on_every_play_with_their_own_rewards_however_the_agent_calls(both: Pair) -> None:
    async def by_address(team: Team) -> Mapping[str, Any]:
        for role, served in both.served.items():
            episode = team[role]
            assert episode.base_url == f"{served.url}/v1"
            asked = {"model": episode.model, "messages": HI}
            assert (await served.post("/v1/chat/completions", episode.api_key, asked)).status == 200
        assert team["speaker"].api_key != team["listener"].api_key
        return {"speaker": 1.0, "listener": (0.5, True)}

    summary = await Team.rollout(both.clients, TASKS, by_address, concurrency=CONCURRENCY)
    assert (summary.plays, summary.dropped) == (8, {})
    assert summary.reward_mean == REWARDS
    assert summary.success_mean == {"speaker": None, "listener": 1.0}
    assert summary.trained == {"speaker": 8, "listener": 8}
    assert await both.trained() == dict.fromkeys("abcd", 2)
    for role, reward in REWARDS.items():
        assert {record.reward for record in await both.records(role)} == {reward}
        assert (await both.clients[role].status()).open_episodes == 0


async def test_a_heartbeat_of_a_team_keeps_the_lease_of_every_member(both: Pair) -> None:
    team = await both.begin()
    leases = [lease for role in REWARDS for lease in both.rollout(role).leases]
    before = [lease.expires_at for lease in leases]
    await team.heartbeat()
    assert len(leases) == 2
    assert all(lease.expires_at > then for lease, then in zip(leases, before, strict=True))


async def test_a_lease_lost_at_one_member_gives_the_others_up_too(both: Pair) -> None:
    async def agent(team: Team) -> Mapping[str, Any]:
        rollout = both.rollout("listener")
        if not rollout.counts["fenced"]:
            (found,) = [open_ for open_ in rollout.leases if open_.id == team["listener"].id]
            rollout.fence(found, "lease_expired")
        return await play(team)

    summary = await Team.rollout(both.clients, TASKS, agent, concurrency=CONCURRENCY)
    assert summary.dropped == {"lease_lost": 1}
    assert await both.trained() == dict.fromkeys("abcd", 2)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["speaker", "listener"])
async def test_a_member_whose_job_is_finished_plays_on_untrained_until_others_are(tmp_path: Path, first: str) -> None:
    async with pair(tmp_path, **{first: {"steps": 1}}) as both:
        (other,) = REWARDS.keys() - {first}
        summary = await Team.rollout(both.clients, TASKS, play, concurrency=2)
        assert (summary.plays, summary.trained) == (8, {first: 4, other: 8})
        assert both.rollout(first).counts["evaluated"] == 4
        assert (await both.clients[first].status()).policy_version == 1
        assert sum(record.state == "consumed" for record in await both.records(other)) == 8
        assert (await Team.rollout(both.clients, TASKS, play)).plays == 0  # all are finished


async def test_a_member_that_fails_stops_the_team_and_leaves_nothing_open(tmp_path: Path) -> None:
    async with pair(tmp_path, **{role: {"steps": 5} for role in REWARDS}) as both:
        both.served["listener"].backend.learner.fail_next = "loss is NaN"
        with pytest.raises(ServerFailed, match="loss is NaN"):
            await Team.rollout(both.clients, TASKS, play, concurrency=CONCURRENCY)
        speaker = await both.clients["speaker"].status()
        assert speaker.open_episodes == 0
        assert speaker.state is not ServerState.FAILED


async def test_a_play_that_fails_is_aborted_everywhere_counted_and_played_again(both: Pair) -> None:
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
    assert await both.trained() == dict.fromkeys("abcd", 2)
    assert both.rollout("speaker").counts["aborted"] >= 2
    assert both.rollout("listener").counts["aborted"] == 2


@pytest.mark.parametrize(("answer", "found"), [
    (1.0, "float 1.0"), (None, "NoneType None"), ({"speaker": 1.0}, "'speaker'"),
    ({"speaker": 1.0, "listener": 1.0, "judge": 1.0}, "'judge'"),
    ({}, "nobody"),
    ({"speaker": 1.0, "listener": "well done"}, "well done"),
    ({"speaker": 1.0, "listener": None}, "None"),
])  # fmt: skip
async def test_an_answer_without_reward_for_each_role_ends_all_in_one_line(both: Pair, answer: Any, found: str) -> None:
    plays: list[Team] = []

    async def wrong(team: Team) -> Any:
        plays.append(team)
        await play(team)
        return answer

    with pytest.raises(AgentFailed, match=found) as caught:
        await Team.rollout(both.clients, TASKS, wrong, concurrency=2)
    assert "\n" not in str(caught.value)
    assert len(plays) <= 2  # it was not played over and over
    for role, client in both.clients.items():
        assert (await client.status()).open_episodes == 0
        assert both.rollout(role).counts["ended"] == 0


async def test_members_that_can_be_no_team_are_refused_before_anything_is_begun(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, listener={"group_size": 4}) as both,
        serving(tmp_path / "idle", start=False) as idle,
        AsyncSwarmClient(idle.url, idle.admin) as jobless,
    ):
        speaker = {"speaker": both.clients["speaker"]}
        with refused(InvalidRequest, "speaker 2, listener 4"):
            await Team.rollout(both.clients, TASKS, play)
        with refused(InvalidRequest):
            await Team.rollout({}, TASKS, play)
        with pytest.raises(InvalidRequest, match="speaker and twin"):
            await Team.rollout({**speaker, "twin": both.clients["speaker"]}, TASKS, play)
        with refused(InvalidRequest, "decider"):
            await Team.rollout(speaker, TASKS, play, decider="judge")
        with refused(ValueError, "task"):
            await Team.rollout(speaker, [], play)
        with refused(InvalidRequest, "judge"):
            await Team.rollout({**speaker, "judge": jobless}, TASKS, play)
        assert [both.rollout(role).counts["begun"] for role in REWARDS] == [0, 0]


async def test_an_evaluation_plays_all_trains_none_and_what_its_agent_fails_counts_as_not_solved(both: Pair) -> None:
    async def breaks(team: Team) -> Mapping[str, Any]:
        found = await play(team)
        if team.task.id == TASKS[0].id:
            raise ValueError("no JSON")
        return found

    results = await Team.evaluate(both.clients, TASKS, breaks, samples=2)
    assert [(result.task_id, result.sample) for result in results] == [(t.id, n) for t in TASKS for n in (0, 1)]
    assert [result.failed for result in results] == ["ValueError: no JSON"] * 2 + [""] * 10
    assert (set(results[0].rewards.values()), set(results[0].successes.values())) == ({0.0}, {False})
    assert all(result.rewards == REWARDS and not result.trained for result in results[2:])
    assert [both.rollout(role).counts["evaluated"] for role in REWARDS] == [12, 12]


async def test_a_leaders_episode_is_given_back_if_another_is_full(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_members, "WITHDRAW_S", 0.1)
    held = [await both.clients["listener"].begin(NamedTask(name)) for name in ("x", "y")]  # both groups of a batch
    playing = asyncio.create_task(Team.rollout(both.clients, TASKS, play, concurrency=2))
    await eventually(lambda: both.rollout("speaker").counts["aborted"], lambda count: bool(count >= 2))
    for episode in held:
        await episode.abort()
    summary = await playing
    assert (summary.plays, summary.dropped) == (8, {})


async def test_plain_functions_play_teams_too(both: Pair) -> None:
    def plain(team: SyncTeam) -> Mapping[str, Any]:
        assert team.task.id in "abcdef"
        for role in team.episodes:
            team[role].chat(HI)
        return REWARDS

    def blocking() -> tuple[Any, Any]:
        with contextlib.ExitStack() as stack:
            clients = {
                role: stack.enter_context(SwarmClient(served.url, served.admin)) for role, served in both.served.items()
            }
            evaluated = SyncTeam.evaluate(clients, TASKS[:2], plain)
            return evaluated, SyncTeam.rollout(clients, TASKS, plain, concurrency=CONCURRENCY)

    evaluated, summary = await asyncio.to_thread(blocking)
    assert [result.rewards["speaker"] for result in evaluated] == [1.0, 1.0]
    assert summary.trained == {"speaker": 8, "listener": 8}
