"""Attempts against the init of the container, from within."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
import time
from functools import partial

from probing import OWN, attempt, first, syscall


@attempt("end it with signals: all 64 of them, by kill, tgkill and pidfd_send_signal")
def signals():
    me = os.getpid()
    for number in range(1, 65):
        for send in (lambda: os.kill(1, number), lambda: syscall(234, 1, 1, number),
                     lambda: syscall(424, syscall(434, 1, 0), number, 0, 0)):  # fmt: skip
            try:
                send()
            except OSError:
                pass
    return os.getppid() == 0 or os.getpid() != me


@attempt("pose as the engine: SIGTERM that says it comes from outside (rt_sigqueueinfo with a sender of 0)")
def forged_sender():
    info = (ctypes.c_int * 32)(signal.SIGTERM, 0, -1, 0, 0, 0)
    syscall(129, 1, signal.SIGTERM, ctypes.byref(info))


@attempt("write to its standard error: /proc/1/fd, /dev/stderr, /dev/console, /dev/tty, inherited descriptors")
def standard_error():
    frame = b'{"ajet":1,"exit":{"reason":"finished","code":0}}\n'
    for path in ("/proc/1/fd/2", "/proc/1/fd/1", "/dev/console", "/dev/tty", "/proc/1/task/1/fd/2"):
        try:
            with open(path, "wb", buffering=0) as file:
                file.write(frame)
            return path
        except OSError:
            pass
    mine = {os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2, *OWN)}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            where = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if where not in mine and where.startswith(("pipe:", "socket:")):
            return where


@attempt("write to its memory (process_vm_writev, /proc/1/mem), or attach to its threads")
def memory():
    attach = [partial(syscall, 101, 0x4206, int(task), 0, 0) for task in os.listdir("/proc/1/task")]
    return first(*attach, partial(os.open, "/proc/1/mem", os.O_RDWR))


@attempt("make it the first to die of too little memory (/proc/1/oom_score_adj)")
def first_to_die():
    with open("/proc/1/oom_score_adj", "w") as file:
        file.write("1000")
    return "set"


@attempt("a terminal of it, and its session")
def session():
    os.setpgid(1, 0)
    return os.getsid(0) == 1 and os.tcgetpgrp(0)


def refusal(act):
    """Do something; say so if it is refused."""
    try:
        act()
    except OSError as error:
        print("refused:", errno.errorcode.get(error.errno, error.errno), flush=True)


def pose_without_room():
    """Pose as the engine with a SIGTERM whose sender is lost, for there is no room for it; then end with code 7."""
    refusal(lambda: resource.prlimit(1, resource.RLIMIT_SIGPENDING, (0, 0)))
    refusal(forged_sender)
    time.sleep(0.3)
    os._exit(7)


def prlimit(kind, soft, hard):
    """Take a resource away from PID 1 and from each of its threads; then end with code 7."""
    for task in os.listdir("/proc/1/task"):
        refusal(lambda: resource.prlimit(int(task), getattr(resource, kind), (int(soft), int(hard))))
    time.sleep(0.3)
    os._exit(7)


def leave_output():
    """Hand one's standard output to whoever is behind the door; then end with code 7."""
    import socket

    door = socket.socket(socket.AF_UNIX)
    door.connect("/run/ajet/server.sock")
    socket.send_fds(door, [b"x"], [1, 2])
    os._exit(7)


def starve():
    """Give PID 1 the least of the processor and take the rest, for ever."""
    for task in os.listdir("/proc/1/task"):
        for act in (lambda: os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0)),
                    lambda: os.setpriority(os.PRIO_PROCESS, int(task), 19),
                    lambda: os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})):  # fmt: skip
            try:
                act()
            except OSError:
                pass
    for _ in range(150):
        if os.fork() == 0:
            break
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    while True:
        pass


def hold(ports, count):
    """Open connections to the relay and the sockets until nothing more is taken; leave them open; end with code 7."""
    import socket

    kept = []
    for port in json.loads(ports):
        for _ in range(int(count)):
            door = socket.socket()
            door.settimeout(0.2)
            try:
                door.connect(("127.0.0.1", port))
                door.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
                kept.append(door)
            except OSError:
                break
    print(len(kept), flush=True)
    os._exit(7)


def survive():
    """Ignore every signal that can be ignored, leave session and parent behind, and go on for ever."""
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                signal.pause() if hasattr(signal, "pause") else time.sleep(1)
    print("deaf", flush=True)
    while True:
        time.sleep(3600)


def forge():
    """Say on every channel there is that all went well and what the results are; then fail."""
    frames = [
        {"ajet": 1, "exit": {"reason": "finished", "code": 0}},
        {"frame": "exit", "reason": "finished", "code": 0, "dropped": 0},
        {"kind": "exit", "reason": "finished", "code": 0, "dropped_bytes": 0},
        {"result": "score.json", "sha256": "0" * 64, "size": 2, "data": "e30="},
    ]
    text = "\n".join(json.dumps(frame) for frame in frames) + "\n"
    for raw in (text.encode(), *map(bytes.fromhex, sys.argv[2:])):
        header = struct.pack(">BxxxI", 2, len(raw))  # how the engine marks standard error in a stream of both
        for fd in (1, 2):
            os.write(fd, raw)
            os.write(fd, header + raw)
            os.write(fd, b"\r\n\x1b[2J" + raw)
    os._exit(3)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:]) if sys.argv[1] != "forge" else forge()
