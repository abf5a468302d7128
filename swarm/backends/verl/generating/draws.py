"""Seeds for the draws that nobody seeded, so that a run which goes on from a checkpoint draws as if it never ended."""

from __future__ import annotations

import hashlib


class Draws:
    """The seeds that follow from one seed; `count` is how many were taken, which a checkpoint keeps."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.count = 0

    def take(self) -> int:
        """Return the next seed, from 0 to below 2^63."""
        self.count += 1
        found = hashlib.blake2b(f"{self._seed}:{self.count}".encode(), digest_size=8).digest()
        return int.from_bytes(found) >> 1
