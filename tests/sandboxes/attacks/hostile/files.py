"""Attempts to read or change files of the machine outside."""

from __future__ import annotations

import ctypes
import os
import stat
from itertools import chain

from probing import FACTS, attempt, syscall


@attempt("a secret file of the machine, by its path")
def secret_by_its_path():
    return open(FACTS["secret_path"]).read()


@attempt("the same through /proc/1/root")
def secret_through_the_root_of_pid_1():
    return open("/proc/1/root" + FACTS["secret_path"]).read()


@attempt("the same through the root and the working folder of every process")
def secret_through_every_process():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for link in ("root", "cwd"):
            try:
                return open(f"/proc/{pid}/{link}/{'../' * 12}{FACTS['secret_path']}").read()
            except OSError:
                pass


@attempt("the same from each open descriptor, by `..`")
def secret_through_a_leaked_descriptor():
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            up = os.open("../" * 12 + FACTS["secret_path"].lstrip("/"), os.O_RDONLY, dir_fd=fd)
        except OSError:
            continue
        return os.read(up, 100)


@attempt("files by their inode number (open_by_handle_at)")
def file_by_its_inode():
    class Handle(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 8)]

    handle = Handle(8, 1, (ctypes.c_ubyte * 8)(2, 0, 0, 0, 0, 0, 0, 0))
    where = os.open("/etc/hosts", os.O_RDONLY)
    return os.listdir(syscall(304, where, ctypes.byref(handle), os.O_RDONLY))


@attempt("the environment of PID 1")
def environment_of_pid_1():
    return open("/proc/1/environ", "rb").read()


@attempt("the memory of PID 1")
def memory_of_pid_1():
    return open("/proc/1/mem", "rb")


@attempt("the open files of PID 1")
def open_files_of_pid_1():
    return os.listdir("/proc/1/fd")


@attempt("the machine's memory: /proc/kcore, /dev/mem, /dev/kmem, /dev/port")
def memory_of_the_machine():
    for path in ("/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port"):
        try:
            if content := open(path, "rb").read(4):
                return path, content
        except OSError:
            pass


@attempt("the kernel's log: /dev/kmsg, /proc/kmsg, syslog(2)")
def log_of_the_kernel():
    for path in ("/dev/kmsg", "/proc/kmsg"):
        try:
            return path, os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            pass
    return syscall(103, 3, ctypes.create_string_buffer(4096), 4096)


@attempt("the kernel's keyrings: /proc/keys, keyctl(2), add_key(2)")
def keyrings():
    try:
        if content := open("/proc/keys").read():
            return content
    except OSError:
        pass
    return syscall(250, 0, -3, 1) or syscall(248, b"user", b"x", b"y", 1, -3)


@attempt("a block device in /dev or /sys/block, opened or made anew with mknod(2)")
def block_device():
    for name in os.listdir("/dev"):
        if stat.S_ISBLK(os.lstat(f"/dev/{name}").st_mode):
            return name
    for line in open("/proc/partitions").read().splitlines()[2:]:
        major, minor, _, name = line.split()
        try:
            os.mknod(f"/workspace/{name}", stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
            return name, open(f"/workspace/{name}", "rb").read(1)
        except OSError:
            pass


@attempt("other devices than null, zero, full, random, urandom, tty and terminals")
def other_devices():
    usual = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    return [name for name in os.listdir("/dev") if stat.S_ISCHR(os.lstat(f"/dev/{name}").st_mode)
            and name not in usual]  # fmt: skip


@attempt("the engine's socket, containerd's, or any other socket but those of the exchange folder")
def sockets_of_the_engine():
    found = []
    for folder, _, names in chain(*(os.walk(f"/{top}") for top in {*os.listdir("/")} - {"proc", "sys", "usr"})):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode) and folder != "/run/ajet":
                    found.append(path)
            except OSError:
                pass
    return found


@attempt("the trigger of the kernel (/proc/sysrq-trigger), opened to write")
def sysrq_trigger():
    return os.open("/proc/sysrq-trigger", os.O_WRONLY)


@attempt("the program that the kernel starts at a crash (/proc/sys/kernel/core_pattern), opened to write")
def core_pattern():
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


