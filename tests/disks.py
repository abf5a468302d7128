"""Disks of a test's own: small ones that can be filled, and folders that are read-only even for root.

A mount needs a namespace of its own, so what is tried runs in a process of its own, as root of that namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_OWN = ("unshare", "--user", "--map-root-user", "--mount", "--kill-child", "--pid", "--fork")
TIMEOUT_S = 300.0


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run([*_OWN, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False).returncode
        == 0
    )


needs_mounts = pytest.mark.skipif(not _can_mount(), reason="needs mounts in a user namespace")


def on_small_disk(folder: Path, megabytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python arguments` where `folder` is a disk of so many megabytes."""
    return _run('mount -t tmpfs -o size="$2" tmpfs "$1"', folder, f"{megabytes}m", *arguments)


def read_only(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python arguments` where `folder` is read-only, for root too."""
    return _run('mount --bind "$1" "$1" && mount -o remount,bind,"$2" "$1"', folder, "ro", *arguments)


def _run(mount: str, folder: Path, how: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = f'{mount} && mount -t proc proc /proc && shift 2 && exec "$@"'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AJET_HOME": str(folder)}
    return subprocess.run(
        [*_OWN, "sh", "-c", script, "sh", str(folder), how, sys.executable, *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment,
    )  # fmt: skip
