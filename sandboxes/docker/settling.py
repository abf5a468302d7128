"""Settling an ended container: how it ended, its output and its results are written into the sandbox's folder.

Everything lies in the engine until `exit.json` is written, so that a full disk or a killed controller costs nothing:
the next poll does it again. The caller holds the folder's lock.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from sandboxes.docker import frames
from sandboxes.docker.asking import asking
from sandboxes.docker.engine import ContainerEngine
from sandboxes.docker.frames import FrameReport
from sandboxes.folders import read, sync_names, write_once
from sandboxes.spec import Exit, ExitReason, SandboxError

SIGNALLED = 128
"""From here on an exit code means a signal, or (255) that the engine itself was gone when the container ended."""


def collect(engine: ContainerEngine, container: str, state: Mapping[str, Any], folder: Path) -> None:
    """Write the output, the results and the end of the ended `container` into `folder`."""
    spec = read(folder / "spec.json") or {}
    output, said = log(engine, container, out=True), log(engine, container, out=False)
    report = frames.read(said, spec.get("results", {}))
    ended = verdict(state, report, read(folder / "stop.json"))
    try:
        _write(folder, output + _trouble(report), report)
        conclude(folder, ended, report)
    except OSError as error:
        raise SandboxError(
            f"sandbox {folder.name}: it ended, but what it left cannot be written to {folder}: {error}. "
            "The engine keeps it; make room, and look again"
        ) from error


def verdict(state: Mapping[str, Any], report: FrameReport, asked: Mapping[str, Any] | None) -> Exit:
    """Return how it ended: PID 1's word, which nobody can forge, corrected by what only we and the engine know."""
    if (ending := report.ending) is None:
        return _unseen(state, asked)
    reason = ending.reason
    if reason == "stopped" and asked is None:
        reason = "killed"  # somebody asked the engine, not us
    elif reason == "error" and (state["OOMKilled"] or ending.oom_kills):
        reason = "out_of_memory"
    return Exit(cast(ExitReason, reason), ending.code)


def _unseen(state: Mapping[str, Any], asked: Mapping[str, Any] | None) -> Exit:
    """PID 1 left no word: it was killed, or never came to its work."""
    code = int(state["ExitCode"])
    if state["OOMKilled"]:
        return Exit("out_of_memory", code)
    if asked is not None:
        return Exit("timeout" if asked.get("overdue") else "stopped", code)
    return Exit("error" if 0 < code < SIGNALLED else "killed", code)


def conclude(folder: Path, ended: Exit, report: FrameReport | None = None) -> None:
    """Write down how it ended, unless that is written already."""
    report = report or FrameReport(refused=dict.fromkeys((read(folder / "spec.json") or {}).get("results", {}), "lost"))
    hashes = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in report.results.items()
    }
    value = {"reason": ended.reason, "code": ended.code, "ended_at": time.time(), "results": hashes}
    counts = {
        "dropped_bytes": report.ending.dropped_bytes if report.ending else None,
        "oom_kills": report.ending.oom_kills if report.ending else None,
    }
    write_once(folder / "exit.json", {**value, "refused": report.refused, **counts})


def log(engine: ContainerEngine, container: str, *, out: bool, lines: int | None = None) -> bytes:
    """Return the container's standard output or error as the engine has it: so many lines of its end, or all."""
    with asking(engine, f"reading the log of container {container}"):
        tail: Any = "all" if lines is None else lines
        return engine.client.api.logs(container, stdout=out, stderr=not out, stream=False, tail=tail)


def _trouble(report: FrameReport) -> bytes:
    return f"\n[PID 1 says: {report.trouble.strip()}]\n".encode() if report.trouble else b""


def _write(folder: Path, output: bytes, report: FrameReport) -> None:
    (folder / "results").mkdir(mode=0o700, exist_ok=True)
    _write_atomic(folder / "output.log", output)
    for name, data in report.results.items():
        _write_atomic(folder / "results" / name, data)
    sync_names(folder / "results")


def _write_atomic(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # the engine's copy is removed once `exit.json` stands
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
