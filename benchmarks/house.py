"""How does the code of each room measure, beside code bases to learn from?

    python benchmarks/house.py           also: make house; exit code 1 where a goal is missed
    python benchmarks/house.py --json    the same as JSON

Goals, for each room and for all together: functions of at most 6 lines in the median and 14 at the 90th percentile,
none over 60; every function annotated, every module with a docstring; at most 12 files in a package, a class name
defined in one module only, no circle of imports among the packages of a room. `source/` says
how each is measured; nothing is imported, and it takes two seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from source.measures import LONG, Source, read
from source.packages import ROOMS, arrows, circles, files, modules

ROOT = Path(__file__).parents[1]
MOST_FILES = 12
SHOWN = 3
"""How many of the longest functions are named."""

NAMES = ("lines", "median", "p90", "over 60", "annotated", "docstrings")
FIELD: Mapping[str, tuple[float, float, float, float, float, float]] = {
    "structlog": (7_300, 4, 20, 0.011, 1.00, 0.90),
    "starlette": (6_700, 5, 24, 0.008, 1.00, 0.03),
    "httpx": (8_800, 6, 31, 0.016, 1.00, 0.22),
    "AgentJet": (14_500, 14, 58, 0.086, 0.42, 0.11),
    "median of 17": (14_500, 8, 41, 0.049, 0.94, 0.31),
}
"""Code bases in the same measures, of snapshots of November 2026 (library code): lines, median and 90th percentile of
function length, share of functions over 60 lines, share annotated, share of modules with a docstring. The last line has
the median of each measure over 17 code bases of the field, from structlog to TRL's trainers."""


@dataclass(frozen=True)
class Part:
    """A room, or all of them, with what is measured of it."""

    name: str
    source: Source
    files: Mapping[str, int]
    circles: Sequence[Sequence[str]]

    def figures(self) -> tuple[float, ...]:
        """Return the measures that the field's code bases have too, in the order of `NAMES`."""
        source = self.source
        long = len(source.long_functions) / len(source.functions)
        return (source.lines, source.median_length, source.p90_length, long, source.annotated, source.documented)

    def payload(self) -> dict[str, Any]:
        """Return all measures as JSON."""
        return {
            **dict(zip(NAMES, self.figures(), strict=True)),
            "functions": len(self.source.functions),
            "longest": [f"{function.length} {function.place}" for function in self.source.functions[:SHOWN]],
            "most files in a package": max(self.files.values()),
            "class names with more than one meaning": dict(self.source.repeated_classes),
            "circles": [list(circle) for circle in self.circles],
            "missed": missed(self),
        }


def missed(part: Part) -> list[str]:
    """Return what misses its goal, each with its figure."""
    source = part.source
    goals = [
        (f"median length {source.median_length:g} over 6", source.median_length > 6),
        (f"90th percentile {source.p90_length} over 14", source.p90_length > 14),
        *((f"over {LONG} lines: {long.length} {long.place}", True) for long in source.long_functions),
        (f"annotated {source.annotated:.2%}", source.annotated < 1),
        (f"modules with a docstring {source.documented:.2%}", source.documented < 1),
        *((f"{count} files in {name}", count > MOST_FILES) for name, count in part.files.items()),
        *((f"class {name} in {', '.join(places)}", True) for name, places in source.repeated_classes.items()),
        *((f"circle of {', '.join(circle)}", True) for circle in part.circles),
    ]
    return [words for words, is_missed in goals if is_missed]


def parts(root: Path, rooms: Sequence[str] = ROOMS) -> list[Part]:
    """Measure each room of a tree, and all of them together."""
    found = [
        Part(room, read(root, modules(root, room)), files(root, room), circles(arrows(root, room))) for room in rooms
    ]
    every = Source(tuple(module for part in found for module in part.source.modules))
    return [*found, Part("all", every, _joined(found), [circle for part in found for circle in part.circles])]


def _joined(found: Sequence[Part]) -> dict[str, int]:
    return {name: count for part in found for name, count in part.files.items()}


def table(found: Sequence[Part]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{'':14}" + "".join(f"{name:>12}" for name in NAMES) + "   (of functions; the last of modules)"
    for part in found:
        yield _line(part.name, part.figures())
    for name, figures in FIELD.items():
        yield _line(name, figures)
    for part in found:
        yield f"\n{part.name}"
        yield "  longest: " + "; ".join(f"{each.length} {each.place}" for each in part.source.functions[:SHOWN])
        yield (
            f"  most files in a package: {max(part.files.values())}; class names with more than one meaning: "
            f"{len(part.source.repeated_classes)}; circles: {len(part.circles)}"
        )
    for words in missed(found[-1]):
        yield f"missed: {words}"


def _line(name: str, figures: Sequence[float]) -> str:
    lines, middle, p90, *shares = figures
    return f"{name:14}{lines:12,.0f}{middle:12g}{p90:12g}" + "".join(f"{100 * value:10.1f} %" for value in shares)


def main() -> int:
    """Print the measures; return 1 where a goal is missed, in a room or in all."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="print JSON")
    arguments = options.parse_args()
    found = parts(ROOT)
    if arguments.json:
        payload = {**{part.name: part.payload() for part in found}, "field": {
            name: dict(zip(NAMES, figures, strict=True)) for name, figures in FIELD.items()
        }}  # fmt: skip
        print(json.dumps(payload, indent=2))
    else:
        print("\n".join(table(found)))
    return 1 if any(missed(part) for part in found) else 0


if __name__ == "__main__":
    sys.exit(main())
