"""Attempts to take more of the machine than was given. Each writes what it got to /workspace/results/report.json."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import sys
import time

MIB = 1 << 20
WRITABLE = ("/workspace", "/tmp", "/dev/shm")


def report(**found):
    os.makedirs("/workspace/results", exist_ok=True)
    with open("/workspace/results/report.json", "w") as file:
        json.dump(found, file)


def fork_bomb():
    """Fork until the kernel refuses, again and again, from every process there is."""
    children = 0
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        try:
            if os.fork() == 0:
                signal.alarm(60)
                while True:
                    try:
                        os.fork()
                    except OSError:
                        time.sleep(0.2)
            children += 1
        except OSError:
            break
    alive = sum(name.isdigit() for name in os.listdir("/proc"))
    report(forked=children, alive=alive)


def anonymous():
    blocks = []
    while True:
        blocks.append(b"x" * MIB)


def shared_mapping():
    area = mmap.mmap(-1, 4096 * MIB)
    while True:
        area.write(b"x" * MIB)


def memory_file():
    fd = os.memfd_create("bomb")
    while True:
        os.write(fd, b"x" * MIB)


def memory_files():
    while True:
        fd = os.memfd_create("bomb")
        kept.append(fd)
        for _ in range(16):
            os.write(fd, b"x" * MIB)


def system_v():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    while True:
        segment = libc.shmget(0, 32 * MIB, 0o1600)
        if segment < 0:
            raise OSError(ctypes.get_errno(), "shmget")
        ctypes.memset(libc.shmat(segment, None, 0), 1, 32 * MIB)


def socket_buffers():
    """Fill the buffers of Unix sockets, in as many processes as need be."""
    while True:
        try:
            left, right = socket.socketpair()
        except OSError:
            if os.fork():
                signal.pause()
            continue  # a child has descriptors of its own once it closes those
        kept.append((left, right))
        for end in (left, right):
            end.setblocking(False)
            try:
                while True:
                    end.send(b"x" * 65536)
            except BlockingIOError:
                pass


def pipe_buffers():
    import fcntl

    while True:
        reader, writer = os.pipe()
        kept.append((reader, writer))
        os.set_blocking(writer, False)
        fcntl.fcntl(writer, 1031, MIB)
        try:
            while True:
                os.write(writer, b"x" * 65536)
        except BlockingIOError:
            pass


def page_tables():
    while True:
        area = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        kept.append(area)
        for place in range(0, 1 << 30, 2 * MIB):
            area[place]


def inodes():
    for place in WRITABLE:
        for number in range(10_000_000):
            try:
                os.mkdir(f"{place}/{number}")
            except OSError as error:
                said[place] = error.errno
                break


def one_at_a_time(names):
    """Set off bombs one after another; say how each child ended."""
    ends = {}
    for name in names:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(20)
                globals()[name]()
            except BaseException as error:
                os._exit(100 if isinstance(error, MemoryError) else 101)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ends[name] = os.waitstatus_to_exitcode(status)
    report(ends=ends)


def fill_the_disk():
    """Write wherever one can until nothing more is taken."""
    filled = {}
    for place in (*WRITABLE, "/input", "/run/ajet", "/", "/var/tmp", "/opt/ajet", "/dev", "/etc"):
        filled[place] = _fill(place)
    for place in WRITABLE:
        for name in os.listdir(place):
            os.path.isfile(f"{place}/{name}") and os.unlink(f"{place}/{name}")
    report(filled=filled, sparse=_sparse(), core=_core())


def _fill(place):
    written = 0
    for number in range(1000):
        try:
            with open(f"{place}/filler{number}", "wb", buffering=0) as file:
                while True:
                    written += file.write(b"\0" * MIB)
        except OSError as error:
            if error.errno == 27:  # this file is as large as one may be
                continue
            return written
    return written


def _sparse():
    try:
        with open("/workspace/sparse", "wb") as file:
            file.truncate(1 << 40)
    except OSError as error:
        return error.errno
    return 0


def _core():
    os.chdir("/workspace")
    child = os.fork()
    if child == 0:
        os.abort()
    _, status = os.waitpid(child, 0)
    return os.WCOREDUMP(status) or [name for name in os.listdir("/workspace") if "core" in name]


def shout(pattern, total):
    """Write `total` bytes to standard output, and some to standard error."""
    block = pattern * (MIB // len(pattern))
    for number in range(total // MIB):
        os.write(2 if number % 16 == 0 else 1, block)


def main(what, *rest):
    if what == "memory":
        one_at_a_time(rest)
    elif what == "shout":
        shout(rest[0].encode().decode("unicode_escape").encode("latin-1"), int(rest[1]))
    else:
        globals()[what]()


kept = []
said = {}
if __name__ == "__main__":
    for number in (signal.SIGXFSZ, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    main(*sys.argv[1:])
