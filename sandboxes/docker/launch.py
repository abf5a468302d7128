"""How a container is launched: its options, its input volume, its start.
A container has no network but its own loopback, no file of this machine but its exchange folder (read-only, Unix
sockets only), no capability, no way to gain a privilege, and a bound on everything it can take. What it may reach
outside is decided behind the sockets (`sandboxes.gateway.gateway`). The engine's default seccomp profile stays on:
naming none keeps it.

A controller may be killed after each step. The next one finds the container by its name and goes on from there, or
finds none and removes what was left. The caller holds the folder's lock.

Code and tasks enter as a plain tar, packed here from names and contents, so that no two readers of tar can differ about
one: no owner, no mode of a file's own, no time, no empty folder. The same files give the same bytes.
"""

import hashlib
import io
import json
import os
import re
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandboxes.docker.engine import ContainerEngine, EngineMissing, EngineRefusal, inspect, remove, wrap_errors
from sandboxes.inside.init import SHORT_LINE, TAIL_BYTES
from sandboxes.shim import write_atomic
from sandboxes.spec import NAME as SANDBOX_NAME
from sandboxes.spec import SandboxError, SandboxSpec, write_once

USER = "10001:10001"
WORKSPACE, INPUT, EXCHANGE = "/workspace", "/input", "/run/ajet"
INIT = ("python3", "-I", "-S", "/opt/ajet/init.py")
DEAD_ADDRESS = "192.0.2.1"
"""Of a block that is assigned to nobody: a container gets no resolver, and does not learn this machine's."""
GRACE_S = 5.0
"""How long a command has between being asked to end and being killed."""
SHM_BYTES = 16 << 20
INODES = 16_384
MOST_RESULT_BYTES = 64 << 20
LEAST_CPUS = 0.01
"""An engine refuses less, and reads what rounds to nothing as no limit."""
MOST_CONFIG_BYTES = 100_000
"""Linux takes an argument of 128 KiB."""
LOG_BYTES_A_LINE = 100
"""What the engine's log adds to each line."""
LOG_BYTES_A_BYTE = 6
"""What one byte of output takes in the engine's log at worst (as \\u0000)."""
MOST_BYTES = 64 << 20
MOST_FILES = 10_000
MOST_NAME_BYTES = 512
MOST_PART_BYTES = 255
_CACHE = "__pycache__"

INSTALLATION, NAME, ROLE, OF_SPEC = "ajet.installation", "ajet.name", "ajet.role", "ajet.label."

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_GPU = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
_VARIABLE = re.compile(r"(?!LD_|(?:PATH|GCONV_PATH|GLIBC_TUNABLES)$)[A-Za-z_][A-Za-z0-9_]*")
"""PID 1 starts with the variables of its command: none may choose what it runs or loads."""
CLIENT_LABEL = "ajet.client"


def check(spec: SandboxSpec) -> None:
    """Raise SandboxError unless a container can be made of `spec`."""
    for what, name in [("a sandbox's name", spec.name), *(("a result's name", name) for name in spec.results)]:
        if not SANDBOX_NAME.fullmatch(name):
            raise SandboxError(f"{what} must match {SANDBOX_NAME.pattern}; found {name!r}")
    asked, size = sum(spec.results.values()), len(init_config(spec))
    # To an engine nothing, or less, means no limit; a word for all GPUs would be more than was asked for.
    limits = {**asdict(spec.limits), **{f"result {name}": most for name, most in spec.results.items()}}
    limits |= {} if spec.time_limit_s is None else {"time_limit_s": spec.time_limit_s}
    faults = [
        (not spec.command, "expected a command to run; found none"),
        (spec.image is None, "expected the id of a client image; found none. Make one: `ajet sandbox build`"),
        (spec.tied and not spec.ports, "expected a port for what is tied to its gateway; found none"),
        (bool(spec.ports) and spec.exchange is None, "expected the exchange folder its ports lead to; found none"),
        (any("/" in socket for socket in spec.ports.values()), "expected names of sockets; found a path"),
        (asked > MOST_RESULT_BYTES, f"expected results of {MOST_RESULT_BYTES} bytes in all at most; found {asked}"),
        (size > MOST_CONFIG_BYTES, f"expected a command of {MOST_CONFIG_BYTES} bytes at most; found {size}"),
        (0 < spec.limits.cpus < LEAST_CPUS, f"expected {LEAST_CPUS} CPUs at least; found {spec.limits.cpus}"),
        (any("\0" in word for word in spec.command), "expected a command without zero bytes; found one"),
        *((not most > 0, f"expected a limit above 0 for {name}; found {most}") for name, most in limits.items()),
        *((not _GPU.fullmatch(gpu), f"expected the UUID of a GPU; found {gpu!r}") for gpu in spec.gpus),
        *(
            (not _VARIABLE.fullmatch(key), f"expected the name of a variable that is not the loader's; found {key!r}")
            for key in spec.environment
        ),
    ]
    for wrong, found in faults:
        if wrong:
            raise SandboxError(f"sandbox {spec.name}: {found}")


