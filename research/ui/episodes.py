"""Stub until episodes can be read."""

from __future__ import annotations

from research.installation.home import Home


class EpisodeReaders:
    def __init__(self, home: Home) -> None: ...

    def close(self) -> None: ...
