"""Files that survive a kill: written whole or not at all, and named by what they hold.

What is written here is JSON by the records' one canonical form, so that equal values are equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from studies.records.base import JsonValue, canonical


def write_json(path: Path, value: JsonValue, *, durable: bool = True) -> str:
    """Write the canonical JSON of `value` under a temporary name and rename it; return the sha256 of the bytes.

    `durable` makes it survive a power cut as well; folders on the way are made. Raises OSError.
    """
    return write_bytes(path, canonical(value).encode(), durable=durable)


def write_bytes(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o666) -> str:
    """Write `data` as `write_json` writes a value, for whom `mode` and the umask let read it; return its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, mode)) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:  # half of it would stay on a disk that is full
        draft.unlink(missing_ok=True)
        raise
    return hashlib.sha256(data).hexdigest()


def read_json(path: Path) -> Any | None:
    """Return the JSON value in `path`, or None when there is no such file; raises ValueError for other content."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
