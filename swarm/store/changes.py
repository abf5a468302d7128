"""What is written: rows as they stand, and changes of rows, each with the SQL that writes it.

What is durable, and when: `CallCaptured` before the reply is finished, `CallWithdrawn` when nobody was left to take it;
`EpisodeClosed` before an end is acknowledged (`EpisodePrepared` first, for a team); `BatchScheduled(k)` before the
learner sees the batch; `CheckpointSaved(k)` in one transaction with the checkpoint's name; `CheckpointEvaluated(k)`
before the next step. Recovery loads the newest checkpoint c and learns batches c+1, c+2, ... again, so each sample is
in the weights once, whenever the process died.

Those of one kind are written together, but for those whose order among all others matters. No episode is settled twice
(a batch with one that is not ended and free is refused whole), and no reward is taken for an episode whose beginning
was given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Self

import sqlalchemy as sa

from swarm.errors import StoreRefused
from swarm.store import tables
from swarm.store.retention import erase_tokens, read_evaluations
from swarm.timelines import Node
from swarm.wire import EvaluationSummary

Closing = Literal["ended", "aborted", "fenced", "dropped"]
_NODES_AT_ONCE = 32
_REWARD = ("reward", "success", "weight", "call_rewards")
_E = tables.EPISODES.c
_THIS = sa.and_(_E.training == sa.bindparam("of"), _E.episode == sa.bindparam("this"))


@dataclass(slots=True)
class HighWaterMarks:
    """The last numbers given in a database: of episodes begun, of closings, of settled steps."""

    serial: int
    closed: int
    step: int


class Update:
    """A change of rows that are there, or of several tables."""

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class CallCaptured(Update):
    """A call was served."""

    episode: str
    node: Node

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        for start in range(0, len(changes), _NODES_AT_ONCE):
            part = changes[start : start + _NODES_AT_ONCE]
            values: list[Any] = []
            for change in part:
                node = change.node
                values += (
                    to.serial(change.episode), node.index, None if node.parent is None else node.parent.index,
                    node.drift.value, *node.packed, node.trained, node.cut,
                )  # fmt: skip
            to.connection.exec_driver_sql(_insert_nodes(to.connection.dialect.paramstyle, len(part)), tuple(values))


@cache
def _insert_nodes(paramstyle: str, rows: int) -> str:
    mark = "?" if paramstyle == "qmark" else "%s"
    row = f"({', '.join([mark] * len(tables.NODES.columns))})"
    columns = ", ".join(column.name for column in tables.NODES.columns)
    return f"INSERT INTO {tables.NODES.name} ({columns}) VALUES {', '.join([row] * rows)}"


@dataclass(frozen=True, eq=False)
class CallWithdrawn(Update):
    """A captured call was never served: its client went away while it was written. It is no part of the episode. Only
    noted, always before the episode's `EpisodeClosed`; until then nothing of the episode is trained."""

    episode: str
    node: Node

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        for change in changes:
            this = (tables.NODES.c.episode == to.serial(change.episode), tables.NODES.c.place == change.node.index)
            to.connection.execute(sa.delete(tables.NODES).where(*this))


@dataclass(frozen=True)
class EpisodePrepared(Update):
    """An episode of a team has its reward, but waits for the team's decision. It may be asked of its decider."""

    sample: tables.Sample

    @property
    def episode(self) -> str:
        return self.sample.episode

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        to.check_begun(changes)
        names = ("episode", *_REWARD, "decider", "decider_token")
        to.update_episodes([{**change.sample.columns(*names), "state": "prepared"} for change in changes])


@dataclass(frozen=True)
class EpisodeClosed(Update):
    """An episode is over: ended with a `sample`, aborted, fenced, or (after its end) dropped from the pool.
    `fencing_token` is the one that is valid from now on; `reason` why it was given up. `team`: it was prepared, and
    what is told of it must stand whatever happens, a loss of power too."""

    episode: str
    state: Closing
    fencing_token: int = 1
    sample: tables.Sample | None = None
    reason: str | None = None
    team: bool = False

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        ended = [change for change in changes if change.state == "ended"]
        to.check_begun(ended)
        given_up = [change for change in changes if change.state != "ended"]
        for alike in (ended, given_up):  # the same episode may be ended, then dropped; never the other way
            to.update_episodes([to.close(change) for change in alike])


