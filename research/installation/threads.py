"""Threads of the processes that `ajet` starts: one each, but for servers, which choose for their model.

Processes that each take all cores slow one another down tenfold. So OMP_NUM_THREADS is 1 wherever a person has not set
it; AJET_RUNS_AT_ONCE beside it tells a server that nobody has, and among how many runs the machine is shared
(`swarm/backends/local/model/threads.py`).
"""

from __future__ import annotations

import os

_THREADS, _RUNS_AT_ONCE = "OMP_NUM_THREADS", "AJET_RUNS_AT_ONCE"


def keep_to_one_thread() -> None:
    """Let this process and those it starts take one thread each, unless a person has set their number."""
    os.environ.update(shared_by(1))


def shared_by(runs: int) -> dict[str, str]:
    """Return the variables of a run that shares the machine with others, `runs` in all; none where a person set them.

    A server of the run may then take its share of the cores.
    """
    if _THREADS in os.environ and _RUNS_AT_ONCE not in os.environ:
        return {}
    return {_THREADS: "1", _RUNS_AT_ONCE: str(runs)}
