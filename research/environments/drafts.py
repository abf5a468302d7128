"""Folders that are whole or not there: filled under another name, then renamed. What killed processes left is swept."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from research.installation.home import Home, home_error

_PREFIX: Final = ".draft-"
_ABANDONED_S: Final = 24 * 3600.0
"""Far longer than anybody fills one."""


@contextmanager
def draft_in(parent: Path, home: Home) -> Iterator[Path]:
    """Yield a fresh folder in `parent`, which is gone afterwards unless it was placed; HomeError where none can be."""
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(parent)
        draft = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise home_error(home.path, error) from error


def place(draft: Path, folder: Path) -> None:
    """Give a draft its name, unless somebody else was faster: what has the same name holds the same."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def take_away(folder: Path, home: Home) -> None:
    """Remove a folder that was placed: it is gone at once, and whole until then; raises HomeError."""
    try:
        gone = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder.parent))
        folder.rename(gone)
    except OSError as error:
        raise home_error(home.path, error) from error
    shutil.rmtree(gone, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for draft in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else sweeps too
            if time.time() - draft.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(draft, ignore_errors=True)
