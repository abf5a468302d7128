"""`ajet` as a person types it from a page: what would go on for hours is ended by Ctrl-C once it is under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from studies import EventLog, fold
from swarm.client import SwarmClient
from tests.end_to_end.factories import eventually

AJET = (sys.executable, "-m", "research")
ENOUGH = 4


def study_began(before: set[str]) -> bool:
    """Whether a newer study has begun a run, of noise too, or asks for approval, for which it is left alone."""
    with closing(EventLog("sqlite:///.ajet/ajet.db")) as log:
        states = [fold(log.read(study)) for study in log.studies() if study not in before]
    begun = [run for state in states for run in state.every_run.values() if run.attempts]
    return bool(begun) or any(state.open_question is not None for state in states)


def collected(words: list[str]) -> int:
    name = words[words.index("--server") + 1] if "--server" in words else None
    with SwarmClient.from_home(name, role="viewer") as server:
        return server.status().collected_episodes


def under_way(words: list[str], log: Path) -> Callable[[], bool] | None:
    if words[:1] == ["research"]:
        with closing(EventLog("sqlite:///.ajet/ajet.db")) as known:
            before = set(known.studies())
        return lambda: study_began(before)
    if words[:2] == ["client", "run"] and "--eval" not in words:
        before_it = collected(words)
        return lambda: collected(words) >= before_it + ENOUGH
    if words[:1] == ["up"]:
        return lambda: "studies at once" in log.read_text()
    return None


def main(words: list[str]) -> int:
    log = Path(f"typed-{os.getpid()}.log")
    there = under_way(words, log)
    if there is None:
        os.execv(AJET[0], [*AJET, *words])
    with log.open("wb") as out:
        running = subprocess.Popen([*AJET, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    eventually(lambda: running.poll() is not None or there())
    if "--approve" in words and running.poll() is None:
        return 0
    running.send_signal(signal.SIGINT)
    code = running.wait()
    if code not in (0, 130):
        print(log.read_text(), file=sys.stderr)
    return 0 if code == 130 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
