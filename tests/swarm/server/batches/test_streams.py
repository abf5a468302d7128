"""Streams get their shares, exactly where that is possible, and less than one place off where it is not."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidRequest
from swarm.server.batches.batch import Groups
from swarm.server.batches.streams import DeficitRoundRobin, Streams
from swarm.store import StreamMoved
from tests.swarm.server.batches.test_batch import play
from tests.swarm.server.support import Clock, job

SHARES = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), min_size=1)


@given(shares=SHARES, places=st.integers(1, 60))
def test_what_is_given_never_differs_from_what_is_owed_by_a_whole_place(shares: dict[str, int], places: int) -> None:
    dealer, given_, total = DeficitRoundRobin(shares, {}), Counter[str](), sum(shares.values())
    for dealt in range(1, places + 1):
        given_[dealer.deal()] += 1
        for name, share in shares.items():
            assert abs(given_[name] - Fraction(share * dealt, total)) < 1


@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=5), scale=st.integers(1, 3), batches=st.integers(1, 5))
def test_shares_that_divide_the_batch_are_exact_in_every_batch(parts: list[int], scale: int, batches: int) -> None:
    shares = {f"s{number}": part / 7 for number, part in enumerate(parts)}
    needed = sum(parts) * scale
    streams = Streams(shares, needed, 0, 2)
    for _ in range(batches):
        batch = window(streams)
        assert batch == {f"s{number}": part * scale for number, part in enumerate(parts)}
        streams.took(batch)


def window(streams: Streams) -> Counter[str]:
    """What streams that all play get, place by place."""
    taken: Counter[str] = Counter()
    for name in streams.shares:
        while streams.admits(name, taken):
            taken[name] += 1
    return taken


@given(shares=SHARES, needed=st.integers(1, 12), surplus=st.integers(0, 4), batches=st.integers(1, 6))
def test_a_restart_between_batches_changes_nothing(
    shares: dict[str, int], needed: int, surplus: int, batches: int
) -> None:
    through = Streams(shares, needed, surplus, 2)
    written: dict[str, StreamMoved] = {}
    for _ in range(batches):
        restarted = Streams(shares, needed, surplus, 2)
        restarted.recover(tuple(written.values()), shares)
        assert restarted._window == through._window
        through.took(Counter(through._window[:needed]))
        written.update({moved.name: moved for moved in through.moved()})
    assert sum(moved.credit for moved in written.values()) == pytest.approx(0, abs=1e-9)
    assert sum(moved.trained for moved in written.values()) == batches * needed


def test_a_stream_without_a_share_is_refused_where_streams_have_shares() -> None:
    streams = Streams({"math": 1, "code": 1}, 4, 0, 2)
    with pytest.raises(InvalidRequest, match=r"code, math.*'web'"):
        streams.check("web")
    Streams({}, 4, 0, 2).check("web")


def test_new_shares_hold_from_the_next_place_that_is_taken() -> None:
    streams = Streams({"a": 1, "b": 1}, 4, 0, 2)
    streams.set_shares({"b": 1, "c": 1}, ["a", "b"])
    assert window(streams) == {"b": 2, "c": 1}
    streams.took(Counter({"a": 1, "b": 2, "c": 1}))
    assert window(streams) == {"b": 2, "c": 2}


def mixed(**fields: object) -> Groups:
    return Groups(job(streams={"a": 1, "b": 1}, episodes_per_step=8, **fields), Clock())


def fill(alive: Groups, stream: str, groups: int, start: int = 0) -> None:
    for number in range(2 * groups):
        play(alive, f"{stream}{start + number}", f"task-{stream}", stream=stream)


def test_a_stream_that_plays_nothing_lends_its_places_and_gets_them_back() -> None:
    alive = mixed()
    fill(alive, "a", 2)
    assert alive.held_up
    alive.lend()
    fill(alive, "a", 2, start=10)
    assert Counter(group.stream for group in alive.take()) == {"a": 4}
    assert alive.streams.lent == 2
    fill(alive, "b", 4)
    assert Counter(group.stream for group in alive.take()) == {"b": 4}
    fill(alive, "a", 2, start=20)
    fill(alive, "b", 2, start=20)
    assert Counter(group.stream for group in alive.take()) == {"a": 2, "b": 2}


def test_whole_groups_to_spare_fill_lent_places_at_once() -> None:
    alive = mixed(surplus_groups=2)
    fill(alive, "a", 3)
    assert alive.held_up
    alive.lend()
    fill(alive, "a", 1, start=10)
    assert alive.complete
    alive.take()
    fill(alive, "b", 4)
    assert alive.complete


def test_nobody_lends_while_somebody_plays_or_before_anybody_is_done() -> None:
    alive = mixed()
    assert not alive.held_up
    fill(alive, "a", 1)
    assert not alive.held_up
    fill(alive, "a", 1, start=10)
    group = alive.room("task-b", "b")
    assert group is not None
    alive.join(group, "b0")
    assert not alive.held_up


def test_a_stream_that_was_long_away_is_owed_one_batch_at_most() -> None:
    streams = Streams({"a": 1, "b": 1}, 4, 0, 2)
    for _ in range(50):
        streams.lend(Counter({"a": 2}))
        taken = Counter({"a": 2})
        while streams.admits("a", taken):
            streams.take("a", taken)
            taken["a"] += 1
        assert taken == {"a": 4}
        streams.took(taken)
    batches = []
    for _ in range(4):
        batches.append(window(streams))
        streams.took(batches[-1])
    assert [batch["b"] for batch in batches] == [4, 4, 2, 2]


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
    streams.played_group("a")
    written = {moved.name: moved for moved in streams.moved()}
    assert {name: moved.share for name, moved in written.items()} == {"a": 0.25, "b": 0.75}
    streams.set_shares({"b": 1, "c": 1}, [])
    written |= {moved.name: moved for moved in streams.moved()}
    restarted = Streams({"a": 1, "b": 3}, 4, 0, 2)
    restarted.recover(tuple(written.values()), {"a": 1, "b": 3})
    assert restarted.shares == {"b": 0.5, "c": 0.5}
    assert [status.cursor for status in restarted.status(Counter(), {})] == [1, 0, 0]


def test_the_shares_of_a_missing_stream_go_to_those_that_live_and_it_comes_back_without_a_debt() -> None:
    streams = Streams({"math": 40, "code": 30, "web": 30}, 10, 0, 2)
    assert streams.renormalise(frozenset({"web"}), [])
    assert (streams.missing, streams.missed) == ({"web"}, 1)
    batches = []
    for _ in range(7):
        batches.append(window(streams))
        streams.took(batches[-1])
    assert sum(batches, Counter()) == {"math": 40, "code": 30}
    assert streams.shares == {"math": 0.4, "code": 0.3, "web": 0.3}, "what was asked for stays"
    assert streams.renormalise(frozenset(), [])
    for _ in range(3):
        assert window(streams) == {"math": 4, "code": 3, "web": 3}
        streams.took(window(streams))


def test_where_all_are_missing_everything_stays_as_it_is() -> None:
    streams = Streams({"a": 1, "b": 1}, 4, 0, 2)
    assert not streams.renormalise(frozenset({"a", "b"}), [])
    assert streams.renormalise(frozenset({"a"}), [])
    assert not streams.renormalise(frozenset({"a", "b"}), [])
    assert (streams.missing, window(streams)) == ({"a"}, {"b": 4})


@given(
    shares=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20), min_size=2), needed=st.integers(1, 12),
    surplus=st.integers(0, 3), data=st.data(),
)  # fmt: skip
def test_whoever_comes_and_goes_the_living_get_their_shares_within_a_place_and_nobody_else_gets_any(
    shares: dict[str, int], needed: int, surplus: int, data: st.DataObject
) -> None:
    """Streams go missing and return between batches and in the middle of them; a restart may come at any time."""
    streams = Streams(shares, needed, surplus, 2)
    taken: Counter[str] = Counter()
    for _ in range(data.draw(st.integers(1, 8))):
        gone = frozenset(data.draw(st.sets(st.sampled_from(sorted(shares)), max_size=len(shares) - 1)))
        before = list(taken.elements())
        living = {name: share for name, share in shares.items() if name not in gone}
        assert sum(streams.shares_now.values()) == pytest.approx(1)
        if streams.renormalise(gone, before):
            dealt = Counter(streams._window[len(before) :])
            assert not dealt.keys() & gone
            for name, share in living.items():
                assert abs(dealt[name] - Fraction(share * dealt.total(), sum(living.values()))) < 1
        for name in data.draw(st.permutations(sorted(living))):
            for _ in range(data.draw(st.integers(0, needed))):
                if streams.admits(name, taken):
                    streams.take(name, taken)
                    taken[name] += 1
        if all(taken[name] >= count for name, count in Counter(streams._window[:needed]).items()):
            batch = Counter(streams._window[:needed])
            streams.took(batch)
            taken -= batch
        assert len(streams._window) == max(needed + surplus, taken.total())
        restarted = Streams(shares, needed, surplus, 2)
        restarted.recover(streams.standing(), shares)
        assert restarted.shares == pytest.approx(dict(streams.shares))


@given(order=st.permutations("m" * 4 + "c" * 3 + "w" * 3), batches=st.integers(1, 3), surplus=st.integers(0, 3))
def test_forty_thirty_thirty_is_exact_however_late_the_slow_stream_is(
    order: list[str], batches: int, surplus: int
) -> None:
    """Groups end in any order, a slow stream's twenty times later: the batch waits, and has its three groups of it."""
    alive = Groups(job(streams={"m": 40, "c": 30, "w": 30}, episodes_per_step=20, surplus_groups=surplus), Clock())
    for batch in range(batches):
        for number, name in enumerate(sorted(order, key=lambda name: name == "w")):
            assert not alive.complete
            for late in range(2):
                play(alive, f"{batch}-{number}-{late}", f"{name}-{batch}-{number}", stream=name)
        assert alive.complete
        assert Counter(group.stream for group in alive.take()) == {"m": 4, "c": 3, "w": 3}


