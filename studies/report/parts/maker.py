"""Who made a report: which sources, and which library drew its figures.

The same maker gives the same bytes for the same state and files. Another one may word a report otherwise, so what it
makes proves nothing about the first one's words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

_ROOM = Path(__file__).parents[2]
_SOURCES = (".py", ".jinja")


@cache
def maker() -> dict[str, str]:
    """Return the version of ajet, the hash of the sources that a report follows from, and matplotlib's version."""
    return {"ajet": version("ajet"), "sources": _sources(), "matplotlib": version("matplotlib")}


def _sources() -> str:
    """Return the beginning of the sha256 over all sources of this room, which is what a report follows from."""
    whole = hashlib.sha256()
    for path in sorted(_files()):
        whole.update(path.relative_to(_ROOM).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


def _files() -> Iterator[Path]:
    return (path for path in _ROOM.rglob("*") if path.suffix in _SOURCES)
