"""`python -m tests.research.commands JSON`: several commands in one process; how each ended is printed as JSON.

`--full HOME` in place of JSON: the command line on a disk that is full for a while.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from research.cli.app import console, run
from sandboxes import SandboxError
from studies import StudiesError


def ended(*arguments: str) -> tuple[int, str, str]:
    sys.argv = ["ajet", *arguments]
    out, said = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(said):
        console.cache_clear()  # it keeps the stdout that it was made with
        try:
            run()
        except SystemExit as error:
            return int(error.code or 0), out.getvalue(), said.getvalue()


def run_on_full_disk(home: Path) -> None:
    from tests.research.bench import STUDY, Bench  # which whoever looks at a read-only disk need not import
    from tests.research.designs import design

    bench = Bench(home, design=design(16))
    loop, filler = bench.loop(), home / "filler"
    loop.tick()
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass
    tried = [
        ended("study", "resume", STUDY, "--no-prefect"),
        ended("study", "amend", STUDY, "--note", "the disk is full"),
        ended("research", "group size 4 vs 8", "--no-prefect"),
    ]
    try:
        loop.tick()
        raise AssertionError("a full disk takes nothing")
    except (SandboxError, StudiesError, OSError) as error:
        said = str(error)
    filler.unlink()
    bench.sandbox.polls = 1
    status, studies = bench.drive(bench.loop()).status, len(list(home.glob("studies/*")))
    print(json.dumps({"tried": tried, "said": said, "status": status, "studies": studies}))


if __name__ == "__main__":
    if sys.argv[1] == "--full":
        run_on_full_disk(Path(sys.argv[2]))
    else:
        print(json.dumps([ended(*command) for command in json.loads(sys.argv[1])]))
