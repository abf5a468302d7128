"""Takes a study's lease and keeps it until its input ends: a real process for tests to kill.

`python -m tests.studies.lease_taker URL STUDY HOME` waits for a line first, so that several begin at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from studies import EventLog, LeaseHeld
from studies.log.leases import ControllerLeases, Holder, kept


def main() -> None:
    url, study, home = sys.argv[1:]
    log = EventLog(url)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        with kept(ControllerLeases(log).take(study, Holder.here(Path(home)))):
            print("held", flush=True)
            sys.stdin.read()
    except LeaseHeld as error:
        print(error, flush=True)


if __name__ == "__main__":
    main()
