"""What a process of ours sets for itself and those it starts.

Its files are its owner's, whoever made the folder. A proxy that a company's or a cluster's variables name cannot reach
the loopback of this machine: servers there are spoken to without it, by agents' SDKs and by Prefect's client too.

Processes that each take all cores slow one another down tenfold. So OMP_NUM_THREADS is 1 wherever a person has not set
it; AJET_RUNS_AT_ONCE beside it tells a server that nobody has, and among how many runs the machine is shared
(`swarm/backends/local/loading.py`).
"""

import os
from collections.abc import MutableMapping

_THREADS, _RUNS_AT_ONCE = "OMP_NUM_THREADS", "AJET_RUNS_AT_ONCE"


def begin_process() -> None:
    os.umask(0o077)
    bypass_proxy(os.environ, "127.0.0.1", "localhost", "::1")
    os.environ.update(thread_variables(1))  # one thread each, unless a person has set their number


def bypass_proxy(environment: MutableMapping[str, str], *hosts: str) -> None:
    """Have HTTP clients of an environment reach `hosts` without its proxy, if it names one."""
    if not any(name.lower().endswith("_proxy") for name in environment):
        return
    said = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    known = [host.strip() for host in said.split(",") if host.strip()]
    if "*" not in known:
        environment.update(dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(dict.fromkeys([*known, *hosts]))))


def thread_variables(runs: int) -> dict[str, str]:
    """Return the variables of a run that shares the machine, one of `runs`; none where a person set them."""
    if _THREADS in os.environ and _RUNS_AT_ONCE not in os.environ:
        return {}
    return {_THREADS: "1", _RUNS_AT_ONCE: str(runs)}
