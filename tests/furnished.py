"""Folders of installations that find what each would make anew: tiny models, and an empty database of Prefect's.

Both are made once for all tests of a run, by whichever process comes first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from filelock import FileLock


def furnish(home: Path, factory: pytest.TempPathFactory) -> None:
    """Make an installation's folder, whose models all tests share, and whose Prefect server has its tables."""
    home.mkdir(mode=0o700)
    shared = factory.getbasetemp().parent
    models = shared / "models-of-all-workers"
    models.mkdir(exist_ok=True)
    (home / "models").symlink_to(models)
    (home / "prefect").mkdir(mode=0o700)
    shutil.copy(_migrated(shared / f"prefect-{version('prefect')}"), home / "prefect")


def _migrated(folder: Path) -> Path:
    """Return a database on which all of Prefect's migrations ran, which take as long as its server's start.

    It is this folder's own, whatever database the environment names: nobody's else is migrated.
    """
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not (database := folder / "prefect.db").exists():
            scratch = folder.with_name(f"{folder.name}.scratch")
            scratch.mkdir(exist_ok=True)
            subprocess.run(
                [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"],
                env={**mine, "PREFECT_HOME": str(scratch), "DO_NOT_TRACK": "1"},
                stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=400,
            )  # fmt: skip
            scratch.rename(folder)
    return database
