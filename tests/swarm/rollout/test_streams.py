"""Streams get their shares, exactly where that is possible, and less than one place off where it is not."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidRequest
from swarm.rollout.groups import Groups
from swarm.rollout.streams import Streams
from swarm.store.tables import StreamRow
from tests.swarm.rollout.test_batch import play
from tests.swarm.server.support import Clock, job


@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=5), scale=st.integers(1, 3), batches=st.integers(1, 5))
def test_shares_that_divide_the_batch_are_exact_in_every_batch(parts: list[int], scale: int, batches: int) -> None:
    shares = {f"s{number}": part / 7 for number, part in enumerate(parts)}
    needed = sum(parts) * scale
    streams = Streams(shares, needed, 0, 2)
    for _ in range(batches):
        batch = window(streams)
        assert batch == {f"s{number}": part * scale for number, part in enumerate(parts)}
        streams.take_batch(batch)


def window(streams: Streams) -> Counter[str]:
    taken: Counter[str] = Counter()
    for name in streams.shares:
        while streams.admits(name, taken):
            taken[name] += 1
    return taken


def test_a_stream_without_a_share_is_refused_where_streams_have_shares() -> None:
    streams = Streams({"math": 1, "code": 1}, 4, 0, 2)
    with pytest.raises(InvalidRequest, match=r"code, math.*'web'"):
        streams.check("web")
    Streams({}, 4, 0, 2).check("web")


def test_new_shares_hold_from_the_next_place_that_is_taken() -> None:
    streams = Streams({"a": 1, "b": 1}, 4, 0, 2)
    streams.set_shares({"b": 1, "c": 1}, ["a", "b"])
    assert window(streams) == {"b": 2, "c": 1}
    streams.take_batch(Counter({"a": 1, "b": 2, "c": 1}))
    assert window(streams) == {"b": 2, "c": 2}


def test_the_cursor_counts_groups_that_were_played_to_their_end() -> None:
    alive = Groups(job(batch_rule="varied_groups"), Clock())
    for number, (task, reward) in enumerate(zip("aabbc", (1.0, 1.0, 0.0, 1.0, 0.0), strict=True)):
        play(alive, f"e{number}", task, reward)
    (status,) = alive.streams.status(Counter(), {})
    assert (status.name, status.cursor) == ("default", 2)
    alive = Groups(job(batch_rule="episodes", episodes_per_step=6), Clock())
    for number in range(5):
        play(alive, f"e{number}", f"task-{number}")
    (status,) = alive.streams.status(Counter(), {})
    assert status.cursor == 2, "group_size episodes each"


def test_shares_are_written_all_together_and_those_that_went_too() -> None:
    streams = Streams({"a": 1, "b": 3}, 4, 0, 2)
    streams.count_group("a")
    written = {moved.name: moved for moved in streams.take_moved()}
    assert {name: moved.share for name, moved in written.items()} == {"a": 0.25, "b": 0.75}
    streams.set_shares({"b": 1, "c": 1}, [])
    written |= {moved.name: moved for moved in streams.take_moved()}
    restarted = Streams({"a": 1, "b": 3}, 4, 0, 2)
    restarted.recover(tuple(written.values()), {"a": 1, "b": 3})
    assert restarted.shares == {"b": 0.5, "c": 0.5}
    assert [status.cursor for status in restarted.status(Counter(), {})] == [1, 0, 0]


@given(
    shares=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20), min_size=2), needed=st.integers(1, 12),
    surplus=st.integers(0, 3), data=st.data(),
)  # fmt: skip
def test_whatever_begins_ends_or_is_given_up_no_stream_is_off_its_share_by_a_whole_place(
    shares: dict[str, int], needed: int, surplus: int, data: st.DataObject
) -> None:
    """Streams may play nothing for any time; batches are taken as they come to be, and a restart comes at any time."""
    streams = Streams(shares, needed, surplus, 2)
    taken, trained, written = Counter[str](), Counter[str](), dict[str, StreamRow]()
    for _ in range(data.draw(st.integers(1, 20))):
        name = data.draw(st.sampled_from(sorted(shares)))
        for _ in range(data.draw(st.integers(-needed, 2 * needed))):
            taken[name] += streams.admits(name, taken)
        taken -= Counter({name: data.draw(st.integers(0, needed))})
        batch = Counter(streams._window[:needed])
        if batch <= taken:
            streams.take_batch(batch)
            taken, trained = taken - batch, trained + batch
            written |= {moved.name: moved for moved in streams.list_rows()}
        if data.draw(st.booleans()):
            streams = Streams(shares, needed, surplus, 2)
            streams.recover(tuple(written.values()), shares)
        dealt = trained + Counter(streams._window)
        assert taken <= Counter(streams._window)
        for name, share in shares.items():
            for counts in (trained, dealt):
                assert abs(counts[name] - Fraction(share * counts.total(), sum(shares.values()))) < 1


def test_a_server_that_dies_after_a_stream_lost_its_share_starts_again_and_keeps_its_groups() -> None:
    streams = Streams({"a": 1, "b": 1}, 4, 0, 2)
    streams.set_shares({"b": 1, "c": 1}, ["a", "a", "a"])
    restarted = Streams({"a": 1, "b": 1}, 4, 0, 2)
    restarted.recover(streams.take_moved(), {"a": 1, "b": 1})
    restarted.readmit(["a", "a", "a"])
    assert Counter(restarted._window) == {"a": 3, "b": 1}


def test_streams_with_curves_of_their_own_are_few_and_those_with_shares_first() -> None:
    streams = Streams({"z": 1}, 4, 0, 2)
    for number in range(100):
        streams.note_begin(f"s{number}")
    assert streams.charted[:2] == ("z", "s0")
    assert len(streams.charted) == 32
