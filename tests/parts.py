"""The parts of `make test-all`: what each runs, and whether it passed on the sources as they are.

    python -m tests.parts                   run the parts that have not passed on these sources
    python -m tests.parts --within 600      of those, the ones that fit into so many seconds, by what they took last
    python -m tests.parts studies verl      run these, whatever is known of them
    python -m tests.parts --list            say what is known, and run nothing

`parts.toml` names the parts, `parts.json` keeps the hash of all on which a part depends, the day, the outcome and the
seconds. The exit code is 1 where a part fails, or cannot be set up here; without the services that `.ci/run all` starts
tests are skipped, and it passes in part only.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

ROOT: Final = Path(__file__).parents[1]
PARTS: Final = ROOT / "tests/parts.toml"
KNOWN: Final = ROOT / "tests/parts.json"
SHARED: Final = ("tests/conftest.py", "tests/*/golden.json", "constraints*.txt", "pyproject.toml", "Makefile", ".ci/*")
"""What all parts depend on, beside what is imported."""
SERVICES: Final = ("AJET_TEST_DOCKER", "AJET_TEST_POSTGRES_URL")
UNKNOWN_S: Final = 1800.0
"""What a part that has never passed is taken to take."""


_IMPORT: Final = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|.*)|import\s+([\w., ]+))", re.MULTILINE)


def files_of(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the files of the working tree at these paths, without what git ignores."""
    globs = [path if path.startswith(":") else f":(glob){path}" for path in paths]
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={root}", "ls-files", "-z", "-co", "--exclude-standard", "--", *globs],
        cwd=root, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    return sorted({path for path in listed.split("\0") if (root / path).is_file()})


def imported_by(root: Path, paths: Iterable[str]) -> set[str]:
    """Return these files and all of ours that they import, with the conftest.py above each."""
    found, left = set[str](), list(paths)
    while left:
        if (path := left.pop()) not in found:
            found.add(path)
            left += imports(root, path) if path.endswith(".py") else ()
    return found


@cache
def imports(root: Path, path: str) -> tuple[str, ...]:
    """Return our files that one may import; benchmarks/ imports its own by their names."""
    names = [parent / "conftest" for parent in Path(path).parents if path.startswith("tests/")]
    for module, said, plain in _IMPORT.findall((root / path).read_text(encoding="utf-8")):
        inside = re.findall(r"\w+", said)
        names += [Path(name.strip().replace(".", "/")) for name in plain.split(",")] if plain else []
        names += [Path(module.replace(".", "/"), name) for name in ("", *inside)] if module else []
    return tuple(
        f"{file}" for name in names for base in (Path(), Path("benchmarks"))
        for file in ((base / name).with_suffix(".py"), base / name / "__init__.py") if (root / file).is_file()
    )  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Tests (files, folders or node ids), what else they run, the tools they need, and how they are run."""

    name: str
    about: str
    tests: tuple[str, ...]
    sources: tuple[str, ...]
    needs: tuple[str, ...] = ()
    run: str = ".venv/bin/pytest -n 2 --dist worksteal --left {tests}"
    setup: str = ""

    @property
    def command(self) -> str:
        """The line of a shell that sets the part up and runs it."""
        tests = self.run.format(tests=" ".join(self.tests))
        return f"{self.setup} && {tests}" if self.setup else tests

    @property
    def is_equipped(self) -> bool:
        """Whether this machine has the tools."""
        return all(map(shutil.which, self.needs))

    @property
    def expected_s(self) -> float:
        """What it took when it last passed."""
        return float(known().get(self.name, {}).get("seconds", UNKNOWN_S))

    def hash(self) -> str:
        """Return the hash of the line that runs it, and of all files on which its outcome depends."""
        digest = hashlib.sha256(self.command.encode())
        named = files_of(ROOT, [*(test.partition("::")[0] for test in self.tests), *self.sources, *SHARED])
        for path in sorted(imported_by(ROOT, named)):
            digest.update(f"\0{path}\0".encode() + (ROOT / path).read_bytes())
        return digest.hexdigest()[:16]


@cache
def parts() -> tuple[Part, ...]:
    """Read the parts, in the order of the file."""
    read = tomllib.loads(PARTS.read_text())
    return TypeAdapter(tuple[Part, ...]).validate_python([{"name": name, **fields} for name, fields in read.items()])


def known() -> dict[str, dict[str, Any]]:
    """Read what earlier runs wrote."""
    return json.loads(KNOWN.read_text()) if KNOWN.exists() else {}


def is_stale(part: Part, what: Mapping[str, Mapping[str, Any]]) -> bool:
    """Say whether the part has not passed on these sources."""
    last = what.get(part.name, {})
    return (last.get("hash"), last.get("outcome")) != (part.hash(), "passed")


def run(part: Part) -> bool:
    """Run one part and write down how it went; it has passed if all was there, and nothing was edited meanwhile."""
    print(f"\n== {part.name}: {part.about}", flush=True)
    now, begun = part.hash(), time.monotonic()
    own = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "PYTEST_ADDOPTS")}
    code = subprocess.run(["bash", "-c", part.command], cwd=ROOT, env=own, check=False).returncode
    seconds = round(time.monotonic() - begun)
    imports.cache_clear()
    whole = all(name in own for name in SERVICES) and part.is_equipped and part.hash() == now
    outcome = "failed" if code else "passed" if whole else "passed in part"
    took = part.expected_s if code else seconds
    entry = {"hash": now, "day": f"{datetime.date.today()}", "outcome": outcome, "seconds": took}
    draft = KNOWN.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(dict(sorted({**known(), part.name: entry}.items())), indent=1) + "\n")
    draft.replace(KNOWN)
    print(f"== {part.name}: {outcome} in {seconds} s", flush=True)
    return code == 0


def fitting(stale: Sequence[Part], seconds: float) -> Iterator[Part]:
    """Yield the parts that fit and can be run here, the quickest first, each when the last is over."""
    end = time.monotonic() + seconds
    for part in sorted(stale, key=lambda part: part.expected_s):
        if time.monotonic() + part.expected_s <= end and part.is_equipped:
            yield part


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
            print(f"{state:7} {part.name:12} {part.expected_s:6.0f} s  {part.about}")
    if failed := [name for name, passed in ran.items() if not passed]:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
