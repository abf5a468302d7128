"""Attempts to become more than a user without rights."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import subprocess
import time

from probing import attempt, looking, syscall, trying

BUFFER = ctypes.create_string_buffer(8)
NEW_USER, NEW_MOUNTS, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x00020000, 0x20000000, 0x40000000
VECTOR = (ctypes.c_void_p * 2)(ctypes.addressof(BUFFER), 8)


def _status():
    return dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)


@attempt("be root, or become it (setuid, setgid, setgroups)")
def become_root():
    if os.getuid() == 0:
        return "root from the start"
    os.setgid(0)
    os.setuid(0)
    return os.getuid() == 0


groups_of_the_machine = looking("supplementary groups of the machine", lambda: {*os.getgroups()} - {os.getgid()})
capabilities = looking(
    "capabilities: effective, permitted, inheritable, ambient or bounding",
    lambda: [item for item in _status().items() if item[0].startswith("Cap") and int(item[1], 16)],
)
missing_filter = looking(
    "no filter of system calls, or new privileges allowed",
    lambda: {("Seccomp", "2"), ("NoNewPrivs", "1")} - _status().items(),
)


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


user_namespace = trying("a user namespace of one's own (unshare)", (272, NEW_USER))
other_namespaces = trying(
    "namespaces of mounts, processes or network of one's own (unshare)",
    *((272, flag) for flag in (NEW_MOUNTS, NEW_PROCESSES, NEW_NETWORK)),
)


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


namespaces_of_pid_1 = trying(
    "the namespaces of PID 1 (setns)", lambda: syscall(308, os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)
)
mount = trying(
    "mount: a tmpfs, a proc, the root writable; unmount the mask of /proc/kcore; chroot, pivot_root",
    (165, b"none", b"/tmp", b"tmpfs", 0, 0), (165, b"none", b"/tmp", b"proc", 0, 0),
    (165, b"none", b"/", 0, 0x20, 0), (166, b"/proc/kcore", 0), (161, b"/tmp"), (155, b"/tmp", b"/tmp"),
    (430, b"tmpfs", 0), (428, -100, b"/", 1),
)  # fmt: skip
ptrace_pid_1 = trying("ptrace PID 1", (101, 0x4206, 1, 0, 0), (101, 16, 1, 0, 0))
memory_of_pid_1_by_call = trying(
    "read the memory of PID 1 (process_vm_readv), take its descriptors (pidfd_getfd)",
    (310, 1, ctypes.byref(VECTOR), 1, ctypes.byref(VECTOR), 1, 0),
    lambda: syscall(438, syscall(434, 1, 0), 2, 0),
)
bpf = trying("programs for the kernel (bpf)", (321, 0, struct.pack("32I", 2, 4, 4, 1, *[0] * 28), 128))
performance_counters = trying(
    "counters of the processor (perf_event_open)", (298, ctypes.byref((ctypes.c_uint32 * 32)(1, 128)), 0, -1, -1, 0)
)
io_uring = trying("io_uring, whose calls no filter sees", (425, 8, ctypes.create_string_buffer(256)))
page_faults = trying("page faults of one's own (userfaultfd)", (323, 0))
personality = trying("another personality without random addresses", (135, 0x0040000))
settings_of_the_machine = trying(
    "the clock, the name, the swap and the power of the machine",
    (227, 0, ctypes.byref((ctypes.c_long * 2)(int(time.time()), 0))), (170, b"mine", 4), (167, b"/tmp/swap", 0),
    (169, 0xFEE1DEAD, 672274793, 0, 0),
)  # fmt: skip
kernel_module = trying(
    "a kernel module, or another kernel (init_module, finit_module, kexec_load)",
    (175, b"x", 1, b""), (313, 0, b"", 0), (246, 0, 0, 0, 0),
)  # fmt: skip
ports_of_the_processor = trying("ports of the processor (iopl, ioperm)", (172, 3), (173, 0x80, 1, 1))
more_than_ones_share = trying(
    "more than one's share: real-time scheduling, a negative nice value, locked memory",
    lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)),
    lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
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
