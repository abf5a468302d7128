from __future__ import annotations

import errno
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.inside import seccomp as filtering
from sandboxes.inside.seccomp import ARCHITECTURES, Architecture, program

ALLOWED = 0
X86, ARM = ARCHITECTURES["x86_64"], ARCHITECTURES["aarch64"]


def judged(architecture: Architecture, number: int, *arguments: int, audit: int | None = None) -> int:
    """Run the filter as the kernel does; return the error a call is refused with, or ALLOWED."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture.audit if audit is None else audit, 0, *padded)
    rules, place, held = program(architecture), 0, 0
    while True:
        code, yes, no, operand = rules[place]
        place += 1
        if code == 0x20:
            held = struct.unpack_from("=I", data, operand)[0]
        elif code == 0x15:
            place += yes if held == operand else no
        elif code == 0x35:
            place += yes if held >= operand else no
        else:
            assert code == 0x06
            return ALLOWED if operand == 0x7FFF0000 else operand & 0xFFFF


def calls(architecture: Architecture) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield calls, by number and arguments, each with the error that it is refused with."""
    allowed = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
    for family in range(64):
        refusal = ALLOWED if family in allowed else errno.EAFNOSUPPORT
        yield (architecture.socket, family, socket.SOCK_STREAM), refusal
    yield (architecture.socket, 1 << 32 | 40), errno.EAFNOSUPPORT  # hidden in the upper half of its register
    for number in architecture.of_others:  # limits and scheduling: of itself alone
        yield from (((number, 0, 9, 9), ALLOWED), ((number, 1), errno.EPERM), ((number, 1 << 32), errno.EPERM))
    yield (architecture.set_io_priority, 1, 1, 0x6000), errno.EPERM
    yield (architecture.set_priority, 0, 0, 19), ALLOWED
    yield (architecture.set_priority, 0, 1, 19), errno.EPERM
    yield (architecture.set_priority, 2, 0, 19), errno.EPERM  # all of this user, PID 1 too
    yield from (((number, 1, 15, 4096), errno.EPERM) for number in architecture.forged_signals)
    for information, refusal in ((0, ALLOWED), (4096, errno.EPERM), (1 << 40, errno.EPERM)):
        yield (filtering.PIDFD_SEND_SIGNAL, 3, 15, information), refusal
    yield (architecture.socket | filtering.X32_BIT, 1), errno.ENOSYS


@pytest.mark.parametrize("architecture", [X86, ARM], ids=["x86_64", "aarch64"])
def test_sockets_scheduling_and_senders_of_signals_are_judged_by_this_table(architecture: Architecture) -> None:
    wrong = [(call, refusal) for call, refusal in calls(architecture) if judged(architecture, *call) != refusal]
    assert wrong == []
    assert judged(architecture, 3, audit=0x40000003) == errno.ENOSYS  # by another architecture's numbers


@given(st.integers(0, 600), st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_every_other_call_is_left_to_the_engines_profile(number: int, arguments: list[int]) -> None:
    judged_calls = {X86.socket, X86.set_priority, X86.set_io_priority, filtering.PIDFD_SEND_SIGNAL, *filtering.IO_URING}
    if number not in {*judged_calls, *X86.forged_signals, *X86.of_others}:
        assert judged(X86, number, *arguments) == ALLOWED


@pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="the filter knows other machines")
def test_the_kernel_takes_the_filter_and_does_as_it_says() -> None:
    code = """
import ctypes, os, socket, sys
sys.path.insert(0, sys.argv[1])
import seccomp as filter
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
filter.install()
socket.socket(socket.AF_INET).close()
try:
    socket.socket(40)
except OSError as error:
    print(error.errno)
other = os.getppid()
for change, arguments in ((os.setpriority, (os.PRIO_PROCESS, other, 1)), (os.sched_setaffinity, (other, {0}))):
    try:
        change(*arguments)
    except OSError as error:
        print(error.errno)
"""
    folder = str(Path(filtering.__file__).parent)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, folder], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EAFNOSUPPORT), str(errno.EPERM), str(errno.EPERM)]


def test_a_machine_whose_numbers_are_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = os.uname_result(("Linux", "box", "6.1", "#1", "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: unknown)
    with pytest.raises(OSError, match="riscv64"):
        filtering.install()
