"""A PostgreSQL that hangs is noticed: where it is reached for, where it was in the middle of something."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import sqlalchemy as sa

from swarm.errors import ServerFailed, StoreUnavailable
from swarm.store import database
from swarm.store.database import check_store
from tests.swarm.store.support import HERE, began, ended, opened, played, reopened

SOON_S = 10.0


class Wire:
    """A wire to a server that can be frozen: nothing passes then, and both sides' kernels go on acknowledging."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._thaw = threading.Event()
        self._thaw.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        self._thaw.clear()

    def close(self) -> None:
        self._thaw.set()
        self._listening.close()

    def thaw(self) -> None:
        self._thaw.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._to)
                for source, to in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, to), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._thaw.wait()
                to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire(url: str) -> Iterator[tuple[str, Wire]]:
    to = sa.make_url(url)
    made = Wire(to.host or "127.0.0.1", to.port or 5432)
    try:
        yield to.set(host="127.0.0.1", port=made.port).render_as_string(hide_password=False), made
    finally:
        made.close()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_a_server_that_stands_still_in_the_middle_is_noticed_and_gone_on_with(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "ANSWER_S", 0.5)
    monkeypatch.setitem(database.OPTIONS, "connect_timeout", 2)
    with wire(url) as (wired, made):
        async with opened(wired) as (store, _):
            await store.write(*played("a"), ended("a"))
            made.freeze()
            began_at = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"for 0\.5 s"):
                await store.write(*played("b"))
            with pytest.raises(StoreUnavailable):
                await store.episodes(5)
            assert time.monotonic() - began_at < SOON_S
            made.thaw()
            await store.write(*played("b"), ended("b"))
    assert [sample.episode for sample in (await reopened(url)).pool] == ["a", "b"]


def test_an_address_where_nobody_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database.OPTIONS, "connect_timeout", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://postgres@127.0.0.1:{silent.getsockname()[1]}/none"
        began_at = time.monotonic()
        with pytest.raises(ServerFailed, match=r"cannot be opened: .*timeout"):
            check_store(url, HERE)
        assert time.monotonic() - began_at < SOON_S


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_a_statement_that_does_not_come_to_an_end_passes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(database.OPTIONS, "options", "-c statement_timeout=200ms")
    async with opened(url) as (store, _):
        await store.write(*played("a"))
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(sa.text("lock table episodes in access exclusive mode"))
            with pytest.raises(StoreUnavailable, match="statement timeout"):
                await store.write(began("b"))
        engine.dispose()
        await store.write(began("b"))
        assert store.failure() is None
