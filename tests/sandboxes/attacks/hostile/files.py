"""Attempts to read or change files of the machine outside."""

from __future__ import annotations

import ctypes
import os
import stat
from functools import partial
from itertools import chain

from probing import FACTS, attempt, first, looking, read, syscall, trying

READ, WRITE = os.O_RDONLY | os.O_NONBLOCK, os.O_WRONLY | os.O_NONBLOCK
INIT = ("/opt/ajet/init.py", "/opt/ajet/relay.py", "/opt/ajet", os.path.realpath("/proc/self/exe"))


secret_by_its_path = looking("a secret file of the machine, by its path", lambda: open(FACTS["secret_path"]).read())
secret_through_the_root_of_pid_1 = looking(
    "the same through /proc/1/root", lambda: open("/proc/1/root" + FACTS["secret_path"]).read()
)


@attempt("the same through the root and the working folder of every process")
def secret_through_every_process():
    processes = filter(str.isdigit, os.listdir("/proc"))
    ways = [f"/proc/{pid}/{link}/{'../' * 12}{FACTS['secret_path']}" for pid in processes for link in ("root", "cwd")]
    return first(*(partial(read, way) for way in ways))


@attempt("the same from each open descriptor, by `..`")
def secret_through_a_leaked_descriptor():
    way = "../" * 12 + FACTS["secret_path"].lstrip("/")
    return first(*(partial(os.open, way, READ, dir_fd=int(fd)) for fd in os.listdir("/proc/self/fd")))


@attempt("files by their inode number (open_by_handle_at)")
def file_by_its_inode():
    class Handle(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 8)]

    handle = Handle(8, 1, (ctypes.c_ubyte * 8)(2, 0, 0, 0, 0, 0, 0, 0))
    where = os.open("/etc/hosts", os.O_RDONLY)
    return os.listdir(syscall(304, where, ctypes.byref(handle), os.O_RDONLY))


environment_of_pid_1 = trying("the environment of PID 1", partial(read, "/proc/1/environ"))
memory_of_pid_1 = trying("the memory of PID 1", partial(open, "/proc/1/mem", "rb"))
open_files_of_pid_1 = looking("the open files of PID 1", partial(os.listdir, "/proc/1/fd"))
memory_of_the_machine = trying(
    "the machine's memory: /proc/kcore, /dev/mem, /dev/kmem, /dev/port",
    *(partial(read, path) for path in ("/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port")),
)
log_of_the_kernel = trying(
    "the kernel's log: /dev/kmsg, /proc/kmsg, syslog(2)",
    *(partial(os.open, path, READ) for path in ("/dev/kmsg", "/proc/kmsg")),
    (103, 3, ctypes.create_string_buffer(4096), 4096),
)
keyrings = trying(
    "the kernel's keyrings: /proc/keys, keyctl(2), add_key(2)",
    partial(read, "/proc/keys"), (250, 0, -3, 1), (248, b"user", b"x", b"y", 1, -3),
)  # fmt: skip


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


USUAL = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
other_devices = looking(
    "other devices than null, zero, full, random, urandom, tty and terminals",
    lambda: [name for name in {*os.listdir("/dev")} - USUAL if stat.S_ISCHR(os.lstat(f"/dev/{name}").st_mode)],
)


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


sysrq_trigger = trying(
    "the trigger of the kernel (/proc/sysrq-trigger), opened to write",
    partial(os.open, "/proc/sysrq-trigger", os.O_WRONLY),
)
core_pattern = trying(
    "the program that the kernel starts at a crash (/proc/sys/kernel/core_pattern), opened to write",
    partial(os.open, "/proc/sys/kernel/core_pattern", os.O_WRONLY),
)


@attempt("anything in /sys or /proc/sys, opened to write")
def writable_kernel_settings():
    tops = chain(os.walk("/sys"), os.walk("/proc/sys"))
    return first(*(partial(os.open, f"{folder}/{name}", WRITE) for folder, _, names in tops for name in names))


@attempt("the release agent of a control group: mount cgroup, or find one to write to")
def release_agent():
    for folder, _, names in os.walk("/sys/fs/cgroup"):
        if "release_agent" in names and os.access(f"{folder}/release_agent", os.W_OK):
            return folder
    os.makedirs("/tmp/cgroup", exist_ok=True)
    return syscall(165, b"none", b"/tmp/cgroup", b"cgroup", 0, b"memory") == 0


@attempt("write anywhere but /workspace, /tmp, /dev/shm and the message queues of one's own (/dev/mqueue)")
def writable_places():
    given = ("/proc", "/sys", "/workspace", "/tmp", "/dev/shm", "/dev/mqueue")
    others = [folder for folder, _, _ in os.walk("/") if not folder.startswith(given)]
    return first(*(partial(os.open, f"{folder}/.probe", os.O_WRONLY | os.O_CREAT, 0o600) for folder in others))


@attempt("change what came in: write to, rename, delete or chmod files of /input")
def change_the_input():
    name = f"/input/{next(iter(os.listdir('/input')))}"
    return first(
        partial(os.open, name, WRITE), partial(os.rename, name, "/input/other"), partial(os.unlink, name),
        partial(os.chmod, name, 0o777),
    )  # fmt: skip


change_the_init = trying(
    "change the init: write to /opt/ajet or the Python that runs it",
    *(partial(os.chmod, path, 0o777) for path in INIT),
    *(partial(os.open, path, WRITE) for path in INIT),
)
change_names = trying(
    "change names: write to /etc/hosts, /etc/resolv.conf, /etc/hostname, /etc/passwd",
    *(partial(os.open, f"/etc/{name}", WRITE) for name in ("hosts", "resolv.conf", "hostname", "passwd")),
)


@attempt("what of the machine is mounted here, by the mount table")
def unexpected_mounts():
    expected = {"/", "/proc", "/dev", "/dev/pts", "/sys", "/dev/mqueue", "/dev/shm", "/workspace", "/tmp", "/input",
                "/run/ajet", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname"}  # fmt: skip
    found = [line.split()[4] for line in open("/proc/self/mountinfo")]
    return [place for place in found if place not in expected and not place.startswith(("/proc/", "/sys/"))]


@attempt("the exchange folder of another run, by its path and by `..` of one's own")
def exchange_of_another_run():
    other = FACTS["other_exchange"]
    paths = (other, f"/run/ajet/../{os.path.basename(other)}", f"/run/ajet/{'../' * 12}{other}")
    return first(*(partial(os.listdir, path) for path in paths))


change_the_exchange = trying(
    "change one's exchange folder: add, replace or delete a socket",
    partial(os.mkfifo, "/run/ajet/x"), partial(os.unlink, "/run/ajet/server.sock"),
    partial(os.symlink, "/etc/passwd", "/run/ajet/link"), partial(os.chmod, "/run/ajet", 0o777),
    partial(os.rename, "/run/ajet/server.sock", "/run/ajet/old"),
)  # fmt: skip


files_of_the_exchange = looking(
    "other files than sockets in the exchange folder",
    lambda: [name for name in os.listdir("/run/ajet") if not stat.S_ISSOCK(os.lstat(f"/run/ajet/{name}").st_mode)],
)


@attempt("shared memory, System V and POSIX, of the machine")
def shared_memory_of_the_machine():
    if names := os.listdir("/dev/shm"):
        return names
    return open("/proc/sysvipc/shm").read().splitlines()[1:]
