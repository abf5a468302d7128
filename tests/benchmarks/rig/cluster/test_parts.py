"""Parts of an update add up to all of it, and costs are what sizes were made of."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from rig.cluster.at_scale import STEPS, ScaleStep, forecast, own_seconds
from rig.cluster.costs import fitted, line
from rig.cluster.parts import ALL, ARITHMETIC, DEALT, ENGINE, PARTS, RAY, REST, ROWS, update_parts
from rig.cluster.spans import Span, Spans, seconds

DRIVER: list[Span] = [(ROWS, 0.0, 1.0), (DEALT, 1.0, 3.0), ("call: gradient", 3.0, 13.0), ("call: step", 13.0, 15.0)]
RANK: list[Span] = [
    ("rank: gradient", 4.0, 12.0), ("model forward", 5.0, 7.0), ("model forward", 8.0, 9.0), ("backward", 9.0, 11.0),
    ("rank: step", 13.5, 14.5), ("optimiser", 13.5, 14.0),
]  # fmt: skip


def test_parts_of_an_update_do_not_overlap_and_are_all_of_it() -> None:
    found = update_parts(DRIVER, RANK, 16.0)
    assert (found["model forward"], found["backward"], found["optimiser"]) == (3.0, 2.0, 0.5)
    assert (found[RAY], found[ENGINE], found[REST]) == (3.0, 3.5, 1.0)
    assert sum(found[part] for part in PARTS) == pytest.approx(found[ALL])
    assert set(ARITHMETIC) < set(PARTS)


def test_a_span_is_added_also_where_what_is_timed_fails() -> None:
    spans = Spans()
    failing = spans.timed("division", lambda value: 1 / value)
    assert failing(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        failing(0)
    taken = spans.taken()
    assert [name for name, _, _ in taken] == ["division", "division"]
    assert seconds(taken)["division"] > 0
    assert spans.taken() == []


@pytest.mark.parametrize("made", [(0.01, 1e-4, 2e-6), (0.02, 0.0, 1e-6), (0.0, 3e-4, 0.0)])
def test_costs_of_call_row_and_id_are_found_again(made: tuple[float, float, float]) -> None:
    call, row, each_id = made
    sizes = [(64, 4096), (256, 16384), (64, 65536), (512, 65536)]
    points = [{"rows": rows, "ids": ids, "part": call + row * rows + each_id * ids} for rows, ids in sizes]
    assert list(fitted(points, "part").values()) == pytest.approx(made, abs=1e-9)


def test_a_byte_is_the_slope_between_two_publications() -> None:
    found = line({"bytes": 1e6, "seconds": 0.11}, {"bytes": 1e8, "seconds": 1.1})
    assert found == {"a call": pytest.approx(0.1), "a byte": pytest.approx(1e-8)}


CONSTANTS: Mapping[str, Mapping[str, object]] = {
    "update": {DEALT: {"a call": 0.5, "a row": 1e-3, "an id": 1e-6}},
    "publish": {"a call": 0.1, "a byte": 1e-9},
    "rollout": {"a call": 0.02, "a token": 1e-5},
}


def test_a_step_at_scale_is_added_up_from_the_constants_alone() -> None:
    step = ScaleStep(episodes=100, calls=3, ids=1000, sampled=400, parameters=1e9, weight_bytes=2, flop_s=1e14)
    assert step.arithmetic_s == pytest.approx(8e9 * 1e5 / 1e14)
    own = own_seconds(CONSTANTS, step)
    assert own == {
        DEALT: pytest.approx(0.5 + 0.1 + 0.1), "weights to the replica": pytest.approx(2.1),
        "calls on their way": pytest.approx(0.06), "tokens on their way": pytest.approx(0.4),
    }  # fmt: skip
    found = forecast(CONSTANTS, step)
    assert found["part"] == pytest.approx(3.26 / (3.26 + 8.0))


def test_a_larger_batch_spreads_what_does_not_grow_with_it() -> None:
    parts = [forecast(CONSTANTS, step)["part"] for step in STEPS]
    assert parts == sorted(parts, reverse=True)
