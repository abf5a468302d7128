"""A PostgreSQL that hangs is noticed: where it is reached for, where it was in the middle of something."""

from __future__ import annotations

import socket
import time

import pytest
import sqlalchemy as sa

from swarm.errors import ServerFailed, StoreUnavailable
from swarm.store import database
from swarm.store.database import check_store
from tests.swarm.store.support import HERE, began, opened, played

SOON_S = 10.0


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
        assert store.broken is None
