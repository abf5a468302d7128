"""Trees of files as values: what goes into an image, in an order and with owners and times that never vary.

Equal trees are equal tars, byte for byte. A tree holds regular files only, by relative path; whether a file may be
executed does not matter to what is run through `python3`, so it is not kept.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

Tree = Mapping[str, bytes]
"""Contents by relative path, with `/` between its parts."""

_COMPILED = "/__pycache__/"


def tar_of(tree: Tree) -> bytes:
    """Return the tree as a tar: sorted, owned by root, readable by all, without times."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder in _folders(tree):
            tar.addfile(_entry(folder, tarfile.DIRTYPE, 0o755))
        for path in sorted(tree):
            entry = _entry(path, tarfile.REGTYPE, 0o644)
            entry.size = len(tree[path])
            tar.addfile(entry, io.BytesIO(tree[path]))
    return out.getvalue()


def tree_of(data: bytes) -> dict[str, bytes]:
    """Return the regular files of a tar that we made ourselves or had a container of ours make."""
    tree: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for entry in tar:
            if entry.isfile() and (file := tar.extractfile(entry)) is not None:
                tree[entry.name] = file.read()
    return tree


def tree_of_folder(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder, without what an interpreter compiled from them."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    named = ((path.relative_to(folder).as_posix(), path) for path in found)
    return {name: path.read_bytes() for name, path in named if _COMPILED not in f"/{name}"}


def under(prefix: str, tree: Tree) -> dict[str, bytes]:
    """Return the tree moved into the folder `prefix`."""
    return {f"{prefix}/{path}": content for path, content in tree.items()}


def digest(*parts: str | Tree) -> str:
    """Return a hash of texts and trees in which no two different lists of parts read the same."""
    whole = hashlib.sha256()
    for part in parts:
        files = {"": part.encode()} if isinstance(part, str) else part
        whole.update(f"{len(files)}\n".encode())
        for path in sorted(files):
            whole.update(f"{len(path.encode())} {path} {len(files[path])}\n".encode() + files[path])
    return whole.hexdigest()


def _folders(tree: Tree) -> list[str]:
    parents = (path.split("/")[:-1] for path in tree)
    return sorted({"/".join(parts[: depth + 1]) for parts in parents for depth in range(len(parts))})


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = kind, mode, 0
    return entry
