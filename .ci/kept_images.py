"""Keep images that take minutes from one engine to the next: `load FOLDER` or `save FOLDER`.

A file is written beside its name and moved there whole. What is not there, or what an engine refuses, is made anew.
Nothing here ends a run: what cannot be kept is said, and made by the next one, too.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from docker.errors import DockerException
from offline_base import REPOSITORY

from sandboxes.docker.engine import ContainerEngine, connect
from sandboxes.images.build import PACKAGES_REPOSITORY

KEPT = (REPOSITORY, PACKAGES_REPOSITORY)


def load(engine: ContainerEngine, folder: Path) -> None:
    """Give the engine the images in the folder."""
    for file in sorted(folder.glob("*.tar")):
        try:
            with file.open("rb") as archive:
                engine.client.images.load(archive)
        except (DockerException, OSError) as error:  # an OSError is also an engine that answers too late
            sys.stderr.write(f"expected an image in {file}; it cannot be loaded: {error}; it is made anew\n")
            with suppress(OSError):
                file.unlink()


def save(engine: ContainerEngine, folder: Path) -> None:
    """Write the images that the engine has and the folder has not."""
    for image in (image for name in KEPT for image in engine.client.images.list(name=name)):
        file = folder / f"{image.tags[0].replace(':', '-')}.tar"
        if file.exists():
            continue
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            with draft.open("wb") as archive:
                archive.writelines(image.save(named=image.tags[0]))
            draft.rename(file)
        except (DockerException, OSError) as error:
            sys.stderr.write(f"expected to keep an image in {file}; it cannot be written: {error}\n")
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


if __name__ == "__main__":
    {"load": load, "save": save}[sys.argv[1]](connect(os.environ), Path(sys.argv[2]))
