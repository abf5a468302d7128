"""Many readers or one writer."""

from __future__ import annotations

import threading
import time

from swarm.backends.local.model.lock import ReadWriteLock

_PATIENCE_S = 180.0


def test_readers_share_the_lock() -> None:
    lock = ReadWriteLock()
    both = threading.Barrier(2, timeout=_PATIENCE_S)

    def read() -> None:
        with lock.reading():
            both.wait()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(_PATIENCE_S)
    assert not both.broken


def test_a_writer_is_alone_and_goes_before_later_readers() -> None:
    lock = ReadWriteLock()
    order: list[str] = []

    def write() -> None:
        with lock.writing():
            order.append("writer")

    def read() -> None:
        with lock.reading():
            order.append("reader")

    writer, reader = threading.Thread(target=write), threading.Thread(target=read)
    with lock.reading():
        writer.start()
        _until_a_writer_waits(lock)
        reader.start()
        assert order == []
    writer.join(_PATIENCE_S)
    reader.join(_PATIENCE_S)
    assert order == ["writer", "reader"]


def test_an_error_inside_lets_go() -> None:
    lock = ReadWriteLock()
    for hold in (lock.writing, lock.reading):
        try:
            with hold():
                raise RuntimeError("inside")
        except RuntimeError:
            with lock.writing():
                pass


def _until_a_writer_waits(lock: ReadWriteLock) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not lock._writers_waiting:
        assert time.monotonic() < deadline
        time.sleep(0.001)