@dataclass(frozen=True)
class EpisodeErased(Update):
    """The tokens of an episode are to be deleted; nothing happens to one that is open, or may have to be learned."""

    episode: str

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        for change in changes:
            erase_tokens(to.connection, to.training, change.episode)


@dataclass(frozen=True)
class BatchScheduled(Update):
    """The batch of a step is settled: these episodes, in the learner's order."""

    step: int
    episodes: tuple[str, ...]
    advantages: tuple[float, ...] | None = None
    """Of these episodes, where a client gave them."""

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        settle = sa.update(tables.EPISODES).where(_THIS, _E.state == "ended", _E.kind == "train")
        for change in changes:
            row = {"training": to.training, "step": change.step, "episodes": len(change.episodes)}
            to.connection.execute(sa.insert(tables.STEPS), {**row, "advantages": change.advantages})
            rows = [
                {"of": to.training, "this": episode, "state": "in_step", "step": change.step, "place": place}
                for place, episode in enumerate(change.episodes)
            ]
            if rows:
                to.connection.execute(settle, rows)
            settled = (_E.training == to.training, _E.step == change.step)
            count = sa.select(sa.func.count()).select_from(tables.EPISODES).where(*settled)
            if (free := to.connection.execute(count).scalar_one()) != len(change.episodes):
                raise StoreRefused(
                    f"step {change.step}: expected {len(change.episodes)} ended episodes that are in no step, "
                    f"found {free}"
                )
            to.marks.step = change.step


@dataclass(frozen=True)
class StepMeasured(Update):
    """What is known of a settled step, by its metrics' names: of its rollout, and all of it once it was learned. Only
    noted, before the `CheckpointSaved` of a checkpoint holding the step: a restart has the rows of all such steps."""

    step: int
    metrics: Mapping[str, float]

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        this = (tables.STEPS.c.training == to.training, tables.STEPS.c.step == sa.bindparam("this"))
        rows = [{"this": change.step, "metrics": change.metrics} for change in changes]
        to.connection.execute(sa.update(tables.STEPS).where(*this), rows)


@dataclass(frozen=True)
class CheckpointSaved(Update):
    """Checkpoint `name` is on disk and holds everything up to step `step`."""

    step: int
    name: str

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        for change in changes:
            settled = (_E.training == to.training, _E.state == "in_step", _E.step <= change.step)
            to.connection.execute(sa.update(tables.EPISODES).where(*settled).values(state="consumed"))
            if not to.update_checkpoint(change.step, name=change.name):
                row = {"training": to.training, "step": change.step, "name": change.name}
                to.connection.execute(sa.insert(tables.CHECKPOINTS), row)
            to.rotate_checkpoints()


@dataclass(frozen=True)
class CheckpointEvaluated(Update):
    """The weights of a checkpoint were evaluated; of one that is not kept nothing is written."""

    evaluation: EvaluationSummary

    @classmethod
    def write(cls, to: RowWriter, changes: Sequence[Self]) -> None:
        for change in changes:
            scores = change.evaluation.model_dump(include={"episodes", "reward", "success"})
            to.update_checkpoint(change.evaluation.step, **scores)
            to.rotate_checkpoints()


Change = tables.Base | Update
_TOGETHER: tuple[type[Change], ...] = (
    tables.EpisodeRow, CallCaptured, EpisodePrepared, EpisodeClosed, StepMeasured, tables.StreamRow, tables.TaskListRow,
)  # fmt: skip
"""Those of one kind are written together, kind after kind in this order; all others where they stand."""


def must_survive_power_loss(change: Change) -> bool:
    """Return whether a change, and so all before it, must be on the disk itself before it counts."""
    if isinstance(change, EpisodeClosed):
        return change.team
    return isinstance(change, BatchScheduled | CheckpointSaved | EpisodePrepared | tables.TaskListRow)


