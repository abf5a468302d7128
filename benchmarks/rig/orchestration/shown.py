"""What it takes to show a study in a real Prefect server, in seconds of a core.

Import this module only where nothing of Prefect was imported yet: it reads its settings once, at import.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from research.installation.home import Home
from research.orchestration.server import client_environment, ensure_server, read_process, stop_server
from rig.orchestration.long_study import LongStudy, Pattern
from rig.orchestration.ticks import BUSY_TICKS, timed
from studies import EventLog, fold

IDLE_REFRESHES = 9
AT_REST_S = 20.0
"""So long a server is left alone, to see what it takes by itself."""


def shown(folder: Path, pattern: Pattern, runs: int, events: int) -> dict[str, Any]:
    """Return the seconds of a core that Prefect's view takes: to show all runs, to look in vain, for an attempt.

    `an attempt, controller` and `an attempt, server` are for one that ends and the next that begins.
    """
    study = LongStudy(folder / f"shown-{runs}", pattern, runs, events)
    with _served(study.home) as (api, server):
        from research.orchestration.prefect_api import connect
        from research.orchestration.projection import ControllerSession
        from research.orchestration.task_rows import build_rows

        controller = study.controller()
        controller.tick()
        with connect(api) as client, closing(EventLog(study.home.database)) as log:
            since = fold(log.read(log.studies()[0])[:1])  # its session saw all of it, and Prefect nothing yet
            session = ControllerSession(study.home, log, since, client)
            before = server.seconds()
            _, first_s = timed(session.refresh)
            first_server_s = server.settled(since=before)
            idle = [timed(session.refresh)[1] for _ in range(IDLE_REFRESHES)]
            before, busy = server.settled(), []
            for _ in range(BUSY_TICKS):
                study.clock.advance(3600.0)
                ended = controller.tick().ended
                busy.append(timed(session.refresh)[1] / len(ended))
            busy_server_s = server.settled(since=before) / (BUSY_TICKS * len(ended))
            there = client.request("POST", "/task_runs/count", json={}).json()
            assert there == len(list(build_rows(fold(log.read(since.id)), since))), "each row is there"
            session.close(None)
        rest = server.at_rest()
    study.log.close()
    return {
        "runs": runs, "catching up, controller": first_s, "catching up, server": first_server_s,
        "idle refresh": median(idle), "an attempt, controller": median(busy), "an attempt, server": busy_server_s,
        "server at rest, cores": rest,
    }  # fmt: skip


class ServerUse:
    """What a server and its children have used of the machine's cores."""

    def __init__(self, leader: int) -> None:
        self._leader = psutil.Process(leader)

    def seconds(self) -> float:
        """Return the seconds of a core used since they began; children that ended count for nothing."""
        used = [process.cpu_times() for process in (self._leader, *self._leader.children(recursive=True))]
        return sum(each.user + each.system for each in used)

    def settled(self, since: float = 0.0) -> float:
        """Return the seconds used after `since`, once it has done what it was told: two seconds are like at rest."""
        last = self.seconds()
        while True:
            time.sleep(2.0)
            now = self.seconds()
            if now - last < 0.2:
                return now - since
            last = now

    def at_rest(self) -> float:
        """Return how many cores it takes where nobody asks for anything."""
        before, began = self.seconds(), time.monotonic()
        time.sleep(AT_REST_S)
        return (self.seconds() - before) / (time.monotonic() - began)


@contextmanager
def _served(home: Home) -> Iterator[tuple[str, ServerUse]]:
    os.environ.update(client_environment(home.prefect))
    api = ensure_server(home.prefect, port=0).api
    known = read_process(home.prefect / "server.json")
    assert known is not None
    try:
        yield api, ServerUse(int(str(known["pid"])))
    finally:
        stop_server(home.prefect)