@attempt("anything in /sys or /proc/sys, opened to write")
def writable_kernel_settings():
    for top in ("/sys", "/proc/sys"):
        for folder, _, names in os.walk(top):
            for name in names:
                try:
                    return folder, name, os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK)
                except OSError:
                    pass


@attempt("the release agent of a control group: mount cgroup, or find one to write to")
def release_agent():
    for folder, _, names in os.walk("/sys/fs/cgroup"):
        if "release_agent" in names and os.access(f"{folder}/release_agent", os.W_OK):
            return folder
    os.makedirs("/tmp/cgroup", exist_ok=True)
    return syscall(165, b"none", b"/tmp/cgroup", b"cgroup", 0, b"memory") == 0


@attempt("write anywhere but /workspace, /tmp, /dev/shm and the message queues of one's own (/dev/mqueue)")
def writable_places():
    for folder, _, _ in os.walk("/"):
        if folder.startswith(("/proc", "/sys", "/workspace", "/tmp", "/dev/shm", "/dev/mqueue")):
            continue
        try:
            os.close(os.open(f"{folder}/.probe", os.O_WRONLY | os.O_CREAT, 0o600))
            return folder
        except OSError:
            pass


@attempt("change what came in: write to, rename, delete or chmod files of /input")
def change_the_input():
    name = f"/input/{next(iter(os.listdir('/input')))}"
    for change in (lambda: os.open(name, os.O_WRONLY), lambda: os.rename(name, "/input/other"),
                   lambda: os.unlink(name), lambda: os.chmod(name, 0o777)):  # fmt: skip
        try:
            change()
        except OSError:
            continue
        return name


@attempt("change the init: write to /opt/ajet or the Python that runs it")
def change_the_init():
    for path in ("/opt/ajet/init.py", "/opt/ajet/relay.py", "/opt/ajet", os.path.realpath("/proc/self/exe")):
        try:
            os.chmod(path, 0o777)
            return path
        except OSError:
            pass
        try:
            return os.open(path, os.O_WRONLY)
        except OSError:
            pass


@attempt("change names: write to /etc/hosts, /etc/resolv.conf, /etc/hostname, /etc/passwd")
def change_names():
    for path in ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/etc/passwd"):
        try:
            return os.open(path, os.O_WRONLY)
        except OSError:
            pass


@attempt("what of the machine is mounted here, by the mount table")
def unexpected_mounts():
    expected = {"/", "/proc", "/dev", "/dev/pts", "/sys", "/dev/mqueue", "/dev/shm", "/workspace", "/tmp", "/input",
                "/run/ajet", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname"}  # fmt: skip
    found = [line.split()[4] for line in open("/proc/self/mountinfo")]
    return [place for place in found if place not in expected and not place.startswith(("/proc/", "/sys/"))]


@attempt("the exchange folder of another run, by its path and by `..` of one's own")
def exchange_of_another_run():
    for path in (FACTS["other_exchange"], f"/run/ajet/../{os.path.basename(FACTS['other_exchange'])}",
                 f"/run/ajet/{'../' * 12}{FACTS['other_exchange']}"):  # fmt: skip
        try:
            return path, os.listdir(path)
        except OSError:
            pass


@attempt("change one's exchange folder: add, replace or delete a socket")
def change_the_exchange():
    for change in (lambda: os.mkfifo("/run/ajet/x"), lambda: os.unlink("/run/ajet/server.sock"),
                   lambda: os.symlink("/etc/passwd", "/run/ajet/link"), lambda: os.chmod("/run/ajet", 0o777),
                   lambda: os.rename("/run/ajet/server.sock", "/run/ajet/old")):  # fmt: skip
        try:
            change()
        except OSError:
            continue
        return "changed"


@attempt("other files than sockets in the exchange folder")
def files_of_the_exchange():
    return [name for name in os.listdir("/run/ajet") if not stat.S_ISSOCK(os.lstat(f"/run/ajet/{name}").st_mode)]


@attempt("shared memory, System V and POSIX, of the machine")
def shared_memory_of_the_machine():
    if names := os.listdir("/dev/shm"):
        return names
    return open("/proc/sysvipc/shm").read().splitlines()[1:]
