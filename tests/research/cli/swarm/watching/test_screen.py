"""The screen of `ajet swarm top`: what a person reads off it, however narrow, plain or hostile what it shows is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from research.cli.swarm.watching.screen import LEAST_WIDTH, screen
from research.cli.swarm.watching.sparkline import BARS
from swarm.snapshot import OwnerSnapshot, Snapshot, StepWait
from swarm.wire import ServerState, Status
from tests.research.cli.swarm.watching.frames import frame


def drawn(width: int = 80, unicode: bool = True, **fields: object) -> str:
    return "\n".join(line.plain for line in screen(frame(**fields), width, unicode=unicode))


def test_a_frame_says_state_wait_streams_clients_curves_and_drops() -> None:
    said = drawn()
    for words in (
        "state      ROLLING",
        "guess, tiny (2 layers of 64), grpo",
        "40 of 100, about 2 min 5 s left",
        "waits for  44 episodes of stream hard (nobody plays)",
        "8 episodes of stream easy (7 in play)",
        "3 in line, the first for 12 s",
        "1,234 sampled, 987 trained per second",
        "success 0.5 at step 40 (64 episodes), best 0.625 at step 30",
        "13: 9 constant_group, 4 lease_expired",
        "steps 1 to 40",
        "easy      40%       3      1       12        7        0",
        "host:123:abc     7    0 s    44 s",
        "lease_expired  easy  host:123:abc  e1",
    ):
        assert words in said, said


def test_a_curve_goes_up_where_its_metric_does_and_one_that_is_0_throughout_is_left_out() -> None:
    lines = {line.split()[0]: line for line in drawn().splitlines() if line.split()}
    bars = [BARS.index(character) for character in lines["reward"] if character in BARS]
    assert len(bars) == 40
    assert bars == sorted(bars)
    assert bars[0] < bars[-1]
    assert lines["reward"].split()[-2:] == ["0.4", "0.01"]
    assert lines["loss"].split()[-2:] == ["-0.04", "-0.001"]
    assert "KL" not in lines


@given(st.integers(1, 200), st.booleans(), st.text(max_size=200), st.text(max_size=200))
def test_no_line_is_wider_than_the_terminal_and_nothing_steers_it(
    width: int, unicode: bool, owner: str, text: str
) -> None:
    """An owner's name is a client's own words."""
    said = frame(
        owners=(OwnerSnapshot(owner=owner, open=1, heard_s=0.0, oldest_s=0.0),),
        waits=(StepWait(what="episodes", text=text),),
    )
    for line in screen(said, width, unicode=unicode):
        assert cell_len(line.plain) <= max(width, LEAST_WIDTH)
        assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in line.plain)
        assert unicode or line.plain.isascii()


def test_a_server_that_does_not_answer_or_failed_is_told_first() -> None:
    silent = replace(frame(), silent_s=12.0)
    assert "no answer for 12 s" in screen(silent, 80)[1].plain
    status = Status(state=ServerState.FAILED, reason="no room left")
    said = drawn(status=status, waits=(), streams=(), owners=())
    assert "FAILED: no room" in said


def test_a_server_without_a_job_has_a_screen_too() -> None:
    bare = Snapshot(at=0.0, status=Status(state=ServerState.OFFLINE))
    lines = screen(replace(frame(), snapshot=bare, first=None, steps=()), 80)
    assert any("OFFLINE" in line.plain for line in lines)


def test_what_does_not_fit_in_a_table_is_counted() -> None:
    owners = tuple(OwnerSnapshot(owner=f"o{n:02d}", open=1, heard_s=0.0, oldest_s=0.0) for n in range(20))
    assert "and 44 more" in drawn(owners=owners, owners_left_out=30)
