"""Whether a database error is transient (a full disk, a lost connection) or permanent.

Told apart by the database's own codes. What is not known to be for good is taken for passing: it is tried again.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

_SQLITE = frozenset(
    {
        sqlite3.SQLITE_ERROR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOTADB,
    }
)  # fmt: skip
"""No such table or column, no right to write, a file that is no database."""
_POSTGRESQL = ("0A", "25006", "28", "3D000", "42")
"""Beginnings of its codes: not supported, read-only, authorisation, no such database, schema and rights. (22 and 23,
data and constraints, are of these changes alone.)"""
_AT_THE_DOOR = (
    "authentication failed",
    "pg_hba.conf",
    "does not exist",
    "permission denied",
    "not permitted to log in",
)
"""What PostgreSQL says while a connection is made, which comes without a code."""


def for_good(error: Exception) -> bool:
    """Return whether the same again can never succeed as things are."""
    if not isinstance(error, OperationalError | InterfaceError):
        return True
    return _refused(error)


def of_database(error: Exception) -> bool:
    """Return whether the database refuses whatever comes, for good, and not these changes alone."""
    return isinstance(error, DBAPIError) and _refused(error)


def _refused(error: DBAPIError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_POSTGRESQL)
    return any(said in str(error.orig) for said in _AT_THE_DOOR)