class RowWriter:
    """Writes the changes of one training. Numbers of a transaction that fails are left out, and nothing else."""

    connection: sa.Connection
    """That of the present transaction."""

    def __init__(self, training: int, checkpoints_kept: int, marks: HighWaterMarks) -> None:
        self.training = training
        self.marks = marks
        self._checkpoints_kept = checkpoints_kept
        self._serials: dict[str, int] = {}  # of open episodes

    def write(self, connection: sa.Connection, changes: Sequence[Change]) -> None:
        self.connection = connection
        alike: dict[type[Change], list[Any]] = {}
        for change in [*changes, None]:
            if change is not None and type(change) in _TOGETHER:
                alike.setdefault(type(change), []).append(change)
                continue
            runs = [(kind, alike[kind]) for kind in _TOGETHER if kind in alike]
            for kind, run in runs if change is None else [*runs, (type(change), [change])]:
                if issubclass(kind, Update):
                    kind.write(self, run)
                else:
                    self._insert(run)
            alike = {}

    def forget(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, tables.EpisodeRow):
                self._serials.pop(change.episode, None)

    def _insert(self, rows: Sequence[tables.Base]) -> None:
        if isinstance(rows[0], tables.StreamRow):  # the last one written is where it stands
            latest = {row.name: row for row in rows if isinstance(row, tables.StreamRow)}
            there = (tables.STREAMS.c.training == self.training, tables.STREAMS.c.name.in_(latest))
            self.connection.execute(sa.delete(tables.STREAMS).where(*there))
            rows = list(latest.values())
        values = [{**row.values(), "training": self.training} for row in rows]
        if isinstance(rows[0], tables.EpisodeRow):
            for value in values:
                self.marks.serial += 1
                value["serial"] = self._serials[value["episode"]] = self.marks.serial
        self.connection.execute(sa.insert(type(rows[0]).__table__), values)  # type: ignore[arg-type]

    def close(self, change: EpisodeClosed) -> dict[str, Any]:
        self._serials.pop(change.episode, None)
        self.marks.closed += 1
        values = {name: getattr(change, name) for name in ("episode", "state", "fencing_token", "reason")}
        if change.sample is not None:
            values |= {**change.sample.columns(*_REWARD, "task_index"), "group": change.sample.group or None}
        return {**values, "closed": self.marks.closed, "closed_after": self.marks.step}

    def update_episodes(self, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            this = [{"of": self.training, "this": row.pop("episode"), **row} for row in rows]
            self.connection.execute(sa.update(tables.EPISODES).where(_THIS), this)

    def update_checkpoint(self, step: int, **values: Any) -> bool:
        """Return whether there is one of that step."""
        this = (tables.CHECKPOINTS.c.training == self.training, tables.CHECKPOINTS.c.step == step)
        return bool(self.connection.execute(sa.update(tables.CHECKPOINTS).where(*this).values(**values)).rowcount)

    def rotate_checkpoints(self) -> None:
        here = tables.CHECKPOINTS.c.training == self.training
        steps = list(self.connection.execute(sa.select(tables.CHECKPOINTS.c.step).where(here)).scalars())
        kept = tables.choose_kept_steps(steps, self._checkpoints_kept, read_evaluations(self.connection, self.training))
        self.connection.execute(sa.delete(tables.CHECKPOINTS).where(here, tables.CHECKPOINTS.c.step.not_in(kept)))

    def check_begun(self, changes: Sequence[EpisodePrepared | EpisodeClosed]) -> None:
        """Raise StoreRefused for an episode that is not written: an update of nothing would be no error."""
        for change in changes:
            self.serial(change.episode)

    def serial(self, episode: str) -> int:
        serial = self._serials.get(episode)
        if serial is None:  # it closed, or began before a restart
            query = sa.select(_E.serial).where(_THIS)
            serial = self.connection.execute(query, {"of": self.training, "this": episode}).scalar()
        if serial is None:
            raise StoreRefused(f"episode {episode} never began")
        return serial
