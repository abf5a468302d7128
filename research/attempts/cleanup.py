"""Ends the containers of an attempt that was killed: `python -m research.attempts.cleanup FOLDER`, run by its shim.

So they end with their attempt even where no controller runs any more. It needs the engine to answer; the controller
that records the attempt's end does the same again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import ValidationError

from research.files import read_json
from research.results.attempt_files import AttemptFolder, AttemptSpec
from sandboxes import DockerSandbox, SandboxError
from sandboxes.docker.engine import connect


def reaping(folder: Path) -> tuple[str, ...]:
    """Return the command that ends the containers of the attempt in `folder`."""
    return (sys.executable, "-m", "research.attempts.cleanup", str(folder))


def main() -> int:
    """End the containers of the attempt whose folder is the only argument."""
    try:
        spec = AttemptSpec.model_validate(read_json(AttemptFolder(Path(sys.argv[1])).spec))
        DockerSandbox(Path(spec.containers), connect(os.environ)).reap(spec.labels())
    except (SandboxError, ValidationError, OSError, ValueError) as error:
        sys.stderr.write(f"could not end the containers of the attempt in {sys.argv[1]}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
