"""Which files of an environment are copied, and whether they hold hidden tasks.

The records of a folder are its files `tasks*.json` and `tasks*.jsonl`, and whatever lies in a folder called `tasks` or
`hidden`, but for the modules of a package `tasks`: a client's copy is without them. A copy of the records under another
name gives hidden tasks away, too: in what clients get, runs of words are looked for that stand in a hidden task and in
no other, or the ids of most hidden tasks. What is packed or encrypted is not seen.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final

from research.environments.reference import Reference
from research.errors import BadEnvironment
from sandboxes import SandboxError
from sandboxes.docker.archive import read_folder
from swarm.environments.adapters import ADAPTERS, scheme_of
from swarm.environments.base import Split, Task
from swarm.environments.custom import REQUIREMENTS

MOST_BYTES: Final = 64 << 20
MOST_FILES: Final = 2000
RECORD_FILES: Final = ("tasks*.json", "tasks*.jsonl")
RECORD_FOLDERS: Final = frozenset({"tasks", "hidden"})
_RUN: Final = 6
"""Words of a run at most: longer texts are known by any of the runs in them."""
_LETTERS: Final = 8
"""Fewest letters and digits of a run of words: what is shorter stands in any file by chance."""
_ONE_WORD: Final = 16
"""The same of one word alone."""
_MOST: Final = 0.5
"""Share of the hidden tasks whose ids alone say that they are held."""
_WORD: Final = re.compile(r"\w+")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """The files of an environment, by their paths, and the packages it needs, as the text of a requirements.txt."""

    files: Mapping[str, bytes]
    requirements: str = ""

    @property
    def shared(self) -> dict[str, bytes]:
        return {path: content for path, content in self.files.items() if not is_record(path)}


def is_record(path: str) -> bool:
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
            lines = _read(reference.lines, reference.text)
            files = {path: content for path, content in files.items() if content != lines}
        return CodeFiles(files, files.get(REQUIREMENTS, b"").decode(errors="replace"))
    # Of a module: the files of its top package, or the one file; it is not imported.
    top = source.place.partition(".")[0]
    here = Path(top)
    if here.is_dir() and (here / "__init__.py").is_file():
        return CodeFiles(_folder(here.absolute(), reference.text, f"{top}/"))
    if (file := Path(f"{top}.py")).is_file():
        return CodeFiles({file.name: _read(file, reference.text)})
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # of a module that was not imported from anywhere
        spec = None
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        text = reference.text
        raise BadEnvironment(f"expected the module {top} of {text} here or installed; found none; check its name")
    requirements = ""  # what its installed package says that it needs, but for extras
    for name in metadata.packages_distributions().get(top, ())[:1]:
        wanted = [line for line in metadata.requires(name) or () if "extra ==" not in line]
        requirements = "".join(f"{line}\n" for line in wanted if not line.lower().startswith("ajet"))
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return CodeFiles({origin.name: _read(origin, reference.text)}, requirements)
    return CodeFiles(_folder(origin.parent, reference.text, f"{top}/"), requirements)


def _read(file: Path, text: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadEnvironment(f"expected to read {file} of {text}; could not ({error.strerror}); mend it") from error


def _folder(folder: Path, text: str, within: str = "") -> dict[str, bytes]:
    try:
        found = read_folder(folder, most_bytes=MOST_BYTES, most_files=MOST_FILES)
    except (SandboxError, OSError) as error:
        raise BadEnvironment(
            f"expected a folder of its own for {text}, as all of it is copied; {' '.join(str(error).split())}"
        ) from error
    return {f"{within}{path}": content for path, content in found.items()}


def find_hidden_leak(files: Mapping[str, bytes], tasks: Mapping[Split, Sequence[Task]]) -> str | None:
    """Return the path of a file that holds text of a hidden task, or names most of them; None if none does."""
    runs = set()  # by which texts are known: those of `_RUN` words, or all of a text that is shorter
    for text in _texts(tasks["hidden"]):
        words = _words(text)
        runs |= {words[at : at + _RUN] for at in range(max(1, len(words) - _RUN + 1))}
    own = {run for run in runs if sum(map(len, run)) >= (_LETTERS if len(run) > 1 else _ONE_WORD)}
    own -= _find_runs(own, (text for split in tasks if split != "hidden" for text in _texts(tasks[split])))
    ids = {_words(task.id) for task in tasks["hidden"] if len(task.id) > 1 and not task.id.isdigit()}
    for path, content in files.items():
        text = content.decode(errors="replace")
        forms = [text]  # as it stands, and with the escapes of JSON and of code read
        if "\\" in text:
            forms.append(_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else " ", text))
        held = _find_runs(own | ids, forms)
        if not own.isdisjoint(held) or len(ids & held) > _MOST * len(tasks["hidden"]):
            return path
    return None


def _find_runs(wanted: Set[_Words], texts: Iterable[str]) -> set[_Words]:
    ends: dict[str, set[int]] = {}
    for run in filter(None, wanted):
        ends.setdefault(run[-1], set()).add(len(run))
    runs = set()
    for text in texts:
        last: deque[str] = deque(maxlen=_RUN)
        for match in _WORD.finditer(text.casefold()):
            last.append(word := match[0])
            if word in ends:
                words = tuple(last)
                runs |= {words[-length:] for length in ends[word] if length <= len(words)} & wanted
    return runs


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Task):
        yield from (value.id, *_texts(value.data))
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _words(text: str) -> _Words:
    return tuple(_WORD.findall(text.casefold()))
