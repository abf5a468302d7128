"""An agent for `--agent`: tells when it was imported and when it made its first model call.

What it prints is one line of JSON, of seconds since 1970: containers and processes of a machine share its clock.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

IMPORTED_AT = time.time()
QUESTION = [{"role": "user", "content": "a number from 1 to 99"}]


async def agent(episode: Any) -> float:
    """Make one call."""
    calls_at = time.time()
    await episode.chat(QUESTION)
    stamps = {"began": _began_at(), "imported": IMPORTED_AT, "calls": calls_at, "answered": time.time()}
    print("FIRST CALL", json.dumps(stamps), flush=True)
    return 1.0


def _began_at() -> float:
    """Return when this process began, to a hundredth of a second."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