def container_name(name: str, installation: str) -> str:
    return f"{name}.{installation}"


def labels(spec: SandboxSpec, installation: str, role: str) -> dict[str, str]:
    own = {INSTALLATION: installation, NAME: spec.name, ROLE: role}
    return {**own, **{f"{OF_SPEC}{key}": value for key, value in spec.labels.items()}}


def init_config(spec: SandboxSpec) -> str:
    ports = {str(port): f"{EXCHANGE}/{socket}" for port, socket in spec.ports.items()}
    config = {
        "command": list(spec.command), "time_limit_s": spec.time_limit_s, "grace_s": GRACE_S,
        "output_bytes": spec.limits.output_bytes, "results": dict(spec.results), "ports": ports,
        "tied": next(iter(ports.values())) if spec.tied else None,
    }  # fmt: skip
    return json.dumps(config)


def log_bytes(spec: SandboxSpec) -> int:
    """Return a bound of the engine's log that holds whatever PID 1 writes: it would be cut at its beginning."""
    output = spec.limits.output_bytes * LOG_BYTES_A_BYTE + spec.limits.output_bytes // SHORT_LINE * LOG_BYTES_A_LINE
    tail = TAIL_BYTES * (LOG_BYTES_A_BYTE + LOG_BYTES_A_LINE)
    return output + tail + 2 * sum(spec.results.values()) + (1 << 20)


def container_options(spec: SandboxSpec, installation: str, *, volume: str | None) -> dict[str, Any]:
    from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

    limits = spec.limits
    uid, gid = USER.split(":")
    disk = f"rw,nosuid,nodev,noexec,mode=0700,uid={uid},gid={gid},nr_inodes={INODES},size={limits.workspace_bytes}"
    mounts = []
    if volume is not None:
        mounts.append(Mount(target=INPUT, source=volume, type="volume", read_only=True, no_copy=True))
    if spec.exchange is not None:
        mounts.append(Mount(target=EXCHANGE, source=str(spec.exchange.absolute()), type="bind", read_only=True))
    gpus = [DeviceRequest(device_ids=list(spec.gpus), capabilities=[["gpu", "compute", "utility"]])]
    log = {"max-size": str(log_bytes(spec)), "max-file": "1", "compress": "false", "mode": "blocking"}
    return {
        "name": container_name(spec.name, installation), "image": spec.image,
        "labels": labels(spec, installation, "container"), "entrypoint": list(INIT), "command": [init_config(spec)],
        "working_dir": WORKSPACE, "use_config_proxy": False,
        "environment": {"HOME": f"{WORKSPACE}/home", "TMPDIR": f"{WORKSPACE}/tmp", **spec.environment},
        # who it is
        "user": USER, "hostname": "sandbox", "privileged": False, "ipc_mode": "private", "cgroupns": "private",
        "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"],
        # what it reaches
        "network_mode": "none", "dns": [DEAD_ADDRESS], "dns_search": ["."], "mounts": mounts,
        "device_requests": gpus if spec.gpus else None,
        # what it may take
        "read_only": True, "tmpfs": dict.fromkeys((WORKSPACE, "/tmp"), disk), "shm_size": SHM_BYTES,
        "mem_limit": limits.memory_bytes, "memswap_limit": limits.memory_bytes,
        "nano_cpus": int(limits.cpus * 1e9), "pids_limit": limits.processes,
        "ulimits": [
            Ulimit(name="core", soft=0, hard=0),
            Ulimit(name="fsize", soft=limits.file_bytes, hard=limits.file_bytes),
            Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
        ],
        "log_config": LogConfig(type="json-file", config=log),
        # how it lives
        "init": False, "auto_remove": False, "restart_policy": {"Name": "no"}, "healthcheck": {"test": ["NONE"]},
        "stop_signal": "SIGTERM",
    }  # fmt: skip


