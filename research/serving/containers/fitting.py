"""Whether a container of the pool fits, tried once before anything is served: it uses what a study needs, and compares.

What it cannot do, or sees otherwise than this machine (an engine without root has ids of its own, one of another
machine other files), refuses the pool with one line.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from research.errors import BadPool
from research.installation.home import Home
from research.installation.tiny_model import Note
from research.isolation.client_image import base_image
from research.isolation.mode import one_line
from research.serving.containers.mounts import mounts
from research.serving.containers.pool import PLACE, ContainerPool
from research.serving.containers.sight import Sight
from sandboxes.docker.address import find
from sandboxes.docker.asking import asking
from sandboxes.docker.engine import ContainerEngine, connect

if TYPE_CHECKING:
    from docker.models.containers import Container

TRIAL_S: Final = 300.0
"""Seconds that the trial may take: it imports the largest packages, perhaps from a cold disk."""
_SAID: Final = 500


def local_engine() -> ContainerEngine:
    """Return the engine that the environment names; raises NoEngine, and BadPool where it is another machine's."""
    engine = connect(os.environ)
    if not engine.local:
        raise BadPool(
            f"expected an engine on this machine for --pool docker, as a study's container has its files and process "
            f"ids; found one elsewhere, at {engine.host}; name another in DOCKER_HOST, or use --pool process"
        )
    return engine


def fitting_pool(
    engine: ContainerEngine, place: str, home: Home, folder: Path, image: str | None, api: str, say: Note
) -> ContainerPool:
    """Return the pool whose containers are of an image, by default the base of the client image.

    Raises SandboxError where the engine has no such image, BadPool where its containers do not fit.
    """
    given = tuple(mounts(home, folder, os.environ))
    if wrong := next((each for each in given if each.count(":") > 2), None):
        raise BadPool(f"expected folders without a colon in --pool docker; found {wrong.rpartition(':')[0]}; move it")
    name, identity = base_image(engine, home, say, base=image)
    pool = ContainerPool(place, home, folder, engine, find(os.environ).url, identity, given)
    say(f"trying      a container of {name}")
    _check(pool, name, api)
    return pool


def _check(pool: ContainerPool, name: str, api: str) -> None:
    """Raise BadPool unless a container sees what this process sees, and can use it."""
    pool.prepare({**os.environ, "AJET_HOME": str(pool.home.path), "AJET_DATABASE_URL": pool.home.database})
    try:
        said = _tried(pool, api)
    finally:
        pool.forget()
    try:
        wrong = Sight.here(pool.home.path).lacks(Sight(**json.loads(said)))
    except (ValueError, TypeError):
        wrong = f"it said: {said[-_SAID:]}" if said else "it said nothing"
    if wrong is not None:
        raise BadPool(
            f"expected a container of image {name} to run this Python and to see what this machine sees; found another "
            f"({wrong}); name an image of an operating system like this one (--image NAME), or use --pool process"
        )


def _tried(pool: ContainerPool, api: str) -> str:
    """Return the last line that a container says which uses everything once."""
    with asking(pool.engine, "trying a container"):
        container = pool.engine.client.containers.create(
            pool.image, pool.arguments("-m", "research.serving.containers.sight", api), network_mode="host",
            volumes=list(pool.volumes), labels={PLACE: pool.place}, **pool.options,
        )  # fmt: skip
        try:
            return _ran(container)
        finally:
            container.remove(force=True)


def _ran(container: Container) -> str:
    from docker.errors import APIError
    from requests.exceptions import ConnectionError as NoAnswer
    from requests.exceptions import ReadTimeout

    try:
        container.start()
    except APIError as error:  # a program that is not there, a folder that cannot be mounted
        return one_line(error)
    with suppress(NoAnswer, ReadTimeout):
        container.wait(timeout=TRIAL_S)
    return container.logs().decode(errors="replace").strip().rpartition("\n")[2]
