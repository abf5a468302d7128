"""`python -m tests.research.commands JSON`: several commands in one process; how each ended is printed as JSON."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from research.cli.app import console, run


def ended(*arguments: str) -> tuple[int, str, str]:
    sys.argv = ["ajet", *arguments]
    out, said = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(said):
        console.cache_clear()  # it keeps the stdout that it was made with
        try:
            run()
        except SystemExit as error:
            return int(error.code or 0), out.getvalue(), said.getvalue()


if __name__ == "__main__":
    found = [ended(*command) for command in json.loads(sys.argv[1])]
    print(json.dumps(found))
