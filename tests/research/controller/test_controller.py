"""Studies of one installation side by side: they share the machine, its line, the noise bank and the prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path

import pytest

from research.controller.controller import StudyController
from research.controller.session import hold_lease
from research.scheduler.next_step import is_done
from studies import StudyState, fold
from tests.research.bench import Bench, Cut
from tests.research.designs import design

MOST_ROUNDS = 300


def two(fast_path: Path, first: int = 2, second: int = 2, polls: int = 3) -> list[Bench]:
    one = Bench(fast_path, design=design(16), study="first", parallel=first, budget_s=6000.0)
    one.sandbox.polls = polls
    return [one, Bench(fast_path, design=design(16), study="second", parallel=second, budget_s=6000.0, beside=one)]


@contextmanager
def driven(benches: Sequence[Bench]) -> Iterator[list[StudyController]]:
    with ExitStack() as stack:
        for bench in benches:
            stack.enter_context(hold_lease(bench.home, bench.log, bench.study, print))
        yield [bench.loop() for bench in benches]


def share_taken(benches: Sequence[Bench]) -> Fraction:
    bench = benches[0]
    most = {each.study: int(state_of(each).settings["parallel"]) for each in benches}
    running = [handle for handle in bench.sandbox.handles.values() if handle.ended is None]
    return sum((Fraction(1, most[handle.labels["study"]]) for handle in running), Fraction(0))


def state_of(bench: Bench) -> StudyState:
    return fold(bench.events())


def drive(benches: Sequence[Bench], loops: Sequence[StudyController]) -> None:
    for _ in range(MOST_ROUNDS):
        done = []
        for loop in loops:
            done.append(is_done(loop.tick()))
            assert share_taken(benches) <= 1
        if all(done):
            return
        benches[0].clock.advance(1.0)
    raise AssertionError("not done")


@pytest.mark.slow
def test_both_come_to_the_verdicts_that_they_come_to_alone(fast_path: Path) -> None:
    alone = Bench(fast_path / "alone", design=design(16), budget_s=6000.0)
    alone.drive(alone.loop())
    benches = two(fast_path / "together")
    with driven(benches) as loops:
        drive(benches, loops)
    found = [[verdict.verdict for verdict in state_of(bench).verdicts] for bench in (alone, *benches)]
    assert found[0] == found[1] == found[2]
    assert all(state_of(bench).status == "concluded" for bench in benches)
    assert benches[0].sandbox.most_at_once == 2
    assert set(benches[0].sandbox.starts.values()) == {1}
    collected = [run.collected for bench in benches for run in state_of(bench).runs.values()]
    assert {each["conditions"]["neighbours"] for each in collected} & {1, 2}  # runs of the other are neighbours


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_a_controller_killed_at_any_event_leaves_no_slot_and_overloads_nothing(fast_path: Path, written: bool) -> None:
    """The first is killed at each of its events in turn, and taken up again, while the second goes on."""
    benches = two(fast_path, polls=1)
    first, second = benches
    killed = 0
    with driven(benches) as (_, other):
        for _ in range(MOST_ROUNDS):
            loop = first.loop(0 if written else 1, written=written)
            try:
                if is_done(loop.tick()):
                    break
            except Cut:
                killed += 1
            assert share_taken(benches) <= 1
            other.tick()
            assert share_taken(benches) <= 1
            first.clock.advance(1.0)
        drive([second], [other])
    assert killed > 20
    assert [state_of(bench).status for bench in benches] == ["concluded", "concluded"]
    assert set(first.sandbox.starts.values()) == {1}
