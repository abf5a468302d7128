"""Appends events without end, and says each one that is durable: a real process for tests to kill."""

from __future__ import annotations

import sys

from studies import EventLog, EventType
from tests.studies.raw import append


def main() -> None:
    url, study, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
    log = EventLog(url)
    for number in range(limit):
        event = append(log, study, EventType.DECISION_TAKEN, {"writer": sys.argv[4], "number": number})
        print(event.seq, flush=True)


if __name__ == "__main__":
    main()
