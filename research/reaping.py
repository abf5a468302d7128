"""Ending the containers of an attempt that was killed: `python -m research.reaping FOLDER`, run by the attempt's shim.

So they end with their attempt also where no controller is left to see to it. It needs the engine to answer; whoever
settles the attempt does the same again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import ValidationError

from research.attempt_folder import AttemptFolder, Order
from research.files import read_json
from sandboxes import DockerSandbox, SandboxError
from sandboxes.engine import connect


def reaping(folder: Path) -> tuple[str, ...]:
    """Return the command that ends the containers of the attempt in `folder`."""
    return (sys.executable, "-m", "research.reaping", str(folder))


def main() -> int:
    """End the containers of the attempt whose folder is the only argument."""
    try:
        order = Order.model_validate(read_json(AttemptFolder(Path(sys.argv[1])).order))
        DockerSandbox(Path(order.containers), connect(os.environ)).reap(order.labels())
    except (SandboxError, ValidationError, OSError, ValueError) as error:
        sys.stderr.write(f"could not end the containers of the attempt in {sys.argv[1]}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
