"""Names that somebody may have meant: the known one, or the path that is there, spelt most like what was found."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

_ALIKE = 0.75
_LONGEST_NAME = 3
"""Words of a topic that may be one name."""


def did_you_mean(found: str, known: Iterable[str], alike: float = _ALIKE) -> str:
    """Return `; did you mean NAME?`, or nothing where no name is as much `alike`."""
    names = {name.lower(): name for name in known}
    near = get_close_matches(found.lower(), names, n=1, cutoff=alike)
    return f"; did you mean {names[near[0]]}?" if near else ""


def meant_in(text: str, known: Sequence[str]) -> str:
    """Return the same for whatever words of a text, one after the other, are nearest to a name; longer ones first."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    for length in range(_LONGEST_NAME, 0, -1):
        for start in range(len(words) - length + 1):
            if said := did_you_mean("_".join(words[start : start + length]), known):
                return said
    return ""


def existing_like(path: Path) -> str:
    """Return `; did you mean PATH?` where the first part of a path that is not there is spelt like one that is."""
    missing = next((part for part in reversed([path, *path.parents]) if not os.path.exists(part)), path)
    try:
        names = sorted(os.listdir(missing.parent))
    except OSError:  # a part is a file, or may not be read
        return ""
    near = get_close_matches(missing.name, names, n=1, cutoff=_ALIKE)
    if not near:
        return ""
    meant = missing.parent / near[0] / path.relative_to(missing)
    return f"; did you mean {meant if os.path.exists(meant) else missing.parent / near[0]}?"