def loader_options(spec: SandboxSpec, installation: str, volume: str) -> dict[str, Any]:
    """Return the arguments for the container through which files get into `volume`; it is never started."""
    from docker.types import Mount

    return {
        "name": f"{container_name(spec.name, installation)}.loader", "image": spec.image,
        "labels": labels(spec, installation, "loader"), "entrypoint": ["/nothing"], "user": USER, "cap_drop": ["ALL"],
        "network_mode": "none", "mounts": [Mount(target=INPUT, source=volume, type="volume", no_copy=True)],
    }  # fmt: skip


def clear(engine: ContainerEngine, name: str, installation: str) -> None:
    container = container_name(name, installation)
    remove(engine, container)
    remove(engine, f"{container}.loader")
    with suppress(EngineMissing), wrap_errors(engine, f"removing volume {container}.input"):
        engine.client.api.remove_volume(f"{container}.input", force=True)


def make(engine: ContainerEngine, installation: str, spec: SandboxSpec, folder: Path) -> None:
    """Create the container of `spec`, not started; raise SandboxError with nothing left behind if it cannot be."""
    check_engine(engine, spec)
    check_image(engine, spec)
    clear(engine, spec.name, installation)
    write_atomic(folder / "spec.json", to_json(spec))
    try:
        volume = _load(engine, installation, spec) if spec.files else None
        wanted = container_options(spec, installation, volume=volume)
        with wrap_errors(engine, f"creating sandbox {spec.name}"):
            engine.client.containers.create(**wanted)
    except EngineRefusal:
        clear(engine, spec.name, installation)
        raise


def start(engine: ContainerEngine, engine_id: str, installation: str, name: str, folder: Path) -> None:
    """Start the created container; when the engine refuses, nothing is left, and it may be launched again."""
    container = container_name(name, installation)
    record_start(engine_id, folder)
    try:
        with wrap_errors(engine, f"starting sandbox {name}"):
            engine.client.api.start(container)
    except EngineRefusal:
        clear(engine, name, installation)
        (folder / "started.json").unlink()
        raise
    with suppress(SandboxError):  # it works already; what is left of its making goes with it in the end
        remove(engine, f"{container}.loader")


def record_start(engine_id: str, folder: Path) -> None:
    write_once(folder / "started.json", {"engine": engine_id, "started_at": time.time()})


def check_engine(engine: ContainerEngine, spec: SandboxSpec) -> None:
    """Raise SandboxError unless the engine can isolate untrusted code, and has GPUs for whoever asks for some."""
    if engine.lacks and not spec.trusted:
        raise SandboxError(
            f"sandbox {spec.name}: expected an engine that isolates untrusted code; the one at {engine.host} lacks "
            + "; ".join(engine.lacks)
        )
    if spec.gpus and not engine.gpus:
        raise SandboxError(
            f"sandbox {spec.name}: expected an engine that hands GPUs to containers ({', '.join(spec.gpus)}); the one "
            f"at {engine.host} has no nvidia runtime. Install the NVIDIA Container Toolkit there, or ask for no GPU"
        )


def check_image(engine: ContainerEngine, spec: SandboxSpec) -> None:
    """Raise SandboxError unless the image is there, a client image, and has no volume, which nothing would bound."""
    try:
        with wrap_errors(engine, f"looking at image {spec.image}"):
            config: Mapping[str, Any] = engine.client.images.get(str(spec.image)).attrs["Config"] or {}
    except EngineMissing as error:
        raise SandboxError(
            f"sandbox {spec.name}: expected image {spec.image} in the engine at {engine.host}; found none. "
            "Make it: `ajet sandbox build`"
        ) from error
    if CLIENT_LABEL not in (config.get("Labels") or {}):
        raise SandboxError(
            f"sandbox {spec.name}: expected a client image (label {CLIENT_LABEL}); image {spec.image} is none. "
            "Make one upon it: `ajet sandbox build --base IMAGE`"
        )
    if config.get("Volumes"):
        raise SandboxError(
            f"sandbox {spec.name}: expected an image without volumes, for nothing bounds their size; "
            f"image {spec.image} declares {', '.join(config['Volumes'])}. Use a base image without VOLUME"
        )


