"""Two ends of a tunnel on a socket pair, turned by hand: what arrives, what is held back, what is refused."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.inside import tunnel
from sandboxes.inside.tunnel import DATA, END, HELLO, MOST_DATA, MOST_OUT, OPEN, ROOM, VERSION, WINDOW, Broken


class Way:
    """One end of a socket pair as the way to the far end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)

    def read(self) -> bytes | None:
        try:
            return self.sock.recv(65_536)
        except BlockingIOError:
            return None

    def write(self, data: memoryview) -> int:
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    def filenos(self) -> tuple[int, int]:
        return self.sock.fileno(), self.sock.fileno()


@dataclass
class Person:
    """Who uses a connection: says something, hangs up its sending, and notes what it hears."""

    sock: socket.socket
    to_say: bytes = b""
    heard: bytearray = field(default_factory=bytearray)
    at_end: bool = False
    listens: bool = True

    def act(self) -> None:
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            if self.to_say:
                self.to_say = self.to_say[self.sock.send(self.to_say) :]
                if not self.to_say:
                    self.sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(BlockingIOError):
            if self.listens and not self.at_end:
                data = self.sock.recv(65_536)
                self.heard += data
                self.at_end = not data


class Pair:
    """An end in a container and an end outside, and the people who use them."""

    def __init__(self) -> None:
        ends = socket.socketpair()
        self.taken: list[Person] = []
        self.inner = tunnel.Multiplexer(Way(ends[0]), lambda _: None)
        self.outer = tunnel.Multiplexer(Way(ends[1]), self._take)
        self.ends = ends
        self.outer.hello()
        self.inner.hello()

    def _take(self, name: str) -> socket.socket | None:
        if name == "nobody":
            return None
        near, person = socket.socketpair()
        self.taken.append(Person(person))
        return near

    def connect(self, say: bytes = b"", name: str = "server.sock") -> Person:
        near, person = socket.socketpair()
        self.inner.carry(near, name)
        return Person(person, say)

    def turn_until(self, done: Callable[[], bool], people: list[Person]) -> None:
        for _ in range(20_000):
            self.turn(people)
            if done():
                return
        raise AssertionError("it never came to that")

    def turn(self, people: list[Person]) -> None:
        self.inner.turn(0)
        self.outer.turn(0)
        for person in [*people, *self.taken]:
            person.act()

    def close(self) -> None:
        for end in (self.inner, self.outer, *self.ends, *(person.sock for person in self.taken)):
            end.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@given(st.lists(st.tuples(st.integers(1, 300_000), st.integers(1, 300_000)), min_size=1, max_size=6))
def test_every_byte_of_every_connection_arrives_in_order_and_an_end_of_sending_arrives_as_one(
    sizes: list[tuple[int, int]],
) -> None:
    pair = Pair()
    said = [(bytes([n]) * up, bytes([n + 100]) * down) for n, (up, down) in enumerate(sizes)]
    agents = [pair.connect(up) for up, _ in said]
    pair.turn_until(lambda: len(pair.taken) == len(said) and all(person.at_end for person in pair.taken), agents)
    assert [bytes(person.heard) for person in pair.taken] == [up for up, _ in said]
    for person, (_, down) in zip(pair.taken, said, strict=True):  # answered only after the question has ended
        person.to_say = down
    pair.turn_until(lambda: all(agent.at_end for agent in agents), agents)
    assert [bytes(agent.heard) for agent in agents] == [down for _, down in said]
    pair.turn_until(lambda: pair.inner.count == pair.outer.count == 0, agents)
    pair.close()
    for agent in agents:
        agent.sock.close()


def test_one_who_does_not_listen_holds_up_nobody_and_fills_no_memory(pair: Pair) -> None:
    deaf, other = pair.connect(b"d" * 5_000_000), pair.connect(b"o" * 500_000)
    pair.turn_until(lambda: len(pair.taken) == 2, [deaf, other])
    pair.taken[0].listens = False
    pair.turn_until(lambda: pair.taken[1].at_end, [deaf, other])
    assert len(pair.taken[1].heard) == 500_000
    under_way = 5_000_000 - len(deaf.to_say)
    assert 0 < under_way < 2 * WINDOW + 2_000_000  # and what the kernel's own buffers hold
    assert len(pair.outer._streams[1].held) <= WINDOW
    pair.taken[0].listens = True
    pair.turn_until(lambda: pair.taken[0].at_end, [deaf, other])
    assert len(pair.taken[0].heard) == 5_000_000


def test_a_connection_that_is_aborted_ends_on_the_other_side_and_the_others_go_on(pair: Pair) -> None:
    gone, other = pair.connect(), pair.connect(b"o" * 100_000)
    pair.turn_until(lambda: len(pair.taken) == 2, [gone, other])
    gone.sock.close()
    pair.turn_until(lambda: pair.taken[0].at_end and pair.taken[1].at_end, [other])
    assert len(pair.taken[1].heard) == 100_000


