"""Derived images: a client image with the packages that a user's agent needs, brought from a requirements.txt.

Only plain requirements are taken and only built packages: nothing of a package runs on this machine. Equal lines over
an equal parent are the same image, also when a newer version has appeared since: pin what must not vary.
"""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.base import Base, identity, inspect
from sandboxes.images.compiling import compiled
from sandboxes.images.light import PLACE, Image, Note, build
from sandboxes.images.packages import resolve
from sandboxes.images.trees import Tree, digest, under
from sandboxes.spec import SandboxError


def derived_image(engine: ContainerEngine, parent: Image, requirements: str, cache: Path, *, note: Note) -> Image:
    """Return `parent` with what the text of a requirements.txt names; the parent itself when it names nothing."""
    wanted = parse(requirements)
    if not wanted:
        return parent
    content = digest(parent.id, "\n".join(wanted))
    tag = f"ajet-client-extra:{content[:16]}"
    if (present := identity(engine, tag)) is not None:
        return Image(present, tag, parent.base)
    base = inspect(engine, parent.id, cache)
    what = f"{len(wanted)} requirement{'s'[: len(wanted) > 1]}"
    note(f"fetching what {what} need for Python {base.python}")
    files = compiled(engine, base, under(f"{PLACE}/extra", _extra(engine, parent, wanted, base)))
    note(f"building the image of {what} over {parent.tag}")
    made = build(engine, files, parent.tag, tag, {"ajet.derived": content, "ajet.parent": parent.id})
    return Image(made, tag, parent.base)


def parse(requirements: str) -> tuple[str, ...]:
    """Return the requirements of a requirements.txt, sorted; raise SandboxError at a line that is none."""
    found = set()
    for number, line in enumerate(requirements.splitlines(), start=1):
        text = line.split(" #")[0].strip()
        if text and not text.startswith("#"):
            found.add(_requirement(number, text))
    return tuple(sorted(found))


def _requirement(number: int, text: str) -> str:
    try:
        wanted = Requirement(text)
    except InvalidRequirement as error:
        raise SandboxError(f"line {number} of the requirements: {_EXPECTED}; found {text[:80]!r}") from error
    if wanted.url is not None:
        raise SandboxError(f"line {number} of the requirements: {_EXPECTED}; found an address ({wanted.name} @ ...)")
    return str(wanted)


_EXPECTED = "expected a name with versions, as `numpy>=2`, since only built packages of an index are taken"


def _extra(engine: ContainerEngine, parent: Image, wanted: tuple[str, ...], base: Base) -> Tree:
    """Return the packages that the requirements add to those of the client."""
    pins = str(engine.client.images.get(parent.id).labels.get("ajet.requirements", "")).split()
    own: set[str] = {canonicalize_name(Requirement(pin).name) for pin in pins}
    return without(resolve(wanted, pins, base), own)


def without(tree: Tree, names: set[str]) -> Tree:
    """Return the tree without the installed files of the distributions `names`, as their RECORDs list them."""
    dropped: set[str] = set()
    for path, content in tree.items():
        folder, _, file = path.partition("/")
        if file == "RECORD" and canonicalize_name(folder.removesuffix(".dist-info").rpartition("-")[0]) in names:
            dropped |= {line.split(",")[0] for line in content.decode().splitlines()}
    return {path: content for path, content in tree.items() if path not in dropped}
