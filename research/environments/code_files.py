"""The files of an environment's code: all that is copied, and which of them are records that no client gets.

The records of a folder are its files `tasks*.json` and `tasks*.jsonl`, and whatever lies in a folder called `tasks` or
`hidden`, but for the modules of a package `tasks`: the harness reads them when the environment is brought, and a
client's copy is without them. So it is without the file of tasks that a reward function judges, whatever its name. What
begins with a dot stays where it is, and so do Python's caches.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from typing import Final

from research.environments.reference import Reference
from research.errors import BadEnvironment
from sandboxes import SandboxError
from sandboxes.docker.archive import check, pack_folder
from swarm.environments.adapters import ADAPTERS, scheme_of
from swarm.environments.brought import REQUIREMENTS

MOST_BYTES: Final = 64 << 20
MOST_FILES: Final = 2000
RECORD_FILES: Final = ("tasks*.json", "tasks*.jsonl")
RECORD_FOLDERS: Final = frozenset({"tasks", "hidden"})


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """The files of an environment, by their paths, and the packages it needs, as the text of a requirements.txt."""

    files: Mapping[str, bytes]
    requirements: str = ""

    @property
    def shared(self) -> dict[str, bytes]:
        """The files that clients get: all but the records."""
        return {path: content for path, content in self.files.items() if not is_record(path)}


def is_record(path: str) -> bool:
    """Return whether a path within an environment's folder is one of its records."""
    parts = PurePosixPath(path)
    if parts.suffix == ".py" and "hidden" not in parts.parts[:-1]:
        return False
    return not RECORD_FOLDERS.isdisjoint(parts.parts[:-1]) or any(fnmatch(parts.name, own) for own in RECORD_FILES)


def read_code(reference: Reference) -> CodeFiles:
    """Return the files of what a reference names; raise BadEnvironment for what cannot be copied."""
    source = reference.source
    if source.kind == "adapter":
        return CodeFiles({}, ADAPTERS[str(scheme_of(source.place))].requirement + "\n")
    if reference.folder is not None:
        files = _folder(reference.folder, reference.text)
        if reference.lines is not None:
            files = _without(files, _read(reference.lines, reference.text))
        return CodeFiles(files, files.get(REQUIREMENTS, b"").decode(errors="replace"))
    return _module(source.place, reference.text)


def _without(files: Mapping[str, bytes], lines: bytes) -> dict[str, bytes]:
    """Return the files without the tasks that a reward function judges, under whatever name they lie beside it."""
    return {path: content for path, content in files.items() if content != lines}


def _read(file: Path, text: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadEnvironment(f"expected to read {file} of {text}; could not ({error.strerror}); mend it") from error


def _folder(folder: Path, text: str, within: str = "") -> dict[str, bytes]:
    try:
        found = check(pack_folder(folder, most_bytes=MOST_BYTES, most_files=MOST_FILES))
    except (SandboxError, OSError) as error:
        raise BadEnvironment(
            f"expected a folder of its own for {text}, as all of it is copied; {' '.join(str(error).split())}"
        ) from error
    return {f"{within}{path}": content for path, content in found.items()}


def _module(place: str, text: str) -> CodeFiles:
    """Return the files of the top package, or the one file, that a module is of; it is not imported."""
    top = place.partition(".")[0]
    here = Path(top)
    if here.is_dir() and (here / "__init__.py").is_file():
        return CodeFiles(_folder(here.absolute(), text, f"{top}/"))
    if (file := Path(f"{top}.py")).is_file():
        return CodeFiles({file.name: _read(file, text)})
    spec = _installed(top)
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        raise BadEnvironment(f"expected the module {top} of {text} here or installed; found none; check its name")
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return CodeFiles({origin.name: _read(origin, text)}, _needed(top))
    return CodeFiles(_folder(origin.parent, text, f"{top}/"), _needed(top))


def _installed(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # of a module that was not imported from anywhere
        return None


def _needed(top: str) -> str:
    """Return what the installed package of a module says that it needs, but for its extras."""
    for name in metadata.packages_distributions().get(top, ()):
        wanted = [line for line in metadata.requires(name) or () if "extra ==" not in line]
        others = [line for line in wanted if not line.lower().startswith("ajet")]
        return "".join(f"{line}\n" for line in others)
    return ""
