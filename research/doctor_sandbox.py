"""What `ajet doctor` says of sandboxes: the engine that answers, its client image, and what a study would use.

It looks and makes nothing: the first study makes a client image where none of today's sources is there.
"""

from __future__ import annotations

from collections.abc import Mapping

from research.client_image import last_image
from research.errors import BadSandbox
from research.findings import Check, Level
from research.home import Home
from research.sandboxing import Kind, asked_for, one_line
from sandboxes import SandboxError
from sandboxes.engine import Engine, connect
from sandboxes.images import identity

_AS_PROCESSES = "clients and evaluators run as processes; generated code needs Docker"


def sandbox_checks(environ: Mapping[str, str]) -> list[Check]:
    """Return what is found of the engine, the image, and the choice between them and processes."""
    try:
        kind = asked_for(None, environ)
    except BadSandbox as error:
        return [Check("sandbox", "missing", "unusable", str(error))]
    try:
        engine = connect(environ)
    except SandboxError as error:
        level: Level = "missing" if kind == "docker" else "optional"
        return [Check("docker", level, "no engine answers", one_line(error)), _choice(kind, engine=None)]
    try:
        return [_engine(engine), _image(engine, Home.locate(environ)), _choice(kind, engine)]
    finally:
        engine.client.close()


def _engine(engine: Engine) -> Check:
    found = f"Docker Engine {engine.version} at {engine.host}" + ("" if engine.local else ", through a tunnel")
    if engine.lacks:
        lacks = "; ".join(engine.lacks)
        return Check("docker", "optional", found, f"generated code will not run on it, for it lacks {lacks}")
    return Check("docker", "ok", found)


def _image(engine: Engine, home: Home) -> Check:
    image = last_image(home)
    try:
        if image is not None and identity(engine, image) is not None:
            return Check("client image", "ok", image[:19])
    except SandboxError as error:
        return Check("client image", "optional", one_line(error), "look at the engine's own log")
    remedy = "the first study makes it, or: ajet sandbox build"
    return Check("client image", "optional", "none yet" if image is None else f"{image[:19]} is gone", remedy)


def _choice(kind: Kind | None, engine: Engine | None) -> Check:
    used = kind or ("docker" if engine is not None else "process")
    why = "AJET_SANDBOX" if kind is not None else "an engine answers" if engine is not None else "no engine answers"
    if used == "docker":
        return Check("sandbox", "ok", f"docker ({why}): clients and evaluators run in containers without a network")
    return Check("sandbox", "optional", f"process ({why}): not isolated", _AS_PROCESSES)
