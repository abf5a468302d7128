"""Attempts to become more than a user without rights."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import subprocess
import time
from functools import partial

from probing import attempt, first, syscall

NEW_USER, NEW_MOUNTS, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x00020000, 0x20000000, 0x40000000


def _status():
    return dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)


@attempt("be root, or become it (setuid, setgid, setgroups)")
def become_root():
    if os.getuid() == 0:
        return "root from the start"
    os.setgid(0)
    os.setuid(0)
    return os.getuid() == 0


@attempt("supplementary groups of the machine")
def groups_of_the_machine():
    return [group for group in os.getgroups() if group != os.getgid()]


@attempt("capabilities: effective, permitted, inheritable, ambient or bounding")
def capabilities():
    return {key: value for key, value in _status().items() if key.startswith("Cap") and int(value, 16)}


@attempt("no filter of system calls, or new privileges allowed")
def missing_filter():
    status = _status()
    return [key for key, wanted in (("Seccomp", "2"), ("NoNewPrivs", "1")) if status[key] != wanted]


@attempt("a setuid program of the image (su), looked at while it runs")
def setuid_program():
    with subprocess.Popen(["su"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as su:
        try:
            for _ in range(100):
                line = next(line for line in open(f"/proc/{su.pid}/status") if line.startswith("Uid:"))
                if line.split()[2] == "0" and os.getuid() != 0:
                    return line
                time.sleep(0.005)
        finally:
            su.kill()


@attempt("a user namespace of one's own (unshare)")
def user_namespace():
    return syscall(272, NEW_USER) == 0


@attempt("namespaces of mounts, processes or network of one's own (unshare)")
def other_namespaces():
    return first(*(partial(syscall, 272, flag) for flag in (NEW_MOUNTS, NEW_PROCESSES, NEW_NETWORK)))


@attempt("a user namespace of one's own (clone, clone3)")
def user_namespace_by_clone():
    try:
        pid = syscall(56, NEW_USER | signal.SIGCHLD, 0, 0, 0, 0)
    except OSError:
        arguments = (ctypes.c_uint64 * 11)(NEW_USER, 0, 0, 0, signal.SIGCHLD)
        pid = syscall(435, ctypes.byref(arguments), 88)
    if pid == 0:
        os._exit(0)
    return pid


@attempt("the namespaces of PID 1 (setns)")
def namespaces_of_pid_1():
    return syscall(308, os.open("/proc/1/ns/mnt", os.O_RDONLY), 0) == 0


@attempt("mount: a tmpfs, a proc, the root writable; unmount the mask of /proc/kcore; chroot, pivot_root")
def mount():
    os.makedirs("/tmp/place", exist_ok=True)
    calls = (
        (165, b"none", b"/tmp/place", b"tmpfs", 0, 0), (165, b"none", b"/tmp/place", b"proc", 0, 0),
        (165, b"none", b"/", 0, 0x20, 0), (166, b"/proc/kcore", 0), (161, b"/tmp/place"),
        (155, b"/tmp/place", b"/tmp/place"), (430, b"tmpfs", 0), (428, -100, b"/", 1),
    )  # fmt: skip
    return first(*(partial(syscall, *call) for call in calls))


@attempt("ptrace PID 1")
def ptrace_pid_1():
    return first(partial(syscall, 101, 0x4206, 1, 0, 0), partial(syscall, 101, 16, 1, 0, 0))


@attempt("read the memory of PID 1 (process_vm_readv), take its descriptors (pidfd_getfd)")
def memory_of_pid_1_by_call():
    where = ctypes.create_string_buffer(8)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(where), 8)
    try:
        return syscall(310, 1, ctypes.byref(vector), 1, ctypes.byref(vector), 1, 0)
    except OSError:
        return syscall(438, syscall(434, 1, 0), 2, 0)


@attempt("programs for the kernel (bpf)")
def bpf():
    return syscall(321, 0, struct.pack("32I", 2, 4, 4, 1, *[0] * 28), 128)


@attempt("counters of the processor (perf_event_open)")
def performance_counters():
    event = (ctypes.c_uint32 * 32)(1, 128)
    return syscall(298, ctypes.byref(event), 0, -1, -1, 0)


@attempt("io_uring, whose calls no filter sees")
def io_uring():
    return syscall(425, 8, ctypes.create_string_buffer(256))


@attempt("page faults of one's own (userfaultfd)")
def page_faults():
    return syscall(323, 0)


@attempt("another personality without random addresses")
def personality():
    return syscall(135, 0x0040000) >= 0


@attempt("the clock, the name, the swap and the power of the machine")
def settings_of_the_machine():
    now = (ctypes.c_long * 2)(int(time.time()), 0)
    calls = ((227, 0, ctypes.byref(now)), (170, b"mine", 4), (167, b"/tmp/swap", 0), (169, 0xFEE1DEAD, 672274793, 0, 0))
    return first(*(partial(syscall, *call) for call in calls))


@attempt("a kernel module, or another kernel (init_module, finit_module, kexec_load)")
def kernel_module():
    calls = ((175, b"x", 1, b""), (313, 0, b"", 0), (246, 0, 0, 0, 0))
    return first(*(partial(syscall, *call) for call in calls))


@attempt("ports of the processor (iopl, ioperm)")
def ports_of_the_processor():
    return first(partial(syscall, 172, 3), partial(syscall, 173, 0x80, 1, 1))


@attempt("more than one's share: real-time scheduling, a negative nice value, locked memory")
def more_than_ones_share():
    return first(
        partial(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50)),
        partial(os.setpriority, os.PRIO_PROCESS, 0, -5),
    )


@attempt("higher limits than the given ones (open files, file size, core dumps)")
def higher_limits():
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        _, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY:
            return kind, "no limit"
        try:
            resource.setrlimit(kind, (hard + 1, hard + 1))
        except (OSError, ValueError):
            continue
        return kind, hard
    return None


@attempt("be the last that dies of too little memory (oom_score_adj)")
def spared_when_memory_ends():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    return "spared"


@attempt("input for the terminal of whoever started the engine (TIOCSTI)")
def input_for_a_terminal():
    import fcntl
    import termios

    return fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), termios.TIOCSTI, b"x") == 0
