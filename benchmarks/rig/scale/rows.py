"""What a store of SQLite holds, table by table, and what its server has written: read beside the server that writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

TABLES = ("episodes", "nodes", "steps", "events", "streams", "task_lists", "checkpoints", "trainings")
_PAYLOAD = """
    SELECT m.tbl_name, SUM(s.payload) FROM dbstat s JOIN sqlite_master m ON m.name = s.name GROUP BY m.tbl_name
"""
"""Bytes of rows and of entries in their indices, without what a page leaves free."""
_TOKENS = "SELECT COALESCE(SUM(LENGTH(context)), 0) / 4, COALESCE(SUM(LENGTH(sampled)), 0) / 4 FROM nodes"


@dataclass(frozen=True, slots=True)
class Held:
    """A store at one moment: rows and bytes by table, tokens in them, commits so far, bytes of the file."""

    rows: Mapping[str, int]
    payload: Mapping[str, int]
    context: int
    sampled: int
    commits: int
    file: int
    written: int
    """Bytes that the kernel counts as written to a disk by the server's process: log, write-ahead log and database."""


def look(database: Path, pid: int) -> Held:
    """Read a store and its server's counters."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reader:

        def one(query: str) -> tuple[int, ...]:
            return tuple(reader.execute(query).fetchone())

        context, sampled = one(_TOKENS)
        (pages,), (size,) = one("PRAGMA page_count"), one("PRAGMA page_size")
        return Held(
            rows={table: one(f"SELECT COUNT(*) FROM {table}")[0] for table in TABLES},
            payload=dict(reader.execute(_PAYLOAD).fetchall()),
            context=context,
            sampled=sampled,
            commits=one("SELECT COALESCE(SUM(written), 0) FROM trainings")[0],
            file=pages * size,
            written=psutil.Process(pid).io_counters().write_bytes,
        )
