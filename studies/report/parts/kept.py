"""What becomes of a report that somebody changed by hand, once another one is built: it is kept, under another name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from studies.report.parts.files import write_bytes

MARKDOWN: Final = "report.md"
HTML: Final = "report.html"
PAGES: Final = (MARKDOWN, HTML)


def written(payload: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the sha256 of each file of a report by its path, as a `report.built` says it; figures where it does."""
    if payload is None:
        return {}
    entries = [payload["markdown"], payload["html"], *payload.get("figures", ())]
    return {str(entry["path"]): str(entry["sha256"]) for entry in entries}


def keep_edited(
    payload: Mapping[str, Any] | None, pages: Mapping[str, str], folder: Path
) -> tuple[tuple[str, str], ...]:
    """Copy pages aside that are neither what `report.built` says nor what is about to be written.

    Return their names, each with that of its copy; the page stays until the new one is there whole. Raises OSError.
    """
    known = written(payload)
    return tuple(
        (name, _kept(path, path.read_bytes()))
        for name in PAGES
        if (path := folder / name).exists()
        and hashlib.sha256(path.read_bytes()).hexdigest() not in (known.get(name), _sha256(pages[name]))
    )


def _kept(path: Path, data: bytes) -> str:
    """Return the name of a page's copy, which is there already where a disk was full the time before."""
    copy = next(other for other in _names(path) if not other.exists() or other.read_bytes() == data)
    return copy.name if copy.exists() else write_bytes(copy, data).name


def _names(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.stem}.kept-{number}{path.suffix}") for number in count(1))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
