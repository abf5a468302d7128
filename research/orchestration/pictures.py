"""A report's Markdown with its pictures inside, for readers that cannot open files beside it."""

from __future__ import annotations

import base64
import re
from pathlib import Path

_PICTURE = re.compile(r"(!\[[^\]]*\]\()([^):\s]+\.(svg|png))(\))")
_TYPES = {"svg": "image/svg+xml", "png": "image/png"}


def with_pictures(markdown: str, folder: Path) -> str:
    """Return the text with each picture of `folder` as a data URI; what is not there stays as it is."""

    def inside(found: re.Match[str]) -> str:
        before, name, kind, after = found.groups()
        path = folder / name
        if not path.is_file():
            return found[0]
        return f"{before}data:{_TYPES[kind]};base64,{base64.b64encode(path.read_bytes()).decode()}{after}"

    return _PICTURE.sub(inside, markdown)
