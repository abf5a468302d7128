"""Keep the base image made of this machine's Debian from one engine to the next: `load FILE` or `save FILE`.

A file is written beside its name and moved there whole. Where there is none, or one that the engine refuses, nothing is
loaded, and the image is made anew.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from docker.errors import DockerException

from sandboxes.engine import Engine, connect
from sandboxes.offline_base import REPOSITORY


def load(engine: Engine, file: Path) -> None:
    """Give the engine the image in the file."""
    if not file.exists():
        return
    try:
        with file.open("rb") as archive:
            engine.client.images.load(archive)
    except DockerException as error:
        sys.stderr.write(f"expected a base image in {file}; the engine refuses it: {error}; it is made anew\n")
        file.unlink()


def save(engine: Engine, file: Path) -> None:
    """Write the engine's base image to the file, unless it is there or the engine has none."""
    images = engine.client.images.list(name=REPOSITORY)
    if file.exists() or not images:
        return
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with draft.open("wb") as archive:
            archive.writelines(images[0].save(named=images[0].tags[0]))
        draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)


if __name__ == "__main__":
    {"load": load, "save": save}[sys.argv[1]](connect(os.environ), Path(sys.argv[2]))
