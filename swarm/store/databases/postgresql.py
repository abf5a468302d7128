"""Connections to PostgreSQL that notice a server which hangs, by whatever way it does.

    the address swallows packets        connect_timeout
    the machine or the network is gone  keepalives, and tcp_user_timeout for what is not acknowledged
    a statement does not come to an end statement_timeout, the server's own
    the server's process stands still   ANSWER_S: its kernel goes on acknowledging, so that only this side can tell

Each ends in an error that passes: the connection is made anew. What the store's URL says itself stands.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait

CONNECT_S = 10
STATEMENT_S = 50
ANSWER_S = 60.0
"""Seconds without a byte after which a server is taken for gone: more than any statement may take."""
_LOOK_S = 1.0
OPTIONS: dict[str, str | int] = {
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "options": f"-c statement_timeout={STATEMENT_S}s",
}

T = TypeVar("T")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection on which silence is borne for ANSWER_S at most."""

    def wait(self, gen: PQGen[T], interval: float = _LOOK_S, *more: Any, **named: Any) -> T:
        """Wait as psycopg does; raise OperationalError, with the connection closed, once it is silent for too long."""
        return super().wait(_bounded(gen, self), interval, *more, **named)


def watch(engine: sa.Engine) -> None:
    """Let all connections of an engine with the driver psycopg be such."""

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, fields: dict[str, Any]) -> BoundedConnection:
        return BoundedConnection.connect(*arguments, **{**OPTIONS, **fields})


def _bounded(gen: PQGen[T], connection: BoundedConnection) -> Generator[Wait, Ready | int, T]:
    until = time.monotonic() + ANSWER_S
    ready: Any = None
    while True:
        try:
            wanted = gen.send(ready)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        ready = yield wanted
        if ready:
            until = time.monotonic() + ANSWER_S
        elif time.monotonic() > until:
            connection.close()
            raise psycopg.OperationalError(f"it did not answer for {ANSWER_S:g} s")
