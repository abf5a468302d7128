"""Bounds on a process that runs foreign code, so that what leaks or babbles fails instead of the machine."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 12 << 30
"""Of address space: packages map far more than they use."""
MOST_FILE_BYTES: Final = 1 << 30
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def bound_memory(most_bytes: int = MOST_BYTES) -> None:
    """From now on let allocations beyond a bound fail in this process, as a MemoryError in Python."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def bound_files() -> None:
    """From now on let no file that this process writes, its log included, grow beyond MOST_FILE_BYTES."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = MOST_FILE_BYTES if hard == resource.RLIM_INFINITY else min(MOST_FILE_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had at once.

    Linux is asked for the peak of the program: that of the process is no less than what its parent had when it began.
    """
    status = Path("/proc/self/status")
    if status.is_file() and (found := _PEAK.search(status.read_text())) is not None:
        return int(found[1]) << 10
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
