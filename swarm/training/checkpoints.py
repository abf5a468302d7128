"""A training's checkpoints on disk: one folder each, known once the store says so.

Promises that a folder the store counts on is deleted only after the store counts on a newer or better one instead, and
that what a crash left half-written, or unknown to the store, is cleared away. Knows no store.
"""

import logging
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from swarm.backends.protocols import NO_ROOM, DiskFull, Learner
from swarm.rendering.messages import BackendError
from swarm.wire import CheckpointSummary

log = logging.getLogger(__name__)

MOST_COST = 0.03
"""Share of the time for which checkpoints that are due because time passed may hold training up."""


class Checkpoints:
    """The newest `kept` checkpoints below `folder`, and that of step `best`; `known`: to the store, newest first."""

    def __init__(self, folder: Path, kept: int, known: Sequence[tuple[int, str]], best: int | None = None) -> None:
        self._folder = folder
        self._kept = kept
        self._known = list(known)
        self._best = best
        self._now, self.saved_at, self.cost_s = time.monotonic, time.monotonic(), 0.0

    def is_due(self, after_s: float | None) -> bool:
        """Return whether one is due because time passed: `after_s` since the last (None: never), and no less than makes
        the seconds for which that one held training up `MOST_COST` of it."""
        return after_s is not None and self._now() - self.saved_at >= max(after_s, self.cost_s / MOST_COST)

    def load(self, learner: Learner) -> int:
        """Load the newest checkpoint that can be; return its step, 0 where none could and the weights are the first."""
        self._clear()
        for step, name in self._known:
            try:
                learner.load(self._folder / name)
            except BackendError as error:
                log.error("event=checkpoint_damaged step=%d error=%r", step, str(error))
            else:
                return step
        return 0

    def save(self, learner: Learner, step: int) -> str:
        """Write the checkpoint of a step; return its name. Raises DiskFull on a full disk, with nothing left."""
        name, began = f"step-{step:06d}", self._now()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            learner.save(self._folder / name)
        except (DiskFull, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_ROOM:
                raise
            self._clear()
            raise DiskFull(f"{error}; make room, then it goes on by itself") from error
        self.saved_at = self._now()
        self.cost_s = self.saved_at - began
        return name

    def commit(self, step: int, name: str) -> None:
        """The store counts on a checkpoint from now on: forget the oldest beyond those that are kept."""
        began, others = self._now(), [known for known in self._known if known[0] != step]
        self._known = sorted([(step, name), *others], reverse=True)
        self._rotate()
        self.cost_s += self._now() - began

    def keep_best(self, step: int) -> None:
        """The store counts on the checkpoint of this step as the best: forget the one that was the best before."""
        self._best = step
        self._rotate()

    def _rotate(self) -> None:
        newest, older = self._known[: self._kept], self._known[self._kept :]
        self._known = [*newest, *(known for known in older if known[0] == self._best)]
        self._clear()

    def _clear(self) -> None:
        known = {name for _, name in self._known}
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name not in known and path.name.lstrip(".").startswith("step-"):
                    shutil.rmtree(path, ignore_errors=True)


def find_spare(folder: Path) -> list[Path]:
    """Return what only training on would read of the checkpoints in a training's folder: all but the last weights."""
    saved = [path for path in folder.glob("*step-*") if path.is_dir()]
    last = max((path for path in saved if path.name.startswith("step-")), key=lambda path: path.name, default=None)
    spare = [path for path in saved if path != last]
    return [*spare, *(last.rglob("optimizer.safetensors") if last else ())]


def list_checkpoints(folder: Path, known: Sequence[tuple[int, str]]) -> list[CheckpointSummary]:
    """Return those of the known checkpoints, newest first, that are on disk, with their sizes. Blocks."""
    there = []
    for step, name in sorted(known, reverse=True):
        with suppress(FileNotFoundError):  # it goes meanwhile: a newer one takes its place
            size = sum(path.stat().st_size for path in list((folder / name).rglob("*")) if path.is_file())
            if (folder / name).is_dir():
                there.append(CheckpointSummary(name=name, step=step, size_bytes=size))
    return there