def test_a_group_that_a_missing_stream_left_whole_is_learned_and_one_that_it_left_broken_is_given_away() -> None:
    alive = mixed()
    fill(alive, "a", 2)
    fill(alive, "b", 1)
    broken = alive.room("task-c", "b")
    assert broken is not None
    alive.join(broken, "lost")
    assert alive.renormalise(frozenset({"b"}))
    assert alive.room("task-a", "a") is None, "the broken group still has its place"
    alive.leave("lost")
    alive.reclaim()
    fill(alive, "a", 1, start=10)
    assert Counter(group.stream for group in alive.take()) == {"a": 3, "b": 1}


def test_a_stream_that_lost_its_share_leaves_no_place_that_nobody_can_have() -> None:
    alive = mixed()
    group = alive.room("task-a", "a")
    assert group is not None
    alive.join(group, "a0")
    alive.streams.set_shares({"b": 1, "c": 1}, ["a"])
    alive.leave("a0")
    alive.lend()
    alive.streams.take("b", Counter({"b": 2}))  # a lent place of a stream without an account
    alive.reclaim()
    fill(alive, "b", 2)
    fill(alive, "c", 2)
    assert Counter(group.stream for group in alive.take()) == {"b": 2, "c": 2}


def test_a_server_that_dies_after_a_stream_lost_its_share_starts_again_and_keeps_its_groups() -> None:
    streams = Streams({"a": 1, "b": 1}, 4, 0, 2)
    streams.set_shares({"b": 1, "c": 1}, ["a", "a", "a"])
    restarted = Streams({"a": 1, "b": 1}, 4, 0, 2)
    restarted.recover(streams.moved(), {"a": 1, "b": 1})
    restarted.readmit(["a", "a", "a"])
    assert Counter(restarted._window) == {"a": 3, "b": 1}


def test_streams_with_curves_of_their_own_are_few_and_those_with_shares_first() -> None:
    streams = Streams({"z": 1}, 4, 0, 2)
    for number in range(100):
        streams.came(f"s{number}")
    assert streams.charted[:2] == ("z", "s0")
    assert len(streams.charted) == 32
