"""The first process in a container of a docker pool: it takes its environment from a file, and becomes a command.

The file holds what the engine and Prefect's server are not to know: keys, and addresses with passwords. Run by its
path, with the standard library only: where the packages are is among what the file says.

    python -I contained.py FILE ARGUMENTS_OF_PYTHON...
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ENVIRONMENT = "sitting.json"
"""Name of the file in the folder of Prefect's files, as long as a worker of containers is there."""


def main() -> None:
    """Become Python with the arguments that follow the file, in the file's environment over the container's.

    What the image says of a Python of its own does not count.
    """
    file, *arguments = sys.argv[1:]
    image = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    os.execve(sys.executable, [sys.executable, *arguments], {**image, **json.loads(Path(file).read_bytes())})


if __name__ == "__main__":
    main()
