"""The container's end of the tunnel: Unix sockets whose connections are carried over this process's stdin and stdout.

    python3 -I -S /opt/ajet/tunnel.py FOLDER SOCKET...

Where an engine does not share our machine's files, `sandboxes.docker.tunnel` runs this in the container (`docker
exec`, as a user of its own, so that the agent can neither end nor trace it) and connects there what connects here.
Both ends are one `Multiplexer`, which promises:

- bytes of a connection arrive in order and unchanged; an end of sending (half-close) arrives as one;
- memory is bounded: per connection and direction WINDOW bytes are under way at most, the receiver gives room back as
  it gets rid of them, and nothing is read from any connection while MOST_OUT bytes wait for the far end;
- a connection that one side loses is closed on the other, after what it said before; the others go on;
- what the far end sends is not trusted: a frame that breaks these rules ends the tunnel, and with it all connections.

Standard library only, any Python from 3.9 on. The end that starts speaks first (HELLO): what this process wrote before
its stdout is listened to could be lost on the way.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

HELLO, OPEN, DATA, END, RESET, ROOM = range(1, 7)
VERSION = b"ajet-tunnel-1"
WINDOW = 1 << 16
MOST_DATA = 1 << 14
MOST_OUT = 1 << 18
MOST_WAITING = 1 << 24
"""Far more than waits for a far end that reads, whatever it sends."""
MOST_READS = 64
"""Of the far end, before there is a look at all else."""
MOST_CONNECTIONS = 400
QUEUE = 1024
RETRY_S = 0.02

_HEAD = struct.Struct("!BII")
_ROOM = struct.Struct("!I")
_READ = 1 << 16


class Broken(Exception):
    """The far end broke a rule of the tunnel, or is gone."""


class Far(Protocol):
    """The way to the far end, not blocking: `read` returns None for nothing yet, and b"" at its end."""

    def read(self) -> bytes | None:
        """Return what has arrived."""
        ...

    def write(self, data: memoryview) -> int:
        """Send a part of `data`; return its length."""
        ...

    def filenos(self) -> tuple[int, int]:
        """Return what to watch for reading and for writing."""
        ...


class Frames:
    """Cuts the bytes of the far end into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield kind, connection and payload of each frame that is complete."""
        self._held += data
        while len(self._held) >= _HEAD.size:
            kind, number, length = _HEAD.unpack_from(self._held)
            if length > MOST_DATA or not HELLO <= kind <= ROOM:
                raise Broken(f"expected a frame, found kind {kind} of {length} bytes")
            if len(self._held) < _HEAD.size + length:
                return
            payload = bytes(self._held[_HEAD.size : _HEAD.size + length])
            del self._held[: _HEAD.size + length]
            yield kind, number, payload


class Stream:
    """One connection at this end."""

    __slots__ = ("deaf", "far_ended", "held", "near", "near_ended", "number", "owed", "room")

    def __init__(self, number: int, near: socket.socket) -> None:
        self.number = number
        self.near = near
        self.room = WINDOW
        """Bytes that the far end still takes."""
        self.held = bytearray()
        """Bytes of the far end that `near` did not take yet."""
        self.owed = 0
        """Room that was not given back yet."""
        self.near_ended = False
        self.far_ended = False
        self.deaf = False
        """`near` takes no more, but what it said before is still passed on."""


class Multiplexer:
    """Connections at this end, carried to the far end and back."""

    def __init__(self, far: Far, opened: Callable[[str], socket.socket | None]) -> None:
        """`opened` returns the connection that one the far end opened to a name leads to, or None for none."""
        self._far = far
        self._opened = opened
        self._frames = Frames()
        self._out = bytearray()
        self._streams: dict[int, Stream] = {}
        self._newest = 0
        self._full = False
        self._more = False
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self.greeted = False

    def watch(self, fileno: int, events: int, act: Callable[[int], None]) -> None:
        """Call `act` with the events of `fileno` that happen, of `events`; none for no more."""
        known = self._watched.get(fileno)
        if known == (events, act):
            return
        if not events:
            if self._watched.pop(fileno, None) is not None:
                self._selector.unregister(fileno)
            return
        self._watched[fileno] = (events, act)
        (self._selector.register if known is None else self._selector.modify)(fileno, events, act)

    def hello(self) -> None:
        """Greet the far end."""
        self._send(HELLO, 0, VERSION)

    def carry(self, near: socket.socket, name: str) -> None:
        """Open a connection to `name` at the far end for `near`."""
        self._newest += 1
        self._send(OPEN, self._newest, name.encode())
        self._add(self._newest, near)

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._streams)

    def turn(self, timeout_s: float | None = None) -> None:
        """Wait until something happens, and do what it needs. Raises Broken when the tunnel is at its end."""
        reading, writing = self._far.filenos()
        if reading == writing:
            both = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            self.watch(reading, both, self._on_far)
        else:
            self.watch(reading, selectors.EVENT_READ, self._on_far)
            self.watch(writing, selectors.EVENT_WRITE if self._out else 0, self._on_far)
        more = self._more
        for key, events in self._selector.select(0 if more else timeout_s):
            if self._watched.get(key.fd) is not None:  # not closed by an event of the same round
                key.data(events)
        if more:
            self._on_far(selectors.EVENT_READ)
        self._flush()

    def close(self) -> None:
        """Lose all connections."""
        for stream in list(self._streams.values()):
            self._forget(stream)
        self._selector.close()

    # the far end

    def _send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self._out += _HEAD.pack(kind, number, len(payload))
        self._out += payload
        if len(self._out) > MOST_WAITING:
            raise Broken("expected a far end that reads, found one that only writes")

    def _flush(self) -> None:
        while self._out:
            with memoryview(self._out) as view:
                sent = self._far.write(view[:_READ])
            if not sent:
                break
            del self._out[:sent]
        full = len(self._out) >= MOST_OUT
        if full != self._full:
            self._full = full
            for stream in self._streams.values():
                self._rewatch(stream)

    def _on_far(self, events: int) -> None:
        if not events & selectors.EVENT_READ:
            return
        self._more = False
        for _ in range(MOST_READS):
            if (data := self._far.read()) is None:
                return
            if not data:
                raise Broken("the far end is gone")
            for kind, number, payload in self._frames.feed(data):
                self._frame(kind, number, payload)
        self._more = True  # it may be held in a library, where no selector sees it

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if not self.greeted:
            if (kind, payload) != (HELLO, VERSION):
                raise Broken("expected a greeting of the same version first")
            self.greeted = True
        elif kind == OPEN:
            self._open(number, payload)
        elif number > self._newest or kind == HELLO:
            raise Broken(f"expected a frame of an open connection, found kind {kind} of {number}")
        elif (stream := self._streams.get(number)) is not None:  # else it was lost here, and the far end hears of it
            self._act(stream, kind, payload)

    def _open(self, number: int, payload: bytes) -> None:
        if number <= self._newest or len(self._streams) >= MOST_CONNECTIONS:
            raise Broken("expected a new connection, found one too many")
        self._newest = number
        near = self._opened(payload.decode(errors="replace"))
        if near is None:
            self._send(RESET, number)
        else:
            self._add(number, near)

    def _act(self, stream: Stream, kind: int, payload: bytes) -> None:
        if kind == DATA:
            if stream.far_ended or len(stream.held) + stream.owed + len(payload) > WINDOW:
                raise Broken("expected no more bytes than there is room for")
            stream.held += payload
        elif kind in (END, RESET):
            stream.far_ended = True
            stream.near_ended |= kind == RESET
        elif kind == ROOM:
            stream.room += _ROOM.unpack(payload)[0] if len(payload) == _ROOM.size else WINDOW + 1
            if stream.room > WINDOW:
                raise Broken("expected no more room than the window has")
        self._deliver(stream)

    # this end

    def _add(self, number: int, near: socket.socket) -> None:
        near.setblocking(False)
        stream = self._streams[number] = Stream(number, near)
        self._rewatch(stream)

    def _on_near(self, stream: Stream, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._deliver(stream)
        if events & selectors.EVENT_READ and not stream.near_ended and stream.number in self._streams:
            self._take(stream)

    def _take(self, stream: Stream) -> None:
        """Send the far end what `near` said."""
        try:
            data = stream.near.recv(min(stream.room, MOST_DATA))
        except BlockingIOError:
            return
        except OSError:
            self._lose(stream)
            return
        if data:
            stream.room -= len(data)
            self._send(DATA, stream.number, data)
        else:
            stream.near_ended = True
            self._send(END, stream.number)
        self._settle(stream)

    def _deliver(self, stream: Stream) -> None:
        """Pass on to `near` what the far end said, and give the room back."""
        if stream.held:
            try:
                sent = len(stream.held) if stream.deaf else stream.near.send(stream.held)
            except BlockingIOError:
                sent = 0
            except OSError:
                stream.deaf, sent = True, len(stream.held)
            del stream.held[:sent]
            stream.owed += sent
        if stream.owed >= WINDOW // 4:
            self._send(ROOM, stream.number, _ROOM.pack(stream.owed))
            stream.owed = 0
        self._settle(stream)

    def _settle(self, stream: Stream) -> None:
        """End what has ended."""
        if stream.far_ended and not stream.held:
            if stream.near_ended:
                self._forget(stream)
                return
            with contextlib.suppress(OSError):  # gone already: its reading side will tell
                stream.near.shutdown(socket.SHUT_WR)
        self._rewatch(stream)

    def _rewatch(self, stream: Stream) -> None:
        reads = not (stream.near_ended or self._full) and stream.room > 0
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if stream.held else 0)
        known = self._watched.get(stream.near.fileno())
        if known is None or known[0] != events:
            self.watch(stream.near.fileno(), events, lambda seen: self._on_near(stream, seen))

    def _lose(self, stream: Stream) -> None:
        self._send(RESET, stream.number)
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        self.watch(stream.near.fileno(), 0, self._on_far)
        stream.near.close()
        del self._streams[stream.number]


class _Pipes:
    """This process's standard input and output as the way to the far end."""

    def __init__(self) -> None:
        os.set_blocking(0, False)
        os.set_blocking(1, False)

    def read(self) -> bytes | None:
        try:
            return os.read(0, _READ)
        except BlockingIOError:
            return None

    def write(self, data: memoryview) -> int:
        try:
            return os.write(1, data)
        except BlockingIOError:
            return 0

    def filenos(self) -> tuple[int, int]:
        return 0, 1


def _listener(folder: str, name: str) -> socket.socket:
    """Listen at `name`, in the place of a tunnel that was here before."""
    path = os.path.join(folder, name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o666)
    listener.listen(QUEUE)
    listener.setblocking(False)
    return listener


def _serve(folder: str, names: list[str]) -> None:
    tunnel = Multiplexer(_Pipes(), lambda _: None)
    while not tunnel.greeted:
        tunnel.turn()
    listeners = {name: _listener(folder, name) for name in names}
    accepts = {name: _accept(tunnel, listener, name) for name, listener in listeners.items()}
    tunnel.hello()
    while True:
        reads = selectors.EVENT_READ if tunnel.count < MOST_CONNECTIONS else 0
        for name, listener in listeners.items():
            tunnel.watch(listener.fileno(), reads, accepts[name])
        tunnel.turn()


def _accept(tunnel: Multiplexer, listener: socket.socket, name: str) -> Callable[[int], None]:
    def accept(_: int) -> None:
        try:
            near = listener.accept()[0]
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor is free
            time.sleep(RETRY_S)
            return
        tunnel.carry(near, name)

    return accept


def main() -> None:
    """Carry until the other end hangs up."""
    with contextlib.suppress(Broken):
        _serve(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
