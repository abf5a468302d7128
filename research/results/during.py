"""The evaluations during training that lie in an attempt's folder: its own, and those kept of an earlier attempt.

An attempt that goes on from step n keeps what was evaluated of the versions before n: training had waited for them. Of
version n and later ones nothing is kept: the server waits for n again, and later weights are now reached by other
episodes. They are played again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from research.files import write_json
from research.results.attempt_files import AttemptFolder, AttemptSpec, Evaluation, Evaluations


def read_during(path: Path) -> list[Evaluation]:
    """Return the evaluations in a file, by their versions; none without one. ValueError for what is none."""
    try:
        found = Evaluations.model_validate_json(path.read_bytes()).evaluations
    except FileNotFoundError:
        return []
    versions = [evaluation.policy_version for evaluation in found]
    if versions != sorted(set(versions)):
        raise ValueError(f"expected evaluations of growing versions; found {versions}")
    return found


def write_during(path: Path, evaluations: Iterable[Evaluation]) -> str:
    """Write evaluations as their evaluator does, each version once, the last given one; return the file's sha256."""
    of = {evaluation.policy_version: evaluation for evaluation in evaluations}
    ordered = [of[version].model_dump(mode="json", exclude_defaults=True) for version in sorted(of)]
    return write_json(path, {"evaluations": ordered})


class NewestSuccess:
    """The success of the newest evaluation in a file, for display; the file is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0

    def newest(self) -> float | None:
        """Return the success of the newest evaluation since the last call; None where there is no newer one."""
        try:
            changed = self._path.stat().st_mtime_ns
            found = read_during(self._path) if changed != self._seen else []
        except (OSError, ValueError):  # whoever collects it says so
            return None
        self._seen = changed
        return found[-1].success if found else None


def due(spec: AttemptSpec, step: int) -> list[int]:
    """Return the versions of which a training of so many steps has evaluations: it waited for each before the next."""
    return [version for version in spec.evaluate_after if version < step]


def before(evaluations: Iterable[Evaluation], step: int) -> list[Evaluation]:
    """Return the evaluations of versions before a step."""
    return [evaluation for evaluation in evaluations if evaluation.policy_version < step]


def lacking(spec: AttemptSpec, evaluations: Iterable[Evaluation], step: int) -> list[int]:
    """Return the versions that are due at a step and have no evaluation."""
    made = {evaluation.policy_version for evaluation in evaluations}
    return [version for version in due(spec, step) if version not in made]


def to_keep(folder: AttemptFolder) -> Path | None:
    """Return the file that holds what a later attempt keeps of this one; None where there is none.

    An attempt that ended before it went on with its training has what it was given itself.
    """
    return next((path for path in (folder.evaluation("during"), folder.kept) if path.is_file()), None)
