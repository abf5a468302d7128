"""Teams on the servers' side: linked episodes that end together, all or none.

Two-phase commit: `prepare` at every server (durable before it is acknowledged), then `commit` at the decider (this is
the decision), then at the followers. A prepared episode keeps its reward and its place, makes no calls, is not trained
and does not expire. A follower in doubt asks `GET /episodes/{id}/outcome` of the decider's server: ended is commit;
aborted, fenced or unknown is abort. An outcome is durable before it is told and never changes; an episode unknown to
the decider's server was never prepared and cannot be any more; an unanswered decider aborts after `lease_ttl_s`. Only
where a follower hears nothing for IN_DOUBT_S (`team_in_doubt`) can a team be torn.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, cast

from swarm.client.transport import Transport
from swarm.errors import InvalidRequest, JobConflict, NotFound, SwarmError, Unreachable
from swarm.rollout.episodes import EpisodeRegistry, LeasedEpisode, PreparedEpisode, State
from swarm.rollout.keys import Claims
from swarm.store.changes import EpisodeClosed, EpisodePrepared
from swarm.wire import Ack, PrepareRequest

log = logging.getLogger(__name__)

ASK_EVERY_S = 2.0
"""Seconds between two questions about a prepared episode."""
ANSWER_S = 30.0
"""A server that does not answer one of them for so long is asked again the next time: others are not kept waiting."""
IN_DOUBT_S = 86_400.0
"""Seconds after which a prepared episode whose decider says nothing is given up, from its server's last start on: its
group takes a place of every batch, and nobody completes it where the decider's server is gone."""
IN_DOUBT = "team_in_doubt"
"""Why it is."""


