"""The filter of system calls that PID 1 lays on itself, and so on all it starts.

Filters add up and none can be taken off: what the engine's profile refuses stays refused. Also refused here:
- sockets other than Unix, IP and netlink: no network namespace holds AF_VSOCK, which leads to the hypervisor;
- io_uring, which makes sockets and opens files past every filter;
- limits, priorities, processors and scheduling of other processes: PID 1, of the same user, could be starved or killed;
- signals with a sender of the caller's choice, by which code inside would pose as the engine;
- system calls of another architecture's numbers (32 bit, x32).

Holds on x86-64 and aarch64; raises OSError elsewhere. Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from typing import NamedTuple

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand: one of the classic Berkeley Packet Filter."""

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
IO_URING = (425, 426, 427)
PIDFD_SEND_SIGNAL = 424
X32_BIT = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


class Architecture(NamedTuple):
    """How the kernel names an architecture, and its numbers of the calls that are judged."""

    audit: int
    socket: int
    forged_signals: tuple[int, ...]
    """rt_sigqueueinfo, rt_tgsigqueueinfo"""
    of_others: tuple[int, ...]
    """prlimit64, sched_setparam, sched_setscheduler, sched_setattr, sched_setaffinity: their first argument is a
    process"""
    set_priority: int
    set_io_priority: int


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 41, (129, 297), (302, 142, 144, 314, 203), 141, 251),
    "aarch64": Architecture(0xC00000B7, 198, (138, 240), (261, 118, 119, 274, 122), 140, 30),
}


def program(architecture: Architecture) -> list[Instruction]:
    refused = _refuse(errno.EPERM)
    rules: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture.audit), _refuse(errno.ENOSYS), (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, X32_BIT), _refuse(errno.ENOSYS),
    ]  # fmt: skip
    for number in (*IO_URING, *architecture.forged_signals, architecture.set_io_priority):
        rules += [(_EQUAL, 0, 1, number), refused]
    for number in architecture.of_others:
        rules += _match_call(number, [*_allow_zero(0), refused])
    rules += _match_call(architecture.set_priority, [*_allow_zero(0, 1), refused])
    rules += _match_call(PIDFD_SEND_SIGNAL, [*_allow_zero(2), refused])
    families = [(_EQUAL, len(FAMILIES) - place, 0, int(family)) for place, family in enumerate(FAMILIES)]
    judgement = [(_LOAD, 0, 0, _ARGUMENTS), *families, _refuse(errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    rules += _match_call(architecture.socket, judgement)
    return [*rules, (_RETURN, 0, 0, _ALLOW)]


def _match_call(number: int, judgement: list[Instruction]) -> list[Instruction]:
    return [(_EQUAL, 0, len(judgement), number), *judgement]


def _allow_zero(*arguments: int) -> list[Instruction]:
    words = [_ARGUMENTS + 8 * argument + half for argument in arguments for half in (0, 4)]
    checks: list[Instruction] = []
    for place, word in enumerate(words):
        left = len(words) - place - 1
        checks += [(_LOAD, 0, 0, word), (_EQUAL, 0, 2 * left + 1, 0)]
    return [*checks, (_RETURN, 0, 0, _ALLOW)]


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | code)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install() -> None:
    """Filter this thread's system calls and all its children's; no-new-privileges needs no right. Raises OSError."""
    architecture = ARCHITECTURES.get(os.uname().machine)
    if architecture is None:
        raise OSError(errno.ENOTSUP, f"no filter of system calls for {os.uname().machine}")
    rules = program(architecture)
    packed = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    loaded = _Program(len(rules), ctypes.cast(packed, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(value) for value in (_MODE_FILTER, ctypes.addressof(loaded), 0, 0)]
    if libc.prctl(_PR_SET_SECCOMP, *arguments) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")
