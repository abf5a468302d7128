"""Real processes for tests to contend with and to kill: `python -m tests.studies.processes lease|slots|log ...`.

`lease URL STUDY HOME` and `slots URL HOST STUDY PARTS` say that they are ready and wait for a line, so that several
begin at once; `log URL STUDY LIMIT WRITER` appends events and says each one that is durable.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from studies import EventLog, EventType, LeaseHeld
from studies.log.locks import ControllerLeases, Holder, SlotRequest, Slots, renew_in_background
from tests.studies.synthetic import append

COMMAND = (sys.executable, "-m", "tests.studies.processes")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen((*COMMAND, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def _ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def lease(url: str, study: str, home: str) -> None:
    log = EventLog(url)
    _ready()
    try:
        with renew_in_background(ControllerLeases(log).take(study, Holder.here(Path(home)))):
            print("held", flush=True)
            sys.stdin.read()
    except LeaseHeld as error:
        print(error, flush=True)


def slots(url: str, host: str, study: str, parts: str) -> None:
    taken, everybody = Slots(EventLog(url), host), [f"study-{number}" for number in range(10)]
    _ready()
    number = 0
    while (row := taken.take(SlotRequest(study, f"{study}-{number}", "/home", int(parts)), passed_over=everybody)).slot:
        print(row.slot, flush=True)
        number += 1
    print("none", flush=True)


def log(url: str, study: str, limit: str, writer: str) -> None:
    opened = EventLog(url)
    for number in range(int(limit)):
        event = append(opened, study, EventType.DECISION_TAKEN, {"writer": writer, "number": number})
        print(event.seq, flush=True)


if __name__ == "__main__":
    {"lease": lease, "slots": slots, "log": log}[sys.argv[1]](*sys.argv[2:])
