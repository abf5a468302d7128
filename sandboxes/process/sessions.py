"""Finding and ending the processes of one session: all that a shim and its command ever started.

A session is named by its leader's pid, and such a number is used again once the session is empty. Nothing is
signalled unless it is sure to be of the session meant: the caller says when the session began and whether its
leader lives. Processes that made a session of their own are not found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import psutil

ROUNDING_S = 1.0
"""How far a process's start time may be off: kernels count it in ticks."""


def members(leader: int, began: float, *, leader_lives: bool) -> list[psutil.Process]:
    """Return the living processes of the session of `leader` that began at `began` (Unix seconds).

    Zombies do not live. With a dead leader whose number another process bears, or after a reboot, there are none.
    """
    if psutil.boot_time() > began + ROUNDING_S or (not leader_lives and _alive(leader)):
        return []
    return [process for process in psutil.process_iter() if _belongs(process, leader, began)]


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _belongs(process: psutil.Process, leader: int, began: float) -> bool:
    try:
        if os.getsid(process.pid) != leader or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.create_time() >= began - ROUNDING_S or process.pid == leader
    except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
        return False


def terminate(processes: Iterable[psutil.Process]) -> None:
    """Send SIGTERM to each that still lives (psutil refuses a pid that was used again)."""
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each that still lives."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