class Teams:
    """The verbs of both phases, and what becomes of episodes whose team says nothing."""

    def __init__(self, registry: EpisodeRegistry) -> None:
        self._registry = registry
        self.leases = registry.leases

    async def prepare(self, claims: Claims, request: PrepareRequest) -> Ack:
        """End an episode subject to its team's decision; the same again changes nothing. Durable when this returns."""
        self._registry.require_recovered()
        if self.leases.find_prepared(claims) is None:
            episode = self.leases.find(claims)
            assert episode is not None  # `find` returns None for `repeats` alone
            if episode.kind == "eval":
                raise InvalidRequest("an evaluation episode is never trained and needs no team; end it", param="kind")
            if (request.decider is None) != (request.decider_token is None):
                raise InvalidRequest(
                    "expected `decider` and `decider_token` together, found one of them", param="decider"
                )
            await self._registry.settle(episode, lambda: self._prepare(episode, request))
            if self.leases.find_prepared(claims) is None:
                self.leases.find(claims)  # raises: something else closed it meanwhile
        return Ack(episode_id=claims.episode, state="prepared")

    async def commit(self, claims: Claims) -> Ack:
        """End a prepared episode for good, durably; the same again changes nothing. JobConflict: it is not prepared."""
        self._registry.require_recovered()
        prepared = self.leases.find_prepared(claims)
        if prepared is not None:
            await self.decide(prepared, ended=True)
        if self.leases.find(claims, repeats="ended") is not None:
            raise JobConflict(f"episode {claims.episode} is not prepared; prepare it first, or end it")
        return Ack(episode_id=claims.episode, state="ended")

    async def outcome(self, claims: Claims) -> Ack:
        """Return what became of an episode, as far as that is durable; raise NotFound for one that never was."""
        self._registry.require_recovered()
        state = self.leases.state_of(claims.episode)
        if state is None:  # it is over for so long that only the store remembers it, or never was
            record = await self._registry.store.episode(claims.episode)
            if record is None:
                raise NotFound(
                    f"episode {claims.episode} was never begun here, or died before anything of it was written"
                )
            ended = record.state in ("in_step", "consumed", "dropped")
            state = "ended" if ended else cast(State, record.state)
        return Ack(episode_id=claims.episode, state=state)

    async def decide(self, prepared: PreparedEpisode, *, ended: bool, reason: str = "its team aborted") -> None:
        """End a prepared episode for good, or abort it, durably; what was decided before stands."""
        await self._registry.settle(
            prepared, lambda: self._commit(prepared) if ended else self._give_up(prepared, "aborted", reason)
        )

    def sweep(self) -> None:
        """Abort deciders that nobody decides; free the places of those that hold up a full batch."""
        now, drain, full_since = self._registry.clock(), self._registry.job.drain_timeout_s, self._registry.full_since
        awaited = self._registry.groups.awaited if full_since is not None else set()

        def in_background(work: Coroutine[None, None, None], episode: str) -> None:
            def judge(task: asyncio.Task[None]) -> None:
                error = None if task.cancelled() else task.exception()
                if error is not None:
                    log.warning("event=team_undecided episode=%s error=%r", episode, str(error))

            asyncio.create_task(work).add_done_callback(judge)

        for prepared in self.leases.prepared:
            if prepared.settling is not None:
                continue
            if prepared.sample.decider is None and prepared.expires_at <= now:
                in_background(self.decide(prepared, ended=False, reason="undecided"), prepared.id)
            elif prepared.since + IN_DOUBT_S <= now:
                give_up = partial(self._give_up, prepared, "fenced", IN_DOUBT)
                in_background(self._registry.settle(prepared, give_up), prepared.id)
            elif full_since is not None and prepared.id in awaited and max(full_since, prepared.since) + drain <= now:
                self._registry.free_place(prepared)

    async def _prepare(self, episode: LeasedEpisode, request: PrepareRequest) -> None:
        sample = self._registry.make_sample(episode, request)
        sample = replace(sample, decider=request.decider, decider_token=request.decider_token)
        await self._registry.store.write(EpisodePrepared(sample))
        self.leases.prepare(sample, episode.fencing_token)

    async def _commit(self, prepared: PreparedEpisode) -> None:
        groups, sample = self._registry.groups, prepared.sample
        place = groups.group_of(prepared.id) or groups.join_late(prepared.id, sample.task_id, sample.stream)
        task_index = groups.task_index_of(prepared.id)
        ended = replace(sample, group=place.name, decider=None, decider_token=None, task_index=task_index)
        closed = EpisodeClosed(prepared.id, "ended", prepared.fencing_token, ended, team=True)
        await self._registry.store.write(closed)
        self.leases.close(prepared, "ended")
        self._registry.collect(ended)

    async def _give_up(self, prepared: PreparedEpisode, state: Literal["aborted", "fenced"], reason: str) -> None:
        """Abort a prepared episode, or fence one whose team has not said for IN_DOUBT_S what becomes of it, durably."""
        fenced, owner = state == "fenced", prepared.sample.owner
        token = prepared.fencing_token + fenced
        await self._registry.store.write(EpisodeClosed(prepared.id, state, token, reason=reason or None, team=True))
        self.leases.close(prepared, state)
        self._registry.counts[state] += 1
        self._registry.free_place(prepared)
        if not fenced:
            log.info("event=abort episode=%s owner=%r reason=%r", prepared.id, owner, reason[:200])
            return
        self._registry.counts[f"drop_{reason}"] += 1
        log.error(
            "event=team_given_up episode=%s owner=%r decider=%s in_doubt_s=%.0f reason=%s: it is not trained here, "
            "even if its team ended", prepared.id, owner, prepared.sample.decider, IN_DOUBT_S, reason,
        )  # fmt: skip


class Resolver:
    """Asks the deciders of prepared episodes what became of them, as long as this server runs. `peers` are the
    addresses of servers it may ask (and so send a decider's lease token to); no others are asked."""

    def __init__(self, teams: Teams, peers: Sequence[str]) -> None:
        self._teams = teams
        self._peers = {peer.rstrip("/"): Transport(peer) for peer in peers}

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(ASK_EVERY_S)
                await self.resolve_all()
        finally:
            await self.close()

    async def close(self) -> None:
        await asyncio.gather(*(transport.close() for transport in self._peers.values()))

    async def resolve_all(self) -> None:
        """Ask for every prepared follower once; those of a server that does not answer are left for the next time."""
        await asyncio.gather(*(self._ask_peer(peer) for peer in self._peers))

    async def _ask_peer(self, peer: str) -> None:
        for prepared in self._teams.leases.prepared:
            decider, token = prepared.sample.decider or "", prepared.sample.decider_token or ""
            if prepared.settling is not None or not decider.startswith(f"{peer}/episodes/"):
                continue
            try:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        answer = await self._peers[peer].ask(Ack.model_validate, "GET", f"{decider}/outcome", token)
                    state = answer.state
                except NotFound:
                    state = "aborted"
                if state in ("ended", "aborted", "fenced"):
                    await self._teams.decide(prepared, ended=state == "ended")
            except (Unreachable, TimeoutError):
                return
            except SwarmError as error:  # a peer that boots, or refuses: the episode stays prepared
                log.info("event=team_in_doubt episode=%s error=%r", prepared.id, error.message)
