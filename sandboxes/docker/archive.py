"""Archives by which code and tasks enter a container: plain tar, packed here from names and contents.

Nobody hands over an archive, so no two readers of tar can differ about one. There is no owner, no mode of a file's own,
no time, no empty folder. The same files give the same bytes.
"""

import io
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sandboxes.spec import SandboxError

MOST_BYTES = 64 << 20
MOST_FILES = 10_000
MOST_NAME_BYTES = 512
MOST_PART_BYTES = 255
LEFT_OUT = "__pycache__"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


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
        if entry.name.startswith(".") or entry.name == LEFT_OUT:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)
