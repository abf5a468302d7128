"""One hash for what a model folder holds: whoever has a folder of the same hash has the same model.

Promises: sha256 over names and contents of the files that decide what is computed (config, weights, tokenizer,
template), in the order of their names, wherever the folder lies; what lies beside them does not count. A file is read
again only when its size or its time of change is another one: what was found is remembered in a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TOKENIZER = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "*.tiktoken",
    "*.jinja", "chat_template.*", "additional_chat_templates/*.jinja",
)  # fmt: skip
_COUNT = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", *_TOKENIZER)
_MEMORY = "hashes.json"
_YOUNG_S = 2.0
"""Seconds within which a file may change again without another time of change: such a one is not remembered."""


def folder_hash(folder: Path, memory: Path | None = None) -> str:
    """Return the hash of a model folder, in hex; `memory` is a folder in which hashes of files are remembered.

    Raises OSError where a file cannot be read. A memory that cannot be read or written is none.
    """
    known = _read(memory)
    fresh: dict[str, Any] = {}
    found = hashlib.sha256()
    for path in sorted(_counting(folder)):
        found.update(f"{path.relative_to(folder).as_posix()}\n{_file_hash(path, known, fresh)}\n".encode())
    if memory is not None and fresh:
        _write(memory, {**_read(memory), **fresh})
    return found.hexdigest()


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that its tokenizer and its template consist of."""
    return sorted({path for pattern in _TOKENIZER for path in folder.glob(pattern) if path.is_file()})


def _counting(folder: Path) -> Iterator[Path]:
    yield from {path for pattern in _COUNT for path in folder.glob(pattern) if path.is_file()}


def _file_hash(path: Path, known: dict[str, Any], fresh: dict[str, Any]) -> str:
    name, state = str(path.absolute()), path.stat()
    now = [state.st_size, state.st_mtime_ns]
    remembered = known.get(name)
    if isinstance(remembered, list) and len(remembered) == 3 and remembered[:2] == now:
        return str(remembered[2])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time() - state.st_mtime > _YOUNG_S:
        fresh[name] = [*now, digest]
    return digest


def _read(memory: Path | None) -> dict[str, Any]:
    if memory is None:
        return {}
    try:
        found = json.loads((memory / _MEMORY).read_bytes())
    except (OSError, ValueError):  # it is only remembered, and read again
        return {}
    return found if isinstance(found, dict) else {}


def _write(memory: Path, entries: dict[str, Any]) -> None:
    draft = memory / f".{_MEMORY}.{os.getpid()}"
    try:
        memory.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(entries))
        draft.replace(memory / _MEMORY)
    except OSError:  # a disk that is full or read-only: the next caller reads the files again
        draft.unlink(missing_ok=True)
