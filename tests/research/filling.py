"""`python -m tests.research.filling HOME`: the command line on a disk that is full for a while; its end as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sandboxes import SandboxError
from studies import StudiesError
from tests.research.bench import STUDY, Bench
from tests.research.commands import ended
from tests.research.designs import design

PIECE = b"\0" * 4096


def fill(filler: Path) -> None:
    try:
        with open(filler, "wb", buffering=0) as file:
            while file.write(PIECE):
                pass
    except OSError:
        return


def commands(home: Path) -> None:
    bench = Bench(home, design=design(16))
    loop, filler = bench.loop(), home / "filler"
    loop.tick()
    fill(filler)
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
    state = bench.drive(bench.loop()).state
    print(
        json.dumps({"tried": tried, "said": said, "status": state.status, "studies": len(list(home.glob("studies/*")))})
    )


if __name__ == "__main__":
    commands(Path(sys.argv[1]))