def test_what_was_said_before_hanging_up_is_still_heard(pair: Pair) -> None:
    """As of a server that answers before it has read the question, and closes."""
    agent = pair.connect(b"q" * 3_000_000)
    pair.turn_until(lambda: len(pair.taken) == 1, [agent])
    server = pair.taken.pop()
    server.sock.sendall(b"too large")
    server.sock.close()
    pair.turn_until(lambda: agent.at_end, [agent])
    assert bytes(agent.heard) == b"too large"


def test_a_name_that_nobody_serves_is_an_end_at_once(pair: Pair) -> None:
    agent = pair.connect(name="nobody")
    pair.turn_until(lambda: agent.at_end, [agent])
    assert pair.inner.count == pair.outer.count == 0


def test_nothing_is_read_while_much_waits_for_the_far_end(pair: Pair) -> None:
    """The far end takes nothing: what is held for it stays bounded, however many connections there are."""
    agents = [pair.connect(b"x" * 100_000) for _ in range(60)]
    for _ in range(300):
        pair.inner.turn(0)
        for agent in agents:
            agent.act()
    assert len(pair.inner._out) < MOST_OUT + 61 * (MOST_DATA + 100)


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    return struct.pack("!BII", kind, number, len(payload)) + payload


GREETING = frame(HELLO, 0, VERSION)


@pytest.mark.parametrize(
    "data",
    [
        b"container not running",
        frame(OPEN, 1, b"server.sock"),
        frame(HELLO, 0, b"ajet-tunnel-0"),
        GREETING + GREETING,
        GREETING + frame(DATA, 7, b"nobody opened it"),
        GREETING + frame(OPEN, 1) + frame(OPEN, 1),
        GREETING + b"".join(frame(OPEN, number) for number in range(1, tunnel.MOST_CONNECTIONS + 2)),
        GREETING + frame(OPEN, 1) + frame(END, 1) + frame(DATA, 1, b"after the end"),
        GREETING + frame(OPEN, 1) + frame(DATA, 1, b"x" * MOST_DATA) * 40,
        GREETING + frame(OPEN, 1) + frame(ROOM, 1, struct.pack("!I", 1)),
        GREETING + frame(OPEN, 1) + frame(ROOM, 1, b"x"),
        GREETING + struct.pack("!BII", DATA, 1, 1 << 30),
    ],
    ids=lambda data: data[:40].hex(),
)
def test_a_frame_that_breaks_the_rules_ends_the_tunnel(data: bytes) -> None:
    near, far = socket.socketpair()
    kept: list[socket.socket] = []

    def opened(_: str) -> socket.socket:
        mine, other = socket.socketpair()
        kept.append(other)
        return mine

    end = tunnel.Multiplexer(Way(near), opened)
    with contextlib.ExitStack() as stack:
        for thing in (near, far, end):
            stack.callback(thing.close)
        stack.callback(lambda: [sock.close() for sock in kept])
        far.setblocking(False)
        with pytest.raises(Broken, match="expected"):
            feed(end, far, data)


def feed(end: tunnel.Multiplexer, far: socket.socket, data: bytes) -> None:
    while data:
        data = data[far.send(data) :]
        end.turn(0)
    end.turn(0)


class FakeFlood:
    """A far end that never stops to send, and takes nothing."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.number = 0

    def read(self) -> bytes:
        self.number += 1
        return GREETING if self.number == 1 else frame(OPEN, self.number)

    def write(self, data: memoryview) -> int:
        return 0

    def filenos(self) -> tuple[int, int]:
        return self.sock.fileno(), self.sock.fileno()


def test_a_far_end_that_never_stops_neither_holds_a_turn_up_nor_fills_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "MOST_WAITING", 9 * 250)
    near, far = socket.socketpair()
    with near, far:
        flood = FakeFlood(near)
        end = tunnel.Multiplexer(flood, lambda _: None)
        far.send(b"x")
        end.turn()
        assert flood.number == tunnel.MOST_READS
        end.turn()
        with pytest.raises(Broken, match="a far end that reads"):
            end.turn()
        end.close()


def test_the_end_of_the_way_ends_the_tunnel() -> None:
    near, far = socket.socketpair()
    end = tunnel.Multiplexer(Way(near), lambda _: None)
    far.close()
    with pytest.raises(Broken, match="gone"):
        end.turn(1)
    end.close()
    near.close()


def test_an_answer_is_not_lost_when_its_speaker_is_lost(pair: Pair) -> None:
    """What was under way when a connection broke is delivered before the other side closes."""
    agent = pair.connect(b"hello")
    pair.turn_until(lambda: len(pair.taken) == 1 and pair.taken[0].at_end, [agent])
    server = pair.taken.pop()
    server.sock.sendall(b"a" * 50_000)
    server.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.sock.close()
    pair.turn_until(lambda: agent.at_end, [agent])
    assert len(agent.heard) == 50_000
