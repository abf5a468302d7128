"""Changes as rows: what each change of `swarm.store.tables.records` does to the tables, many changes at once.

Changes of one kind are written together, which their order allows except around a Withdrawn, an InStep, a Consumed or
an Evaluated or Erased: a call is captured after its episode began and before it closed, and episodes know nothing of
one another.

Promises that no episode is settled twice: an InStep of an episode that is not ended and free is refused whole; and that
no reward is taken for an episode whose beginning was given up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from swarm.store.tables.blobs import pack_floats, pack_ints, pack_rewards
from swarm.store.tables.checkpoints import evaluations, kept_steps
from swarm.store.tables.garbage import erase
from swarm.store.tables.records import (
    Began,
    Captured,
    Change,
    Closed,
    Consumed,
    Erased,
    Evaluated,
    InStep,
    Measured,
    Prepared,
    StoredEvent,
    StreamMoved,
    TasksListed,
    Withdrawn,
)
from swarm.store.tables.schema import CHECKPOINTS, EPISODES, EVENTS, NODES, STEPS, STREAMS, TASK_LISTS

_NODES_AT_ONCE = 32
_THIS = sa.and_(EPISODES.c.training == sa.bindparam("of"), EPISODES.c.id == sa.bindparam("episode"))
_PREPARE = sa.update(EPISODES).where(_THIS)
_CLOSE = sa.update(EPISODES).where(_THIS)
_SETTLE = sa.update(EPISODES).where(_THIS, EPISODES.c.state == "ended", EPISODES.c.kind == "train")
_MEASURE = (
    sa.update(STEPS)
    .where(STEPS.c.training == sa.bindparam("of"), STEPS.c.step == sa.bindparam("at"))
    .values(metrics=sa.bindparam("found"))
)
_WITHDRAW = sa.delete(NODES).where(NODES.c.episode == sa.bindparam("of"), NODES.c.place == sa.bindparam("at"))


class ContradictoryChanges(ValueError):
    """The changes contradict what is written; they cannot be written however often one tries."""


@dataclass(slots=True)
class Heads:
    """The last numbers given in a database: of episodes begun, of closings, of settled steps."""

    serial: int
    closed: int
    step: int


class RowWriter:
    """Writes the changes of one training. Numbers of a transaction that fails are left out, and nothing else."""

    def __init__(self, training: int, checkpoints_kept: int, heads: Heads) -> None:
        self._training = training
        self._kept = checkpoints_kept
        self._heads = heads
        self._serials: dict[str, int] = {}  # of open episodes
        self._writers: dict[type[Change], Callable[[sa.Connection, Sequence[Any]], None]] = {
            Began: self._began,
            Captured: self._captured,
            Withdrawn: self._withdrawn,
            Prepared: self._prepared,
            Closed: self._closed,
            Erased: self._erased,
            InStep: self._in_step,
            Measured: self._measured,
            Consumed: self._consumed,
            Evaluated: self._evaluated,
            StreamMoved: self._moved,
            TasksListed: self._listed,
            StoredEvent: self._happened,
        }

    def write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        """Write the changes in the connection's transaction; raise ContradictoryChanges or the database's error."""
        for kind, alike in _runs(changes, self._writers):
            self._writers[kind](connection, alike)

    def forget(self, changes: Sequence[Change]) -> None:
        """Forget what was learned of changes whose transaction failed."""
        for change in changes:
            if isinstance(change, Began):
                self._serials.pop(change.episode, None)

    def _began(self, connection: sa.Connection, changes: Sequence[Began]) -> None:
        connection.execute(sa.insert(EPISODES), [self._episode(change) for change in changes])

    def _episode(self, change: Began) -> dict[str, Any]:
        self._heads.serial += 1
        self._serials[change.episode] = self._heads.serial
        return {
            "serial": self._heads.serial, "training": self._training, "id": change.episode,
            "task_id": _text(change.task_id), "stream": _text(change.stream), "kind": change.kind,
            "owner": _text(change.owner), "group_name": _text(change.group), "version": change.version,
            "state": "open", "epoch": 1, "weight": 1.0, "turn": change.turn, "code": change.code,
        }  # fmt: skip

    def _captured(self, connection: sa.Connection, changes: Sequence[Captured]) -> None:
        for start in range(0, len(changes), _NODES_AT_ONCE):
            part = changes[start : start + _NODES_AT_ONCE]
            values = tuple(value for change in part for value in self._node(connection, change))
            connection.exec_driver_sql(_insert_nodes(connection.dialect.paramstyle, len(part)), values)

    def _node(self, connection: sa.Connection, change: Captured) -> tuple[Any, ...]:
        node = change.node
        return (
            self._serial(connection, change.episode), node.index, None if node.parent is None else node.parent.index,
            node.drift.value, pack_ints(node.context), pack_ints(node.sampled), pack_floats(node.logprobs),
            pack_ints(node.versions), node.trained, node.cut,
        )  # fmt: skip

    def _withdrawn(self, connection: sa.Connection, changes: Sequence[Withdrawn]) -> None:
        rows = [{"of": self._serial(connection, change.episode), "at": change.node.index} for change in changes]
        connection.execute(_WITHDRAW, rows)

    def _prepared(self, connection: sa.Connection, changes: Sequence[Prepared]) -> None:
        self._check_begun(connection, changes)
        rows = [
            {
                **self._this(change.episode), "state": "prepared", "reward": change.reward, "success": change.success,
                "weight": change.weight, "decider": change.decider, "decider_token": change.decider_token,
                "call_rewards": pack_rewards(change.call_rewards),
            }
            for change in changes
        ]  # fmt: skip
        connection.execute(_PREPARE, rows)

    def _closed(self, connection: sa.Connection, changes: Sequence[Closed]) -> None:
        self._check_begun(connection, [change for change in changes if change.state == "ended"])
        for change in changes:
            self._serials.pop(change.episode, None)
        rewarded = [self._reward(change) for change in changes if change.state == "ended"]
        given_up = [self._closing(change) for change in changes if change.state != "ended"]
        for rows in (rewarded, given_up):  # the same episode may be ended, then dropped; never the other way
            if rows:
                connection.execute(_CLOSE, rows)

    def _closing(self, change: Closed) -> dict[str, Any]:
        self._heads.closed += 1
        return {
            **self._this(change.episode), "state": change.state, "epoch": change.epoch,
            "reason": _text(change.reason), "closed": self._heads.closed, "closed_after": self._heads.step,
        }  # fmt: skip

    def _reward(self, change: Closed) -> dict[str, Any]:
        return {
            **self._closing(change), "reward": change.reward, "success": change.success, "weight": change.weight,
            "group_name": _text(change.group), "turn": change.turn, "call_rewards": pack_rewards(change.call_rewards),
        }  # fmt: skip

    def _erased(self, connection: sa.Connection, changes: Sequence[Erased]) -> None:
        for change in changes:
            erase(connection, self._training, change.episode)

    def _in_step(self, connection: sa.Connection, changes: Sequence[InStep]) -> None:
        for change in changes:
            settled = {"training": self._training, "step": change.step, "episodes": len(change.episodes)}
            connection.execute(sa.insert(STEPS), settled)
            rows = [
                {**self._this(episode), "state": "in_step", "step": change.step, "place": place}
                for place, episode in enumerate(change.episodes)
            ]
            if rows:
                connection.execute(_SETTLE, rows)
            self._check_settled(connection, change)
            self._heads.step = change.step

    def _check_settled(self, connection: sa.Connection, change: InStep) -> None:
        where = (EPISODES.c.training == self._training, EPISODES.c.step == change.step)
        found = connection.execute(sa.select(sa.func.count()).select_from(EPISODES).where(*where)).scalar_one()
        if found != len(change.episodes):
            raise ContradictoryChanges(
                f"step {change.step}: expected {len(change.episodes)} ended episodes that are in no step, found {found}"
            )

    def _measured(self, connection: sa.Connection, changes: Sequence[Measured]) -> None:
        rows = [
            {"of": self._training, "at": change.step, "found": json.dumps(dict(change.metrics))} for change in changes
        ]
        connection.execute(_MEASURE, rows)

    def _consumed(self, connection: sa.Connection, changes: Sequence[Consumed]) -> None:
        episodes, saved = EPISODES.c, CHECKPOINTS.c
        for change in changes:
            settled = (episodes.training == self._training, episodes.state == "in_step", episodes.step <= change.step)
            connection.execute(sa.update(EPISODES).where(*settled).values(state="consumed"))
            this = (saved.training == self._training, saved.step == change.step)
            again = connection.execute(sa.update(CHECKPOINTS).where(*this).values(name=change.name)).rowcount
            if not again:
                row = {"training": self._training, "step": change.step, "name": change.name}
                connection.execute(sa.insert(CHECKPOINTS), row)
            self._rotate(connection)

    def _evaluated(self, connection: sa.Connection, changes: Sequence[Evaluated]) -> None:
        saved = CHECKPOINTS.c
        for found in (change.evaluation for change in changes):
            this = (saved.training == self._training, saved.step == found.step)
            scores = found.model_dump(include={"episodes", "reward", "success"})
            connection.execute(sa.update(CHECKPOINTS).where(*this).values(**scores))
        self._rotate(connection)

    def _rotate(self, connection: sa.Connection) -> None:
        """Forget the checkpoints beyond those that are kept."""
        saved = CHECKPOINTS.c
        here = saved.training == self._training
        steps = list(connection.execute(sa.select(saved.step).where(here)).scalars())
        kept = kept_steps(steps, self._kept, evaluations(connection, self._training))
        connection.execute(sa.delete(CHECKPOINTS).where(here, saved.step.not_in(kept)))

    def _moved(self, connection: sa.Connection, changes: Sequence[StreamMoved]) -> None:
        latest = {change.name: change for change in changes}
        gone = sa.and_(STREAMS.c.training == self._training, STREAMS.c.name.in_(list(latest)))
        connection.execute(sa.delete(STREAMS).where(gone))
        rows = [
            {
                "training": self._training, "name": change.name, "share": change.share, "cursor": change.cursor,
                "trained": change.trained, "credit": change.credit, "turn": change.turn,
                "unfinished": json.dumps(change.unfinished),
            }
            for change in latest.values()
        ]  # fmt: skip
        connection.execute(sa.insert(STREAMS), rows)

    def _listed(self, connection: sa.Connection, changes: Sequence[TasksListed]) -> None:
        rows = [
            {
                "training": self._training, "stream": change.stream, "digest": change.digest,
                "ids": json.dumps(change.ids),
            }
            for change in changes
        ]  # fmt: skip
        connection.execute(sa.insert(TASK_LISTS), rows)

    def _happened(self, connection: sa.Connection, changes: Sequence[StoredEvent]) -> None:
        rows = [
            {"training": self._training, "kind": event.kind, "at": event.at, "details": json.dumps(dict(event.details))}
            for event in changes
        ]
        connection.execute(sa.insert(EVENTS), rows)

    def _this(self, episode: str) -> dict[str, Any]:
        return {"of": self._training, "episode": episode}

    def _check_begun(self, connection: sa.Connection, changes: Sequence[Prepared | Closed]) -> None:
        """Raise Refused for an episode that is not written: an update of nothing would be no error."""
        for change in changes:
            self._serial(connection, change.episode)

    def _serial(self, connection: sa.Connection, episode: str) -> int:
        known = self._serials.get(episode)
        if known is None:  # it closed, or began before a restart
            query = sa.select(EPISODES.c.serial).where(_THIS)
            known = connection.execute(query, self._this(episode)).scalar()
        if known is None:
            raise ContradictoryChanges(f"episode {episode} never began")
        return int(known)


_BARRIERS = (Withdrawn, InStep, Consumed, Evaluated, Erased)


def _runs(changes: Sequence[Change], order: Sequence[type[Change]] | Any) -> Iterator[tuple[type[Change], list[Any]]]:
    """Yield the changes by kind, in an order that means the same as theirs."""
    alike: dict[type[Change], list[Any]] = {}
    for change in changes:
        if isinstance(change, _BARRIERS):
            yield from _ordered(alike, order)
            alike = {}
            yield type(change), [change]
        else:
            alike.setdefault(type(change), []).append(change)
    yield from _ordered(alike, order)


def _ordered(alike: dict[type[Change], list[Any]], order: Any) -> Iterator[tuple[type[Change], list[Any]]]:
    return ((kind, alike[kind]) for kind in order if kind in alike)


@cache
def _insert_nodes(paramstyle: str, rows: int) -> str:
    """Return the SQL that inserts several nodes in one statement: one hand-over of the interpreter for all."""
    mark = "?" if paramstyle == "qmark" else "%s"
    row = f"({', '.join([mark] * len(NODES.columns))})"
    columns = ", ".join(column.name for column in NODES.columns)
    return f"INSERT INTO {NODES.name} ({columns}) VALUES {', '.join([row] * rows)}"


def _text(value: str | None) -> str | None:
    """Return text as every database takes it: PostgreSQL's has no NUL."""
    return value if value is None or "\0" not in value else value.replace("\0", "\ufffd")
