"""Trainings written down one by one, so that a comparison that was interrupted goes on where it was.

The first line of the file says what was trained, each other one is a finished training. A process that is killed loses
the training it was at; the next one cuts half a line off and goes on. A file of other settings is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, Final

from rig.agreement.margins import MARGINS
from rig.agreement.served import AgreementSize, Backend, ServedTraining, job_of

BACKENDS: Final[tuple[Backend, ...]] = ("local", "verl")


class TrainingsFile:
    """The file of the trainings of one size."""

    def __init__(self, path: Path, size: AgreementSize) -> None:
        self._path, self._size = path, size
        whole = path.read_text() if path.exists() else ""
        lines = whole[: whole.rfind("\n") + 1]
        if not lines:
            lines = json.dumps(settings(size)) + "\n"
        if lines != whole:
            path.write_text(lines)
        if json.loads(lines.splitlines()[0]) != settings(size):
            raise SystemExit(f"expected {path} to hold trainings of these settings, found others: move it away")

    def done(self) -> list[ServedTraining]:
        """Return what is finished, in the order in which it was trained."""
        return [ServedTraining.of(json.loads(line)) for line in self._path.read_text().splitlines()[1:]]

    def missing(self) -> Iterator[tuple[str, Backend, int]]:
        """Yield what is not: seed by seed, the backends in turns, neither always first."""
        found = {training.name for training in self.done()}
        for seed, environment in product(range(self._size.seeds), self._size.environments):
            for backend in BACKENDS if seed % 2 == 0 else BACKENDS[::-1]:
                if (environment, backend, seed) not in found:
                    yield environment, backend, seed

    def append(self, training: ServedTraining) -> None:
        """Write one down."""
        with self._path.open("a") as file:
            file.write(json.dumps(training.value()) + "\n")


def settings(size: AgreementSize) -> Mapping[str, Any]:
    """Return what must agree where a file is gone on with."""
    jobs = {
        name: job_of(name, "local", 0, size).model_dump(mode="json", exclude={"backend", "seed", "tracking"})
        for name in size.environments
    }
    found: dict[str, Any] = json.loads(json.dumps({"size": asdict(size), "margins": dict(MARGINS), "jobs": jobs}))
    return found
