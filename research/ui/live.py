"""What moved, told to open pages as server-sent events.

While anybody listens, the heads of all logs are read as often as their database's file changes, else each second; the
progress of running attempts is looked at by the times of their files, and told every other second at most, so that open
pages cost a training little. A page fetches itself again then. Nothing is told that it could miss: who connects again
fetches first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from research.ui.site import Site
from studies.errors import StudiesError

LOOK_S: Final = 0.4
PROGRESS_S: Final = 2.0
ALIVE_S: Final = 10.0
"""After so long without news a stream says that it lives."""
MOST_LISTENERS: Final = 64
MOST_OF_ONE: Final = 16
"""Streams of one reader: nobody takes those of all."""

Stamps = tuple[tuple[str, int, int], ...]


class LiveHub:
    """Tells its listeners which studies moved."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._listeners: dict[asyncio.Queue[str | None], str] = {}
        self._task: asyncio.Task[None] | None = None
        self.looked = asyncio.Event()
        """Whether it has seen how things stand, so that it tells of what moves from there."""
        url = make_url(site.home.database)
        self._file = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None

    async def listen(self, who: str = "", stays: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """Yield server-sent events until the listener leaves, may not `stay`, or the hub closes."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(100)
        self._listeners[queue] = who
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield "retry: 1000\n\n"
            while True:
                try:
                    message = await asyncio.wait_for(queue.get(), ALIVE_S)
                except TimeoutError:
                    message = "event: alive\ndata: {}\n\n"
                if message is None or not stays():
                    return
                yield message
        finally:
            self._listeners.pop(queue, None)

    def is_full(self, who: str) -> bool:
        of_one = sum(name == who for name in self._listeners.values())
        return len(self._listeners) >= MOST_LISTENERS or of_one >= MOST_OF_ONE

    def close(self) -> None:
        for queue in self._listeners:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)
        if self._task is not None:
            self._task.cancel()

    def touch(self, *studies: str) -> None:
        """Tell that something about studies changed that their logs do not have: a comment."""
        self._tell("moved", studies)

    def tell_checked(self) -> None:
        """Tell of which studies the files are checked by now that a page did not wait for."""
        checked = self._site.late_checks
        if studies := {checked.popleft() for _ in range(len(checked))}:
            self._tell("moved", sorted(studies))

    def _tell(self, event: str, studies: tuple[str, ...] | list[str]) -> None:
        message = f"event: {event}\ndata: {json.dumps({'studies': list(studies)})}\n\n"
        for queue in self._listeners:
            with suppress(asyncio.QueueFull):  # it fetches all that it shows, at whichever event
                queue.put_nowait(message)

    async def _look(self) -> None:
        heads: Mapping[str, str] | None = None
        stamps: Stamps = ()
        progress: Mapping[str, Stamps] = {}
        clock = asyncio.get_running_loop().time
        told, read = clock(), 0.0
        while self._listeners:
            now_stamps = () if self._file is None else _stamps([self._file, Path(f"{self._file}-wal")])
            if now_stamps != stamps or self._file is None or clock() - read > ALIVE_S:
                before, stamps, read = heads, now_stamps, clock()
                with suppress(StudiesError):  # the pages say what is wrong with the database
                    heads = await run_in_threadpool(self._site.log.heads)
                if before is not None and heads is not None and before != heads:
                    self._tell("moved", [study for study, head in heads.items() if before.get(study) != head])
            if heads is not None:
                self.looked.set()
            self.tell_checked()
            if clock() - told >= PROGRESS_S:
                before_progress, told = progress, clock()
                progress = await run_in_threadpool(self._progress)
                moved = [study for study, found in progress.items() if before_progress.get(study, found) != found]
                if moved:
                    self._tell("progress", moved)
            await asyncio.sleep(LOOK_S if self._file is not None else 1.0)

    def _progress(self) -> Mapping[str, Stamps]:
        """Return the times of the progress files of attempts that run, by study."""
        found: dict[str, Stamps] = {}
        for study in self._site.open_studies():
            with suppress(StudiesError, HTTPException):  # whoever opens it is told why it cannot be read
                state = self._site.state(study)
                active = [(run.run_id, run.active.number) for run in state.every_run.values() if run.active is not None]
                folders = [self._site.home.attempt(study, *each) for each in active]
                found[study] = _stamps([folder / "progress.json" for folder in folders])
        return found


def _stamps(paths: list[Path]) -> Stamps:
    found = []
    for path in paths:
        with suppress(OSError):
            stat = path.stat()
            found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return tuple(found)
