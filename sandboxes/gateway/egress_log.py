"""The log of what a sandbox asked of the Internet: lines of JSON, in two files of bounded size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

LOG_BYTES = 1 << 20
"""Size at which the file is turned over, to FILE.1: the latest lines are kept."""


class EgressLog:
    """Appends to `path`. A line that cannot be written is counted through `lost`, and stops nothing."""

    def __init__(self, path: Path, lost: Callable[[], None]) -> None:
        self._path = path
        self._lost = lost

    def write(self, entry: Mapping[str, object]) -> None:
        """Append an entry."""
        line = json.dumps(entry).encode() + b"\n"
        try:
            with open(self._path, "ab") as file:
                file.write(line)
                full = file.tell() >= LOG_BYTES
            if full:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        except OSError:
            self._lost()
