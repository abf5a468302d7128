"""What `ajet doctor` finds: one value for each thing it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "optional", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `missing` breaks a default study; `optional` only leaves something unavailable."""

    name: str
    level: Level
    found: str
    remedy: str = ""
