"""Places that the server hands out, beside all that clients may do: a pass plays every task once, by whomever.

The rules of the lease protocol go on (begin by name, call, heartbeat, end, abort, teams, time, crashes that lose what
was only noted); added are several clients of one stream, tools that take long, drains, stalls and clients that died.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from swarm.errors import JobConflict, Throttled
from swarm.store import StreamMoved, TasksListed
from swarm.wire import BeginRequest, ReleaseRequest, TaskList, fingerprint, tasks_digest
from tests.swarm.server.test_lease_protocol import TTL_S, Protocol, rows_of

IDS = ("x", "y", "z")
ORDERS = (IDS, ("z", "x", "y"))
OTHERS = ("x", "y")
SECRETS = {name: name * 32 for name in "pq"}


def listing(ids: tuple[str, ...], *, with_ids: bool) -> TaskList:
    return TaskList(stream="a", digest=tasks_digest(ids), count=len(ids), ids=ids if with_ids else None)


class Places(Protocol):
    """Clients p and q share the task list of stream `a`."""

    @rule(order=st.sampled_from(ORDERS), with_ids=st.booleans())
    def name_tasks(self, order: tuple[str, ...], with_ids: bool) -> None:
        before = self.listed
        answer = self.do(self.rollout.list_tasks(listing(order, with_ids=with_ids)))
        assert answer.known == (before is not None or with_ids)
        found = self.listed
        assert (None if found is None else found.ids) == (
            order if before is None and with_ids else before and before.ids
        )

    @precondition(lambda self: self.listed is not None)
    @rule(with_ids=st.booleans())
    def name_others(self, with_ids: bool) -> None:
        with pytest.raises(JobConflict, match=r"stream 'a' plays 3 tasks .* 2 others"):
            self.do(self.rollout.list_tasks(listing(OTHERS, with_ids=with_ids)))
        with pytest.raises(JobConflict, match="stream 'a' plays 3 tasks"):
            self.do(self.rollout.begin(BeginRequest(tasks=tasks_digest(OTHERS), stream="a")))

    @precondition(lambda self: self.listed is not None)
    @rule(client=st.sampled_from("pq"))
    def begin_next(self, client: str) -> None:
        owner = f"{client}:{fingerprint(SECRETS[client])}"
        asked = BeginRequest(tasks=tasks_digest(IDS), stream="a", owner=owner, timeout_s=10_000)
        lacking, following = self.standing()
        try:
            episode = self.do(self.rollout.begin(asked))
        except Throttled:
            return
        turn = self.rollout.groups.turns.of(episode.id)
        assert turn is not None
        assert turn in (*lacking, following), "what was begun comes first, then the next of the pass"
        assert episode.task_id == self.listed.ids[turn % len(IDS)]  # type: ignore[union-attr]
        assert episode.id not in self.told
        self.told[episode.id] = {"open"}

    @rule(client=st.sampled_from("pq"))
    def client_died(self, client: str) -> None:
        mine = [e.id for e in self.rollout.leases if e.owner.startswith(f"{client}:")]
        others = {e.id for e in self.rollout.leases} - set(mine)
        assert self.rollout.release(ReleaseRequest(secret=SECRETS[client])).episodes == len(mine)
        for name in mine:
            self.told[name] = {"fenced"}
        assert {e.id for e in self.rollout.leases} == others

    @precondition(lambda self: self.rollout.groups.full)
    @rule()
    def drain(self) -> None:
        self.rollout.drain.begin()

    @rule(data=st.data())
    def tool_takes_long(self, data: st.DataObject) -> None:
        """Ten leases long, with heartbeats; the others are not heard of meanwhile."""
        busy = [e for e in self.rollout.leases if e.due_at is not None]  # by age
        if not busy:
            return
        episode = busy[data.draw(st.integers(0, len(busy) - 1))]
        for told in self.told.values():
            if told & {"open", "prepared"}:
                told |= {"fenced"} if "open" in told else {"aborted"}
        for _ in range(int(10 * TTL_S / 5)):
            self.pass_time(5)
            self.rollout.heartbeat(self.claims(episode.id))
        self.told[episode.id] = {"open"}

    @rule()
    def stall(self) -> None:
        """However long the server stands still, whoever was alive before it is afterwards."""
        for episode in self.rollout.leases:
            self.rollout.heartbeat(self.claims(episode.id))
            self.told[episode.id] = {"open"}
        alive = {e.id for e in self.rollout.leases}
        self.pass_time(100 * TTL_S, stands_still=True)
        assert {e.id for e in self.rollout.leases} == alive

    @invariant()
    def each_task_is_played_once_in_a_pass(self) -> None:
        if not hasattr(self, "rollout") or self.listed is None:
            return
        over, counted, empty = Counter[int](), Counter[int](), Counter[int]()
        for row in rows_of(self.store.changes).values():
            turn = row.turn if row.turn is not None else self.adopted(row.began.episode)
            if turn is not None and row.began.stream == "a" and (row.reason or "") != "partial_group":
                over[turn] += row.state in ("ended", "in_step", "dropped") and row.reason != "no_calls"
                empty[turn] += row.reason == "no_calls"
        size, found = self.job.group_size, self.rollout.groups.streams.passes.of("a")
        counted.update(over)
        for turn, plays in empty.items():
            counted[turn] += plays if self.job.batch_rule == "episodes" else max(0, plays - size)
        assert found is not None
        assert all(plays <= size for plays in over.values()), "none twice"
        playing = Counter(self.rollout.groups.turns.of(e.id) for e in self.rollout.leases if e.stream == "a")
        playing.update(
            self.rollout.groups.turns.of(h.id) for h in self.rollout.leases.prepared if h.sample.stream == "a"
        )
        assert list(found.lacking) == [t for t in found.unfinished if playing[t] + counted[t] < size], "what is lost"
        unfinished, following = self.standing()
        for turn in range(following):
            assert turn in unfinished or counted[turn] >= size, "none left out"

    @invariant()
    def what_is_written_is_what_stands(self) -> None:
        if not hasattr(self, "rollout") or self.listed is None:
            return
        (*_, last) = [None, *(c for c in self.store.changes if isinstance(c, StreamMoved) and c.name == "a")]
        unfinished, following = self.standing()
        assert (last.turn, last.unfinished) == (following, unfinished) if last else following == 0

    @property
    def listed(self) -> TasksListed | None:
        found = self.rollout.groups.streams.passes.of("a")
        return None if found is None else found.listed

    def adopted(self, episode: str) -> int | None:
        """Return the turn that a play by name counts for since the list was named, also when it was trained."""
        known: dict[str, int] = self.__dict__.setdefault("_adopted", {})
        if (turn := self.rollout.groups.turns.of(episode)) is not None:
            known[episode] = turn
        return known.get(episode)

    def standing(self) -> tuple[tuple[int, ...], int]:
        found = self.rollout.groups.streams.passes.of("a")
        assert found is not None
        return found.unfinished, found.turn


TestPlaces = Places.TestCase
TestPlaces.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
