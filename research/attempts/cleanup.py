"""Ends the containers of an attempt that was killed: `python -m research.attempts.cleanup FOLDER`, run by its shim.

So they end with their attempt even where no controller runs any more. It needs the engine to answer; the controller
that records the attempt's end does the same again. What the evaluator during training had made so far is put into the
attempt's folder, so that the next attempt goes on from it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from research.files import read_json
from research.isolation.mode import Containers
from research.results.attempt_files import AttemptFolder, AttemptSpec
from research.results.failure_codes import AttemptFailed
from sandboxes import DockerSandbox, SandboxError
from sandboxes.docker.engine import connect


def reaping(folder: Path) -> tuple[str, ...]:
    """Return the command that ends the containers of the attempt in `folder`."""
    return (sys.executable, "-m", "research.attempts.cleanup", str(folder))


def end_containers(sandbox: Containers, labels: Mapping[str, str], folder: AttemptFolder) -> None:
    """End and remove the containers of an attempt that is over; raises SandboxError where it cannot be done now."""
    sandbox.reap(labels)
    if folder.outcome.exists():  # it took what they had made itself
        return
    from research.attempts.containers import EVALUATION, container_name, take_evaluations  # not needed at a start

    handle = sandbox.adopt(container_name(labels, "evaluator-during"))
    if handle is None or EVALUATION not in (results := handle.results()):
        return
    try:
        with suppress(AttemptFailed):  # evaluations that are none are none to go on from
            take_evaluations(results[EVALUATION].path, folder.evaluation("during"))
    except OSError as error:
        raise SandboxError(f"cannot keep the evaluations during training in {folder.path}: {error}") from error


def main() -> int:
    """End the containers of the attempt whose folder is the only argument."""
    try:
        spec = AttemptSpec.model_validate(read_json(AttemptFolder(Path(sys.argv[1])).spec))
        sandbox = DockerSandbox(Path(spec.containers), connect(os.environ))
        end_containers(sandbox, spec.labels(), AttemptFolder(Path(sys.argv[1])))
    except (SandboxError, ValidationError, OSError, ValueError) as error:
        sys.stderr.write(f"could not end the containers of the attempt in {sys.argv[1]}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
