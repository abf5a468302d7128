"""Text of somebody else's in a digest: quoted by an id, without control characters, and no longer than a few lines.

What is quoted may steer what a planner proposes. It is no instruction to code: nothing parses it.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LONGEST = 500
"""Characters of one text that are shown."""
MOST = 8
"""Texts that are shown: the latest."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x1b\\|\x07|$)|[@-_])|\x9b[0-?]*[ -/]*[@-~]", re.DOTALL)
"""Terminal sequences: CSI (also as one character), strings up to their terminator, and two-character ones."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE", re.IGNORECASE)
_SHORTEST_SECRET = 8
"""Shorter ones are placeholders, which would be found in any text."""


@dataclass(frozen=True, slots=True)
class Quoted:
    """One quoted text."""

    id: str
    """What it is called, such as `note-12`: the number is its event's."""
    text: str


def plain(text: str) -> str:
    """Return a text on one line, without terminal sequences and characters that do not print, cut to `LONGEST`."""
    bare = _ESCAPE.sub("", text)
    kept = "".join(" " if char.isspace() else char for char in bare if char.isspace() or _prints(char))
    flat = " ".join(kept.split())
    return flat if len(flat) <= LONGEST else flat[: LONGEST - 1] + "…"


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text without the values of those variables of this process that are secrets by their names."""
    for name, value in (os.environ if environment is None else environment).items():
        if len(value) >= _SHORTEST_SECRET and _SECRET.search(name):
            text = text.replace(value, "***")
    return text


def quoted(texts: Iterable[tuple[str, str]]) -> Sequence[Quoted]:
    """Return the latest `MOST` of (id, text), the oldest first; a text of which nothing is left is left out."""
    shown = [Quoted(name, plain(text)) for name, text in texts]
    return tuple(entry for entry in shown if entry.text)[-MOST:]


def _prints(char: str) -> bool:
    """Return whether a character is neither a control, a direction override, a surrogate nor unassigned."""
    return not unicodedata.category(char).startswith("C")
