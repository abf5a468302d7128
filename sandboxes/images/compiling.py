"""Compiling files for an image with its own Python, so that a container with a read-only root starts without it.

What is compiled is bound to no time of a file (unchecked hashes): times are not kept in images.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from sandboxes.docker.engine import ContainerEngine
from sandboxes.images.base import Base, last_line, python_in
from sandboxes.images.trees import Tree, tar_of, tree_of
from sandboxes.spec import SandboxError

TIMEOUT_S = 900.0
_COMPILE = ("-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash")
_UNUSED = r"/(test|idlelib|tkinter|turtledemo|lib2to3|ensurepip|(site|dist)-packages)/"
"""Parts of a standard library that no client imports, and packages of the base's own."""


def compiled(engine: ContainerEngine, base: Base, tree: Tree) -> dict[str, bytes]:
    """Return the tree, by path from the root of an image, with what the base's Python compiles from it.

    What is no valid source stays uncompiled: packages ship such files as data.
    """
    return {**tree, **_compile(engine, base, tree, "/" + posixpath.commonpath(map(posixpath.dirname, tree)), ())}


def compiled_library(engine: ContainerEngine, base: Base) -> dict[str, bytes]:
    """Return what the base's Python compiles from its standard library, by path from the root of the image."""
    found = _compile(engine, base, {}, base.library, ("-x", _UNUSED))
    return {path: content for path, content in found.items() if re.search(_UNUSED, f"/{path}") is None}


def _compile(engine: ContainerEngine, base: Base, tree: Tree, folder: str, options: Sequence[str]) -> dict[str, bytes]:
    with python_in(engine, base.id, *_COMPILE, *options, folder) as container:
        if tree:
            container.put_archive("/", tar_of(tree))
        container.start()
        if container.wait(timeout=TIMEOUT_S)["StatusCode"] not in (0, 1):
            raise SandboxError(f"{base.name}: its Python could not compile for the image: {last_line(container)}")
        files = tree_of(b"".join(container.get_archive(folder)[0]))
    above = posixpath.dirname(folder).lstrip("/")
    return {posixpath.join(above, path): content for path, content in files.items() if path.endswith(".pyc")}
