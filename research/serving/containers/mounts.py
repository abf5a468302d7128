"""Which folders of this machine a sitting's container is given, each at its own path.

Written: the installation's folder, and what it links to. Read: this Python with its packages, the sources of ajet and
of packages that bring something, the folder of relative paths, and what W&B's client reads of whoever is logged in.
So the image brings an operating system alone, and the container runs the very version that the worker was started with.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from research.environments.reference import GROUP as ENVIRONMENTS
from research.installation.home import Home
from research.tracking.login import login_places
from studies.metrics.packages import GROUP as METRICS
from swarm.entry_points import BACKENDS, PLANNERS

_OURS = ("research", "swarm", "sandboxes", "studies")
_SHARED_WITH_IMAGES = Path("/usr")
"""Where an operating system keeps a Python of its own among everything else."""


def mounts(home: Home, folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the mounts as docker names them, `PATH:PATH:MODE`; `folder` is the one of relative paths."""
    written = _outermost(_with_targets([home.path, *_linked(home.path)]))
    read = _outermost(_with_targets([*interpreter(), *_sources(), folder, *login_places(environ).values()]))
    return [*(f"{path}:{path}:ro" for path in read if path not in written), *(f"{path}:{path}:rw" for path in written)]


def interpreter() -> list[Path]:
    """Return where this Python is: of one among an operating system's files nothing but its own."""
    own = [Path(sys.prefix)]
    if Path(sys.base_prefix) != _SHARED_WITH_IMAGES:
        return [*own, Path(sys.base_prefix)]
    paths = sysconfig.get_paths()
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    return [path for path in own if path != _SHARED_WITH_IMAGES] + [program, Path(paths["stdlib"])]


def _sources() -> Iterator[Path]:
    """Yield the folders of modules: those searched for any, ours, and those of packages with entry points of ours."""
    yield from (path for path in map(Path, sys.path) if path.is_absolute() and path.is_dir())
    brought = (point for group in (BACKENDS, ENVIRONMENTS, METRICS, PLANNERS) for point in entry_points(group=group))
    for name in {*_OURS, *(point.module.split(".")[0] for point in brought)}:
        if (spec := find_spec(name)) is not None and spec.origin is not None:
            module = Path(spec.origin)
            yield module.parent if module.name == "__init__.py" else module


def _linked(folder: Path) -> Iterator[Path]:
    yield from (path.resolve() for path in folder.iterdir() if path.is_symlink() and path.is_dir())


def _with_targets(paths: Iterable[Path]) -> set[Path]:
    """Return the paths, and where links of theirs lead: a link among what is mounted is followed inside."""
    return {each for path in paths for each in (Path(os.path.abspath(path)), path.resolve())}


def _outermost(paths: set[Path]) -> list[Path]:
    """Return the paths that lie in none of the others, sorted."""
    return sorted(path for path in paths if not paths & set(path.parents))
