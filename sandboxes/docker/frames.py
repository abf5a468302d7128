"""Reading what a container's PID 1 wrote down: its frames, from the engine's log of its standard error.

Only PID 1 can write there, but a reader trusts no size and no name: a line, a result and their number are bounded by
what was asked for, a result counts only if it is whole, and what is no frame is kept as PID 1's own trouble.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LINE_BYTES = 16_384
TROUBLE_BYTES = 4_096
NOT_COLLECTED = "the container ended before it was read"


@dataclass(frozen=True, slots=True)
class Ending:
    """How the command ended, in the words of PID 1."""

    reason: str
    code: int
    dropped_bytes: int
    oom_kills: int


@dataclass(slots=True)
class FrameReport:
    """All that the frames of a container say."""

    ending: Ending | None = None
    results: dict[str, bytes] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Of the results that were asked for, those that there are not, and why."""
    trouble: str = ""


def read(log: bytes, asked: Mapping[str, int]) -> FrameReport:
    """Return what `log` reports of the results `asked` for (name to most bytes)."""
    report, parts = FrameReport(), {name: bytearray() for name in asked}
    for line in _lines(log):
        if (frame := _frame(line)) is None:
            report.trouble = (report.trouble + line.decode(errors="replace") + "\n")[:TROUBLE_BYTES]
        elif "exit" in frame:
            report.ending = report.ending or _ending(frame)
        elif isinstance(name := frame.get("result"), str) and name in parts:
            _take(report, name, frame, parts[name], asked[name])
    for name in asked.keys() - report.results.keys() - report.refused.keys():
        report.refused[name] = NOT_COLLECTED
    return report


def _lines(log: bytes) -> Iterable[bytes]:
    return (line[:LINE_BYTES] for line in log.split(b"\n") if line.strip())


def _frame(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _ending(frame: Mapping[str, Any]) -> Ending | None:
    counts = [frame.get(key) for key in ("code", "dropped", "oom_kills")]
    if frame["exit"] not in ("finished", "error", "timeout", "stopped"):
        return None
    code, dropped, kills = (count if type(count) is int else 0 for count in counts)
    return Ending(frame["exit"], code, dropped, kills)


def _take(report: FrameReport, name: str, frame: Mapping[str, Any], parts: bytearray, most_bytes: int) -> None:
    """Add one frame of the result `name`; the first word on it, whole or refused, is the last."""
    if name in report.results or name in report.refused:
        return
    if "data" in frame:
        _add(report, name, frame["data"], parts, most_bytes)
    elif "refused" in frame:
        report.refused[name] = str(frame["refused"])[:TROUBLE_BYTES]
    elif frame.get("sha256") == hashlib.sha256(parts).hexdigest():
        report.results[name] = bytes(parts)
    else:
        report.refused[name] = "damaged on its way: its hash is another"


def _add(report: FrameReport, name: str, data: object, parts: bytearray, most_bytes: int) -> None:
    try:
        parts += base64.b64decode(str(data), validate=True)
    except ValueError:
        report.refused[name] = "damaged on its way: not base64"
    if len(parts) > most_bytes:
        report.refused[name] = f"too large: more than {most_bytes} bytes"
