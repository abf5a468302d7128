"""SQLite's write-ahead log, brought into the database from a thread of its own.

By itself SQLite does that within some commit, once the log has a thousand pages, and whoever waits for that commit
waits for two flushes of the disk too. Here commits never do (`AUTOMATIC`); a thread with a connection of its own
brings the log over while the writer goes on, and stops it only where the log grew far beyond its usual size, which it
then begins anew: for WAITS_MS at most, since the writer stands still while SQLite waits there for those who read. Under
a longer reading, such as an export, the log grows on. Nothing depends on when it happens: what is committed is in the
log.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from swarm.store.databases.database import cause

log = logging.getLogger(__name__)

AUTOMATIC = "PRAGMA wal_autocheckpoint=0"
"""Told to the writer's connection: no commit brings the log over."""
USUAL_PAGES = 1000
"""Pages that were added to the log after which it is brought over: SQLite's own default."""
MOST_PAGES = 16_384
"""Pages of the log from which the writer waits meanwhile, so that the log begins anew."""
WAITS_MS = 50
"""Milliseconds for which a log that grew so far waits for writer and readers, before it is left as it is."""
_HEADER, _FRAME_HEADER = 32, 24
"""Bytes before all pages, and before each (https://www.sqlite.org/fileformat2.html#the_write_ahead_log)."""


class LogMover:
    """Runs from construction to `stop`, over the SQLite database of an engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self.moved = 0
        """How often the log was brought over."""
        self._engine = engine
        self._log = Path(f"{engine.url.database}-wal")
        self._pages = 0  # in the log, when it was brought over last
        self._grown = threading.Event()
        self._stopping = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="store-log", daemon=True)
        self._thread.start()

    def committed(self) -> None:
        """Look at the log, soon: something was committed."""
        self._grown.set()

    def stop(self) -> None:
        """End the thread. Blocks until the log that is being brought over is there."""
        self._stopping = True
        self._grown.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._grown.wait()
            self._grown.clear()
            if self._stopping:
                return
            pages = pages_in(self._log)
            self._pages = min(self._pages, pages)  # it began anew
            if pages - self._pages >= USUAL_PAGES:
                self._move("RESTART" if pages >= MOST_PAGES else "PASSIVE")
                self._pages = pages

    def _move(self, how: str) -> None:
        """Bring the log over; what fails, or a long reading holds up, is tried again once the log has grown on."""
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={WAITS_MS}")
                connection.exec_driver_sql(f"PRAGMA wal_checkpoint({how})")
        except SQLAlchemyError as error:
            if not self._failing:
                log.warning("event=store_log_grows reason=%r", cause(error))
            self._failing = True
        else:
            self._failing = False
            self.moved += 1


def pages_in(log: Path) -> int:
    """Return how many pages a write-ahead log holds, 0 where there is none.

    A log that began anew keeps its size; its pages are those that carry the salt of its header, which come first.
    """
    try:
        with log.open("rb") as file:
            header = file.read(_HEADER)
            salt, frame = header[16:24], _FRAME_HEADER + int.from_bytes(header[8:12])
            first, beyond = 0, (file.seek(0, 2) - _HEADER) // frame
            while first < beyond:
                middle = (first + beyond) // 2
                file.seek(_HEADER + middle * frame + 8)
                first, beyond = (middle + 1, beyond) if file.read(8) == salt else (first, middle)
            return first
    except FileNotFoundError:
        return 0
