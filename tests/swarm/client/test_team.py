"""Teams over two real servers: all of them or none, whoever dies in between."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swarm.client import AsyncSwarmClient, Episode, NamedTask
from swarm.client.teams import Team
from swarm.errors import InvalidRequest, StoreUnavailable, TeamAborted, Unreachable
from swarm.server.episodes import teams
from swarm.server.episodes.rollout import Rollout
from swarm.server.episodes.teams import Resolver
from tests.swarm.server.support import Served, eventually, job, serving

HI: list[Any] = [{"role": "user", "content": "hi"}]


@dataclass
class Two:
    """Two servers, and a team of an episode on each."""

    served: dict[str, Served]
    episodes: dict[str, Episode[Any]]
    team: Team

    def rollout(self, role: str) -> Rollout:
        return self.served[role].server.training.rollout

    def states(self) -> dict[str, str | None]:
        return {role: self.rollout(role).leases.state_of(e.id) for role, e in self.episodes.items()}

    def collected(self) -> list[int]:
        return [self.rollout(role).groups.collected for role in self.served]


@contextlib.asynccontextmanager
async def two(folder: Path, **fields: Any) -> AsyncIterator[Two]:
    """Serve a solver and a critic; the solver decides."""
    async with contextlib.AsyncExitStack() as stack:
        served, episodes = {}, {}
        for role in ("solver", "critic"):
            served[role] = await stack.enter_async_context(serving(folder / role, job(**fields)))
            client = await stack.enter_async_context(AsyncSwarmClient(served[role].url, served[role].admin))
            episodes[role] = await client.begin(NamedTask("t"))
            await episodes[role].chat(HI)
        yield Two(served, episodes, Team(episodes, patience_s=5.0))


def refusing(times: int, error: Exception, call: Callable[..., Awaitable[Any]]) -> Any:
    """Return a verb that fails so many times before it is tried."""
    left = iter(range(times))

    async def refused(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is not None:
            raise error
        return await call(*args, **kwargs)

    return refused


async def test_a_team_ends_together(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        acks = await both.team.end({"solver": 1.0, "critic": (0.5, True)})
        assert {role: ack.state for role, ack in acks.items()} == {"solver": "ended", "critic": "ended"}
        assert both.collected() == [1, 1]
        (group,) = both.rollout("critic").groups
        assert (group.ended[0].reward, group.ended[0].success) == (0.5, True)


async def test_where_one_cannot_be_prepared_none_is_ended(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        await both.episodes["critic"].abort()
        with pytest.raises(TeamAborted, match="critic could not be ended"):
            await both.team.end({"solver": 1.0, "critic": 0.5})
        assert both.states() == {"solver": "aborted", "critic": "aborted"}
        assert both.collected() == [0, 0]


async def test_rewards_that_do_not_fit_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        for wrong in ({"solver": 1.0}, {"solver": 1.0, "critic": math.nan}, {"solver": 1.0, "judge": 1.0}):
            with pytest.raises(InvalidRequest):
                await both.team.end(wrong)
        assert both.states() == {"solver": "open", "critic": "open"}
        with pytest.raises(InvalidRequest, match="decider"):
            Team(both.episodes, decider="judge")
        with pytest.raises(InvalidRequest, match="none"):
            Team({})


async def test_a_team_can_be_given_up(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        acks = await both.team.abort("no longer wanted")
        assert {ack.state for ack in acks.values()} == {"aborted"}
        assert both.states() == {"solver": "aborted", "critic": "aborted"}


@pytest.mark.parametrize("verb", ["prepare", "commit"])
@pytest.mark.parametrize("role", ["solver", "critic"])
async def test_a_server_that_cannot_answer_for_a_while_is_asked_again(tmp_path: Path, role: str, verb: str) -> None:
    async with two(tmp_path) as both:
        verbs = both.rollout(role).teams
        setattr(verbs, verb, refusing(2, StoreUnavailable("the disk is full"), getattr(verbs, verb)))
        await both.team.end({"solver": 1.0, "critic": 0.5})
        assert both.states() == {"solver": "ended", "critic": "ended"}
        assert both.collected() == [1, 1]


async def test_a_decider_that_gave_up_before_the_decision_aborts_the_team(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        commit = both.episodes["solver"].commit

        async def late() -> Any:
            await both.episodes["solver"].abort("undecided")
            return await commit()

        both.episodes["solver"].commit = late  # type: ignore[method-assign]
        with pytest.raises(TeamAborted, match="time was up"):
            await both.team.end({"solver": 1.0, "critic": 0.5})
        assert both.states() == {"solver": "aborted", "critic": "aborted"}


async def left_in_doubt(both: Two, *, decided: bool) -> None:
    """Do what a client does that dies after the first phase, or after the decision."""
    decider = both.episodes["solver"]
    await decider.prepare(1.0)
    await both.episodes["critic"].prepare(0.5, decider=decider)
    if decided:
        await decider.commit()


@pytest.mark.parametrize("decided", [True, False])
async def test_a_followers_server_finds_the_decision_of_a_dead_client_by_itself(tmp_path: Path, decided: bool) -> None:
    async with two(tmp_path) as both:
        await left_in_doubt(both, decided=decided)
        resolver = Resolver(both.rollout("critic").teams, [both.served["solver"].url])
        if not decided:
            await resolver.ask()
            assert both.states() == {"solver": "prepared", "critic": "prepared"}
            (held,) = both.rollout("solver").leases.prepared
            await both.rollout("solver").teams.decide(held, ended=False, reason="undecided")
        await resolver.ask()
        state = "ended" if decided else "aborted"
        assert both.states() == {"solver": state, "critic": state}
        await resolver.close()


async def test_a_decider_that_nobody_knows_decides_no(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        known, token = both.episodes["solver"], both.served["solver"].server.keys.lease("unknown", 1)
        lease = known.lease.model_copy(update={"episode_id": "unknown", "lease_token": token})
        await both.episodes["critic"].prepare(0.5, decider=Episode(known._transport, lease, known.task))
        resolver = Resolver(both.rollout("critic").teams, [both.served["solver"].url])
        await resolver.ask()
        assert both.states()["critic"] == "aborted"
        await resolver.close()


async def test_a_server_asks_nobody_but_its_peers(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        await left_in_doubt(both, decided=True)
        for peers in ([], ["http://127.0.0.1:9"], [both.served["solver"].url[:-1]]):
            resolver = Resolver(both.rollout("critic").teams, peers)
            await resolver.ask()
            assert both.states()["critic"] == "prepared"
            await resolver.close()


async def test_another_client_passes_the_decision_on(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        await left_in_doubt(both, decided=True)
        acks = await Team(both.episodes).settle()
        assert {ack.state for ack in acks.values()} == {"ended"}


async def test_settling_leaves_an_undecided_team_as_it_is(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        await left_in_doubt(both, decided=False)
        acks = await Team(both.episodes).settle()
        assert {ack.state for ack in acks.values()} == {"prepared"}
        assert both.states() == {"solver": "prepared", "critic": "prepared"}


async def test_a_follower_that_went_away_after_the_decision_is_left_prepared_and_said_to_be_so(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        team, critic = Team(both.episodes, patience_s=0.0), both.episodes["critic"]
        commit = critic.commit
        critic.commit = refusing(1, Unreachable("gone"), commit)  # type: ignore[method-assign]
        acks = await team.end({"solver": 1.0, "critic": 0.5})
        assert {role: ack.state for role, ack in acks.items()} == {"solver": "ended", "critic": "prepared"}
        await team.settle()
        assert both.states() == {"solver": "ended", "critic": "ended"}


async def test_a_team_that_was_decided_is_ended_by_giving_it_up_and_not_torn(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        team, critic = Team(both.episodes, patience_s=0.0), both.episodes["critic"]
        critic.commit = refusing(1, Unreachable("gone"), critic.commit)  # type: ignore[method-assign]
        await team.end({"solver": 1.0, "critic": 0.5})
        assert both.states() == {"solver": "ended", "critic": "prepared"}
        await team.abort("cancelled meanwhile")
        assert both.states() == {"solver": "ended", "critic": "ended"}


async def test_where_nobody_knows_whether_a_team_was_decided_giving_it_up_changes_nothing(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        team, solver = Team(both.episodes, patience_s=0.0), both.episodes["solver"]
        gone = Unreachable("gone")
        solver.commit = refusing(1, gone, solver.commit)  # type: ignore[method-assign]
        solver.abort = refusing(1, gone, solver.abort)  # type: ignore[method-assign]
        with pytest.raises(Unreachable):
            await team.end({"solver": 1.0, "critic": 0.5})
        await team.abort("cancelled meanwhile")
        assert both.states() == {"solver": "prepared", "critic": "prepared"}
        await team.abort("it is back")
        assert both.states() == {"solver": "aborted", "critic": "aborted"}


async def test_a_member_in_an_evaluation_decides_nothing_and_ends_with_the_others(tmp_path: Path) -> None:
    async with (
        two(tmp_path) as both,
        AsyncSwarmClient(both.served["critic"].url, both.served["critic"].admin) as client,
    ):
        watching = await client.begin(NamedTask("t"), kind="eval")
        team = Team({"critic": watching, "solver": both.episodes["solver"]})
        assert team.decider == "solver"
        acks = await team.end({"solver": 1.0, "critic": 0.5})
        assert {role: ack.state for role, ack in acks.items()} == {"solver": "ended", "critic": "ended"}
        assert both.collected() == [1, 0]
        assert both.rollout("critic").counts["evaluated"] == 1
        with pytest.raises(InvalidRequest, match="decider"):
            Team({"critic": watching, "solver": both.episodes["solver"]}, decider="critic")


async def test_teams_are_still_had_from_the_clients_package() -> None:
    import swarm.client

    assert swarm.client.Team is Team  # type: ignore[attr-defined]


async def test_the_leases_of_a_team_are_kept_while_one_of_its_servers_is_waited_for(tmp_path: Path) -> None:
    async with two(tmp_path, lease_ttl_s=1.5) as both:  # half of what is waited for
        critic = both.rollout("critic").teams
        critic.prepare = refusing(6, StoreUnavailable("the disk is full"), critic.prepare)  # type: ignore[method-assign]
        await both.team.end({"solver": 1.0, "critic": 0.5})
        assert both.collected() == [1, 1]


async def test_a_training_of_teams_goes_on_batch_by_batch(tmp_path: Path) -> None:
    async with two(tmp_path, steps=1, episodes_per_step=2) as both:
        clients = [AsyncSwarmClient(served.url, served.admin) for served in both.served.values()]
        async with clients[0], clients[1]:
            second = {
                role: await client.begin(NamedTask("t")) for role, client in zip(both.served, clients, strict=True)
            }
            for episode in second.values():
                await episode.chat(HI)
            await asyncio.gather(
                both.team.end({"solver": 1.0, "critic": 0.0}), Team(second).end({"solver": 0.0, "critic": 1.0})
            )
            for served in both.served.values():
                await eventually(served.status, lambda status: bool(status["finished"]))


async def test_a_server_that_dies_between_the_phases_comes_back_prepared_and_learns_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teams, "ASK_EVERY_S", 0.1)
    async with serving(tmp_path / "solver") as solver, contextlib.AsyncExitStack() as clients:
        async with serving(tmp_path / "critic", peers=[solver.url]) as critic:
            episodes = await begun(clients, solver=solver, critic=critic)
            await episodes["solver"].prepare(1.0)
            await episodes["critic"].prepare(0.5, decider=episodes["solver"])
        await episodes["solver"].commit()
        assert solver.server.training.rollout.groups.collected == 1
        async with serving(tmp_path / "critic", peers=[solver.url]) as critic:
            assert (await critic.status())["collected_episodes"] == 0
            await eventually(critic.status, lambda status: bool(status["collected_episodes"] == 1))
            (group,) = critic.server.training.rollout.groups
            assert [(sample.episode, sample.reward) for sample in group.ended] == [(episodes["critic"].id, 0.5)]


async def test_a_follower_that_restarts_while_its_team_ends_is_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path / "solver") as solver, contextlib.AsyncExitStack() as clients:
        async with serving(tmp_path / "critic") as critic:
            episodes = await begun(clients, solver=solver, critic=critic)
            port, commit, dead = int(critic.url.rpartition(":")[2]), episodes["critic"].commit, asyncio.Event()

            async def committed() -> Any:
                dead.set()
                return await commit()

            episodes["critic"].commit = committed  # type: ignore[method-assign]
            await episodes["solver"].prepare(1.0)
            await episodes["critic"].prepare(0.5, decider=episodes["solver"])
        ending = asyncio.create_task(Team(episodes).end({"solver": 1.0, "critic": 0.5}))
        await asyncio.sleep(0)
        async with serving(tmp_path / "critic", port=port) as critic:
            acks = await ending
            assert {role: ack.state for role, ack in acks.items()} == {"solver": "ended", "critic": "ended"}
            assert dead.is_set()
            assert critic.server.training.rollout.groups.collected == 1


async def test_a_decider_that_dies_before_the_decision_comes_back_undecided_and_can_be_committed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "critic") as critic, contextlib.AsyncExitStack() as clients:
        async with serving(tmp_path / "solver") as solver:
            port = int(solver.url.rpartition(":")[2])
            episodes = await begun(clients, solver=solver, critic=critic)
            await episodes["solver"].prepare(1.0)
            await episodes["critic"].prepare(0.5, decider=episodes["solver"])
        with pytest.raises(Unreachable):
            await episodes["solver"].outcome()
        async with serving(tmp_path / "solver", port=port):
            team = Team(episodes)
            assert {ack.state for ack in (await team.settle()).values()} == {"prepared"}
            acks = await team.end({"solver": 1.0, "critic": 0.5})
            assert {ack.state for ack in acks.values()} == {"ended"}


async def begun(clients: contextlib.AsyncExitStack, **served: Served) -> dict[str, Episode[Any]]:
    """Begin an episode on each server."""
    episodes: dict[str, Episode[Any]] = {}
    for role, one in served.items():
        client = await clients.enter_async_context(AsyncSwarmClient(one.url, one.admin))
        episodes[role] = await client.begin(NamedTask("t"))
        await episodes[role].chat(HI)
    return episodes
