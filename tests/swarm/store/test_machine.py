"""A store through any number of lives: what comes back is what was written, once, and in its order."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from swarm.errors import StoreRefused
from swarm.store.changes import (
    BatchScheduled,
    CallCaptured,
    CallWithdrawn,
    Change,
    CheckpointSaved,
    EpisodeClosed,
    EpisodePrepared,
)
from swarm.store.reading import RecoveredState
from swarm.store.writer import Store, open_store
from swarm.timelines import Node
from tests.swarm.store.support import HERE, began, ended, facts, job, node, sample

NO_SHRINK = (Phase.generate,)


@dataclass
class Play:
    """What the store has to know of an episode."""

    name: str
    kind: str
    state: str = "open"
    token: int = 1
    reason: str | None = None
    nodes: list[Node] = field(default_factory=list)
    step: int = 0
    closed_after: int = 0

    @property
    def fence(self) -> tuple[str, tuple[int, str, str | None]]:
        return self.name, (self.token, "ended" if self.state in ("in_step", "consumed") else self.state, self.reason)


class Lives(RuleBasedStateMachine):
    """Changes are noted or awaited, alone or several at once, which must not make a difference."""

    url: str
    runs = iter(range(10_000))

    @initialize(kept=st.integers(1, 2))
    def open(self, kept: int) -> None:
        self.runner = asyncio.Runner()
        self.job = job(seed=next(self.runs), checkpoints_kept=kept, steps=99)
        self.plays: dict[str, Play] = {}
        self.closings: list[str] = []
        self.batches: list[list[str]] = []
        self.saved: list[int] = []
        self.held: list[Change] = []
        self.store: Store
        self.store, found = open_store(self.url, self.job, HERE)
        self.check(found)

    def write(self, *changes: Change) -> None:
        self.held += changes

    @rule(together=st.booleans())
    def flush(self, together: bool) -> None:
        held, self.held = self.held, []

        async def work() -> None:
            for change in held[:-1] if not together else ():
                self.store.note(change)
            await self.store.write(*(held if together else held[-1:]))

        self.runner.run(work())

    def of(self, *states: str, kind: str | None = None) -> list[Play]:
        return [play for play in self.plays.values() if play.state in states and kind in (None, play.kind)]

    def waiting(self) -> list[str]:
        return [name for name in self.closings if self.plays[name] in self.of("ended", kind="train")]

    @rule(kind=st.sampled_from(["train", "train", "eval"]), calls=st.integers(0, 2))
    def begin(self, kind: str, calls: int) -> None:
        name = f"e{len(self.plays)}"
        self.plays[name] = Play(name, kind)
        self.write(began(name, kind=kind, group="t#1" if kind == "train" else None))
        for _ in range(calls):
            self.call(self.plays[name])

    def call(self, play: Play) -> None:
        play.nodes.append(node(len(play.nodes), play.nodes[-1] if play.nodes else None))
        self.write(CallCaptured(play.name, play.nodes[-1]))

    @precondition(lambda self: self.of("open"))
    @rule(data=st.data(), withdrawn=st.booleans())
    def calls(self, data: st.DataObject, withdrawn: bool) -> None:
        play = data.draw(st.sampled_from(self.of("open")))
        self.call(play)
        if withdrawn:
            self.write(CallWithdrawn(play.name, play.nodes.pop()))

    @precondition(lambda self: self.of("open", kind="train"))
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        play = data.draw(st.sampled_from(self.of("open", kind="train")))
        play.state = "prepared"
        self.write(EpisodePrepared(sample(play.name, decider="http://x", decider_token="token")))

    @precondition(lambda self: self.of("open", "prepared"))
    @rule(data=st.data(), state=st.sampled_from(["ended", "ended", "ended", "aborted", "fenced"]), drops=st.booleans())
    def close(self, data: st.DataObject, state: Any, drops: bool) -> None:
        play = data.draw(st.sampled_from(self.of("open", "prepared")))
        play.state, play.token = state, 2 if state == "fenced" else 1
        play.reason = None if state == "ended" else "because"
        self.write(
            ended(play.name) if state == "ended" else EpisodeClosed(play.name, state, play.token, reason="because")
        )
        self.closed(play)
        if state == "ended" and play.kind == "train" and drops:
            play.state, play.reason = "dropped", "stale"
            self.write(EpisodeClosed(play.name, "dropped", 1, reason="stale"))
            self.closed(play)

    def closed(self, play: Play) -> None:
        play.closed_after = len(self.batches)
        self.closings = [name for name in self.closings if name != play.name] + [play.name]

    @precondition(lambda self: self.of("ended", kind="train"))
    @rule(data=st.data(), saves=st.booleans())
    def settle(self, data: st.DataObject, saves: bool) -> None:
        batch = data.draw(st.permutations(self.waiting()))[: data.draw(st.integers(1, 3))]
        self.batches.append(batch)
        step = len(self.batches)
        for name in batch:
            self.plays[name].state, self.plays[name].step = "in_step", step
        self.write(BatchScheduled(step, tuple(batch)))
        if saves:
            self.save()

    @precondition(lambda self: self.batches)
    @rule()
    def save(self) -> None:
        step = len(self.batches)
        self.saved = [*(one for one in self.saved if one != step), step][-self.job.checkpoints_kept :]
        for play in self.of("in_step"):
            play.state = "consumed"
        self.write(CheckpointSaved(step, f"step-{step}"))

    @rule(data=st.data(), again=st.booleans())
    def settle_wrongly(self, data: st.DataObject, again: bool) -> None:
        """What is open, given up, evaluated, in a step or unknown is in no batch, and no step is settled twice."""
        self.flush(True)
        not_free = [play.name for play in self.plays.values() if (play.state, play.kind) != ("ended", "train")]
        step = len(self.batches) + (0 if again and self.batches else 1)
        wrong = self.waiting()
        if step > len(self.batches):
            wrong.append(data.draw(st.sampled_from([*not_free, "nobody"])))
        with pytest.raises(StoreRefused, match="could not write"):
            self.runner.run(self.store.write(BatchScheduled(step, tuple(wrong))))

    @rule()
    def restart(self) -> None:
        self.flush(False)
        self.runner.run(self.store.close())
        for play in self.of("open"):
            play.state, play.token, play.reason = "fenced", 2, "server_restarted"
            self.closed(play)
        self.store, found = open_store(self.url, self.job, HERE)
        self.check(found)

    @property
    def oldest(self) -> int:
        return self.saved[0] if len(self.saved) == self.job.checkpoints_kept else 0

    def check(self, found: RecoveredState) -> None:
        def told(samples: Any) -> list[Any]:
            return [(s.episode, s.group, s.reward, s.success, list(map(facts, s.nodes))) for s in samples]

        def expected(names: list[str]) -> list[Any]:
            return [(name, "t#1", 1.0, True, list(map(facts, self.plays[name].nodes))) for name in names]

        assert told(found.pool) == expected(self.waiting()), "in the order of the ends"
        assert told(found.prepared) == expected([play.name for play in self.of("prepared")])
        assert {sample.decider for sample in found.prepared} <= {"http://x"}
        replay = {step: told(batch) for step, batch in found.replay.items()}
        steps = range(self.oldest + 1, len(self.batches) + 1)
        assert replay == {step: expected(self.batches[step - 1]) for step in steps}, "in the learner's order"
        assert list(found.replay) == list(steps)
        assert (found.step, found.begun) == (len(self.batches), len(self.plays))
        assert found.checkpoints == [(step, f"step-{step}") for step in reversed(self.saved)]
        assert found.fencing_tokens == dict(self.plays[name].fence for name in self.closings)
        counts = Counter[str]()
        for play in (self.plays[name] for name in self.closings):
            counts[play.state if play.state in ("aborted", "fenced") else "ended"] += 1
            if play.state in ("fenced", "dropped"):
                counts[f"drop_{play.reason}"] += 1
            counts["trained"] += play.step > 0
            counts["evaluated"] += (play.kind, play.state) == ("eval", "ended")
        assert found.counts == +counts

    @rule()
    def look(self) -> None:
        """Tokens are there as long as they may be needed, and states for ever."""
        self.flush(True)

        async def look() -> dict[str, Any]:
            for _ in range(2):
                await self.store.write()  # the writer tidies up after each group
            return {name: await self.store.episode(name) for name in self.plays}

        pruned = Counter[bool]()
        for name, record in self.runner.run(look()).items():
            play = self.plays[name]
            given_up = play.state in ("aborted", "fenced", "dropped") or (play.kind, play.state) == ("eval", "ended")
            gone = (play.state == "consumed" and play.step <= self.oldest) or (
                given_up and play.closed_after < self.oldest
            )
            assert (len(record.record), record.calls) == (0 if gone else len(play.nodes), len(play.nodes))
            assert (record.state, record.step) == (play.state, play.step or None)
            pruned[bool(play.nodes)] += gone
        names, counts = self.runner.run(self.store.list_exportable())
        left = len(self.plays) - pruned.total()
        assert (len(names), counts.model_dump()) == (
            left, {"episodes": left, "pruned": pruned[True], "no_tokens": pruned[False]},
        )  # fmt: skip

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.look()
            self.restart()
            self.runner.run(self.store.close())
            self.runner.close()


def test_what_was_written_comes_back_once_and_in_its_order_and_tokens_go_when_nothing_needs_them(url: str) -> None:
    run_state_machine_as_test(
        type("Lives", (Lives,), {"url": url}),
        settings=settings(stateful_step_count=15, phases=NO_SHRINK, suppress_health_check=[HealthCheck.too_slow]),
    )
