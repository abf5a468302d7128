"""The parts of `make test-all`: what each runs, and whether it passed on the sources as they are.

    python -m tests.parts                   run the parts that have not passed on these sources
    python -m tests.parts --within 600      of those, the ones that fit into so many seconds, by what they took last
    python -m tests.parts studies verl      run these, whatever is known of them
    python -m tests.parts --list            say what is known, and run nothing

`parts.toml` names the parts, `parts.json` keeps what is known: the hash of a part's sources, the day, the outcome and
the seconds. The exit code is 1 where a part fails; one that cannot be set up here has failed.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PARTS: Final = ROOT / "tests/parts.toml"
KNOWN: Final = ROOT / "tests/parts.json"
SHARED: Final = ("tests/*.py", "tests/*/*.py", "constraints.txt")
"""What all tests may use."""
UNKNOWN_S: Final = 1800.0
"""What a part that was never run is taken to take."""


@dataclass(frozen=True)
class Part:
    """Tests (files, folders or node ids), the sources on which their outcome depends, and how they are run."""

    name: str
    about: str
    tests: tuple[str, ...]
    sources: tuple[str, ...]
    run: str = ".venv/bin/pytest -n 2 --dist worksteal --left {tests}"
    setup: str = ""

    @property
    def command(self) -> str:
        """The line of a shell that sets the part up and runs it."""
        tests = self.run.format(tests=" ".join(self.tests))
        return f"{self.setup} && {tests}" if self.setup else tests

    def hash(self) -> str:
        """Return the hash of the sources, the tests and the line that runs them."""
        digest = hashlib.sha256(self.command.encode())
        for path in files_of([*(test.partition("::")[0] for test in self.tests), *self.sources, *SHARED]):
            digest.update(f"\0{path}\0".encode() + (ROOT / path).read_bytes())
        return digest.hexdigest()[:16]


def files_of(paths: Iterable[str]) -> list[str]:
    """Return the files of the working tree at these paths, without what git ignores."""
    globs = [path if path.startswith(":") else f":(glob){path}" for path in paths]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *globs],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return sorted({path for path in listed.split("\0") if (ROOT / path).is_file()})


@cache
def parts() -> tuple[Part, ...]:
    """Read the parts, in the order of the file."""
    return tuple(
        Part(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
        for name, fields in tomllib.loads(PARTS.read_text()).items()
    )


def known() -> dict[str, dict[str, Any]]:
    """Read what earlier runs wrote."""
    return json.loads(KNOWN.read_text()) if KNOWN.exists() else {}


def is_stale(part: Part, what: Mapping[str, Mapping[str, Any]]) -> bool:
    """Say whether the part has not passed on these sources."""
    last = what.get(part.name, {})
    return (last.get("hash"), last.get("outcome")) != (part.hash(), "passed")


def run(part: Part) -> bool:
    """Run one part and write down how it went."""
    print(f"\n== {part.name}: {part.about}", flush=True)
    now, begun = part.hash(), time.monotonic()
    code = subprocess.run(["bash", "-c", part.command], cwd=ROOT, check=False).returncode
    outcome = "passed" if code == 0 else "failed"
    seconds = round(time.monotonic() - begun)
    entry = {"hash": now, "day": f"{datetime.date.today()}", "outcome": outcome, "seconds": seconds}
    KNOWN.write_text(json.dumps(dict(sorted({**known(), part.name: entry}.items())), indent=1) + "\n")
    print(f"== {part.name}: {outcome} in {seconds} s", flush=True)
    return code == 0


def fitting(stale: Sequence[Part], seconds: float) -> Iterator[Part]:
    """Yield the parts that fit, the quickest first; asked for the next one when the last is over."""
    end = time.monotonic() + seconds
    for part in sorted(stale, key=_expected_s):
        if time.monotonic() + _expected_s(part) <= end:
            yield part


def _expected_s(part: Part) -> float:
    return float(known().get(part.name, {}).get("seconds", UNKNOWN_S))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; say what was not run."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="PART", choices=[*(part.name for part in parts()), []])
    options.add_argument("--within", type=float, metavar="SECONDS", help="run only what fits into these")
    options.add_argument("--list", action="store_true", help="run nothing")
    given = options.parse_args(arguments)
    what = known()
    asked = [part for part in parts() if (part.name in given.names if given.names else is_stale(part, what))]
    chosen = [] if given.list else asked if given.within is None else fitting(asked, given.within)
    ran = {part.name: run(part) for part in chosen}
    for part in parts():
        state = "stale" if is_stale(part, known()) else "passed"
        if state == "stale" or given.list:
            print(f"{state:7} {part.name:12} {_expected_s(part):6.0f} s  {part.about}")
    if failed := [name for name, passed in ran.items() if not passed]:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
