"""The hash of an agent's code: which files count, and the sha256 that labels the episodes they played.

Counted are Python files and prompts (`.py`, `.md`, `.jinja`, `.j2`, `.toml`, `.yaml`, `.yml`) in the agent's folder and
below it. What begins with a dot, `__pycache__` and links are not, nor is data (`.txt`, `.json`, ...): agents write such
files while they play. Where there are more than MOST_FILES, those of the folder itself alone count.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset({".py", ".md", ".jinja", ".j2", ".toml", ".yaml", ".yml"})
MOST_FILES: Final = 500


def code_files(folder: Path) -> list[Path]:
    """Return the files of the folder that count, in the order of their paths."""
    found: list[Path] = []
    for path in _below(folder):
        found.append(path)
        if len(found) > MOST_FILES:
            return sorted(path for path in _files_of(folder) if _counts(path))[:MOST_FILES]
    return sorted(found)


def code_hash(folder: Path) -> str:
    """Return the sha256, in hex, of the paths within the folder and the contents of the files that count."""
    digest = hashlib.sha256()
    for path in code_files(folder):
        with suppress(OSError):  # it went away while it was being saved
            content = path.read_bytes()
            name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
            digest.update(b"%d:%s%d:%s" % (len(name), name, len(content), content))
    return digest.hexdigest()


def code_times(folder: Path) -> Mapping[Path, tuple[int, int]]:
    """Return time of change and size of each file that counts: a cheap look for whether something changed."""
    found = {}
    for path in code_files(folder):
        with suppress(OSError):
            known = path.stat()
            found[path] = (known.st_mtime_ns, known.st_size)
    return found


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in names:
            if _counts(path := Path(place, name)):
                yield path


def _files_of(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from folder.iterdir()


def _counts(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file() and not path.is_symlink()
