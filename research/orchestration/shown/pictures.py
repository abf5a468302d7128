"""Markdown with its pictures inside, for readers that cannot open files beside it."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 4 * 2**20
"""Most that the pictures of one Markdown come to; Prefect was seen to take 3 MB and to show them."""
_PICTURE = re.compile(r"(!\[[^\]]*\]\()([^):\s]+\.(svg|png))(\))")
_TYPES = {"svg": "image/svg+xml", "png": "image/png"}


def data_uri(picture: bytes, kind: str) -> str:
    """Return a picture, `svg` or `png`, as an address that holds it."""
    return f"data:{_TYPES[kind]};base64,{base64.b64encode(picture).decode()}"


def with_pictures(markdown: str, folder: Path, most: int = MOST_BYTES) -> str:
    """Return the text with each picture of `folder` as a data URI; what is not there stays as it is.

    From the picture on that would be more than `most` bytes with those before it, the file's name stands in its place.
    """
    room = most

    def inside(found: re.Match[str]) -> str:
        nonlocal room
        before, name, kind, after = found.groups()
        path = folder / name
        if not path.is_file():
            return found[0]
        address = data_uri(path.read_bytes(), kind)
        room -= len(address)
        return f"{before}{address}{after}" if room >= 0 else f"(`{name}` is too large to be shown here)"

    return _PICTURE.sub(inside, markdown)
