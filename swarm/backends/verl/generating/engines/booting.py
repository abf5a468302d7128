"""What an engine's boot that failed is to be called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from swarm.backends.protocols import BackendError
from swarm.backends.verl.generating.engines.spec import ReplicaSpec

_ERROR: Final = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception)\b: .+")
_ROOM: Final = (
    "No available memory",
    "KV cache is needed",
    "larger than the available",
    "out of memory",
    "OutOfMemoryError",
    "less than desired",
    "Cannot allocate memory",
    "MemoryError",
    "Not enough memory",
)
"""What engines, torch and the operating system say where there is too little memory."""


def told(
    engine: str, error: BaseException, log: Iterable[str], spec: ReplicaSpec, echoes: Sequence[str]
) -> BackendError:
    """Return the first cause, by the error here and by what the engine's processes wrote; `echoes` say it again.

    Where there was too little memory, that and the knobs are told.
    """
    lines = [line.rstrip() for line in log if line.strip()]
    said = [line for line in [*lines, f"{type(error).__name__}: {error}"] if _ERROR.search(line)]
    if room := next((line for line in said if any(sign in line for sign in _ROOM)), None):
        return BackendError(
            f"{engine} has too little memory for {spec.folder} with max_context {spec.max_context}, max_concurrency "
            f"{spec.max_concurrency}, kv_cache_bytes {spec.kv_cache_bytes}, gpu_memory {spec.gpu_memory}: lower the "
            f"first two, or raise the others as far as the memory goes; it said: {_bare(room)}"
        )
    cause = next((line for line in said if not any(echo in line for echo in echoes)), f"{error}")
    return BackendError(f"{engine} did not start with {spec.folder}: {_bare(cause)}")


def _bare(line: str) -> str:
    """Return a line of a log without what stands before the error, cut short."""
    found = _ERROR.search(line)
    return (line[found.start() :] if found else line)[:400]