def to_json(spec: SandboxSpec) -> dict[str, Any]:
    return {
        "name": spec.name, "command": list(spec.command), "environment": sorted(spec.environment),
        "labels": dict(spec.labels), "time_limit_s": spec.time_limit_s, "image": spec.image,
        "archive_sha256": hashlib.sha256(pack(spec.files)).hexdigest() if spec.files else None,
        "results": dict(spec.results), "created_at": time.time(),
    }  # fmt: skip


def _load(engine: ContainerEngine, installation: str, spec: SandboxSpec) -> str:
    packed, volume = pack(spec.files), f"{container_name(spec.name, installation)}.input"
    options = loader_options(spec, installation, volume)
    with wrap_errors(engine, f"loading the files of sandbox {spec.name}"):
        client = engine.client
        client.api.create_volume(volume, labels=labels(spec, installation, "input"))
        client.containers.create(**options)
        client.api.put_archive(options["name"], INPUT, packed)
    return volume


def find_status(engine: ContainerEngine, installation: str, name: str) -> str | None:
    """Return the status of this sandbox's container, None for none; raise SandboxError when it is somebody else's."""
    container = container_name(name, installation)
    if (found := inspect(engine, container)) is None:
        return None
    if (owner := (found["Config"]["Labels"] or {}).get(INSTALLATION)) != installation:
        raise SandboxError(
            f"sandbox {name}: expected container {container} to be of installation {installation}; found "
            f"{owner or 'no such label'}. Remove it (`docker rm -f {container}`) or use another name"
        )
    return str(found["State"]["Status"])


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of `files` (path to content); SandboxError for too many, or a path that is no plain relative one."""
    _check_bounds("input", sum(map(len, files.values())), len(files), MOST_BYTES, MOST_FILES)
    _check_names(files)
    return write_tar(files, 0o755)


def write_tar(files: Mapping[str, bytes], mode: int) -> bytes:
    """Return a tar of `files` with `mode`, and of their folders: sorted, owned by root, without times."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for parent in sorted({parent for path in files for parent in _parents(path)}):
            folder = tarfile.TarInfo(parent)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for path in sorted(files):
            member = tarfile.TarInfo(path)
            member.mode, member.size = mode, len(files[path])
            tar.addfile(member, io.BytesIO(files[path]))
    return buffer.getvalue()


def read_folder(folder: Path, *, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> dict[str, bytes]:
    """Return a folder's files by path, bar dot names and Python's caches; SandboxError for odd or too many ones."""
    if not folder.is_dir():
        raise SandboxError(f"expected a folder to send into a container; found none at {folder}")
    files: dict[str, bytes] = {}
    size = 0
    for path in _walk(folder):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            kind = "a symbolic link" if path.is_symlink() else f"what cannot be read ({error.strerror})"
            raise SandboxError(f"expected plain files to send into a container; found {kind}: {path}") from error
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SandboxError(f"expected plain files to send into a container; found something else: {path}")
            content = file.read(most_bytes + 1)
        size += len(content)
        _check_bounds(f"folder {folder}", size, len(files) + 1, most_bytes, most_files)
        files[path.relative_to(folder).as_posix()] = content
    _check_names(files)
    return files


def _check_bounds(what: str, size: int, count: int, most_bytes: int, most_files: int) -> None:
    if size > most_bytes:
        raise SandboxError(f"{what}: expected at most {most_bytes} bytes of files; found more. Send less")
    if count > most_files:
        raise SandboxError(f"{what}: expected at most {most_files} files; found more. Send fewer")


def _check_names(paths: Iterable[str]) -> None:
    files = set(paths)
    for path in files:
        parts = path.split("/")
        wrong = (
            "an absolute path" if path.startswith("/") else
            "a path with .." if ".." in parts else
            "an empty part in a path" if "" in parts or "." in parts else
            "a control character in a path" if _CONTROL.search(path) else
            "a path that is not UTF-8" if path != path.encode(errors="ignore").decode() else
            "a path too long" if len(path.encode()) > MOST_NAME_BYTES else
            "a part too long in a path" if any(len(part.encode()) > MOST_PART_BYTES for part in parts) else
            # Docker looks at the first bytes of a tar, which are a name, to see whether it is compressed.
            "a path that looks like a compressed file" if path.startswith("BZh") else None
        )  # fmt: skip
        if wrong is not None:
            raise SandboxError(f"input: expected plain relative paths; found {wrong}: {path[:200]!r}")
        for parent in _parents(path):
            if parent in files:
                raise SandboxError(f"input: expected {parent!r} to be a file or a folder; found it to be both")


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name == _CACHE:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)
