"""Takes slots of a machine until there is none left: a real process for tests, several of which contend.

`python -m tests.studies.slot_taker URL HOST STUDY PARTS` waits for a line first, so that several begin at once, and
prints the slots that it got.
"""

from __future__ import annotations

import sys

from studies import EventLog
from studies.log.slots import SlotAsk, Slots


def main() -> None:
    url, host, study, parts = sys.argv[1:]
    log = EventLog(url)
    slots = Slots(log, host)
    print("ready", flush=True)
    sys.stdin.readline()
    number = 0
    while (row := slots.take(SlotAsk(study, f"{study}-{number}", "/home", int(parts)), passed_over=EVERYBODY)).slot:
        print(row.slot, flush=True)
        number += 1
    print("none", flush=True)
    log.close()


EVERYBODY = [f"study-{number}" for number in range(10)]

if __name__ == "__main__":
    main()
