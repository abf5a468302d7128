"""How does the code of each room measure, beside code bases to learn from, and does it get heavier?

    python benchmarks/house.py           also: make house; exit code 1 where a limit is passed or a goal missed
    python benchmarks/house.py --json    the same as JSON
    python benchmarks/house.py --write   write today's values as the limits where they are better
    python benchmarks/house.py --modules write docs/modules.md, the index of all modules

Goals: every function annotated, every module with a docstring, a class name defined once in a room, no circle of
imports among the modules of a room, no function over 80 lines that `house_budget.json` does not name.

All else is a ratchet: `house_budget.json` has, for each measure, the limit (today's value when it was last lowered) and
where it is to go. A value may get better; one that is worse than its limit fails, and whoever raises a limit writes the
reason beside it. `source/` says how each is measured; nothing is imported, and it takes some seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from source.measures import LONG, Source, read
from source.packages import ROOMS, circles, importers, index, module_arrows, modules

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).parent / "house_budget.json"
SLACK = 0.01
"""A value that is better than its limit by more than this share is to become the limit."""
RISING = frozenset({
    "modules of 150 to 500 lines", "median length of a function", "90th percentile of the length of a function",
})  # fmt: skip
"""Measures of which more is better: our functions and modules were shorter than the field's."""
FIELD: Mapping[str, tuple[float, float, float, float]] = {
    "structlog": (7_300, 4, 20, 0.011), "starlette": (6_700, 5, 24, 0.008), "httpx": (8_800, 6, 31, 0.016),
    "AgentJet": (14_500, 14, 58, 0.086), "median of 17": (14_500, 8, 41, 0.049),
}  # fmt: skip
"""Code bases in the same measures, of snapshots of November 2026 (library code): lines, median and 90th percentile of
function length, share of functions over 60 lines. The last line is the median over 17 code bases of the field."""


def measured(root: Path = ROOT) -> dict[str, float]:
    """Return every measure that is a ratchet."""
    rooms = {room: read(root, modules(root, room)) for room in ROOMS}
    product = _all(rooms)
    tests = read(root, sorted((root / "tests").rglob("*.py")))
    return {
        **{f"lines of {room}": source.lines for room, source in rooms.items()},
        "lines of the product": product.lines,
        "lines of tests": tests.lines,
        "modules": len(product.modules),
        "modules of 150 to 500 lines": round(product.share_of_sizes(150, 500), 3),
        "modules under 100 lines": round(product.share_of_sizes(0, 99), 3),
        "modules over 600 lines": sum(module.lines > 600 for module in product.modules),
        "folders above a module": max(module.path.count("/") for module in product.modules),
        "modules with one importer, of their package": sum(
            len(by) == 1 for room in ROOMS for by in importers(root, room).values()
        ),
        "median length of a function": product.median_length,
        "90th percentile of the length of a function": product.p90_length,
        "private helpers with one call": product.one_call_helpers(),
        "functions that forward": product.forwarders(),
        "share of form": round(product.form, 3),
        "pairs of records alike": product.twin_records(),
        "classes of errors": product.exceptions(),
        "bindings of pronouns": product.pronouns(),
        "share of tests with a sentence": round(tests.sentences(), 3),
    }


def _all(rooms: Mapping[str, Source]) -> Source:
    return Source([module for source in rooms.values() for module in source.modules])


def worse(values: Mapping[str, float], budget: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is worse than its limit."""
    for name, limit in budget["limits"].items():
        value = values[name]
        if value < limit["limit"] if name in RISING else value > limit["limit"]:
            yield f"{name}: {value:g}, limit {limit['limit']:g}; make it better, or move the limit with a reason"


def better(values: Mapping[str, float], budget: Mapping[str, Any]) -> Iterator[str]:
    """Yield what has become so much better that its limit is to follow."""
    for name, limit in budget["limits"].items():
        value, now = values[name], limit["limit"]
        if value > now * (1 + SLACK) if name in RISING else value < now * (1 - SLACK):
            yield f"{name}: {value:g}, limit {now:g}; lower it: python benchmarks/house.py --write"


def missed(root: Path, allowed: Mapping[str, str]) -> Iterator[str]:
    """Yield what misses a goal; `allowed` are the long functions that may be, each with its reason."""
    for room in (name for name in ROOMS if (root / name).is_dir()):
        source = read(root, modules(root, room))
        for long in source.long_functions:
            if long.place.split(":")[0] + " " + long.place.split()[-1] not in allowed:
                yield f"over {LONG} lines: {long.length} {long.place}"
        if source.annotated < 1:
            yield f"{room}: annotated {source.annotated:.2%}"
        if source.documented < 1:
            yield f"{room}: modules with a docstring {source.documented:.2%}"
        yield from (f"class {name} in {', '.join(at)}" for name, at in source.repeated_classes.items())
        yield from (f"circle of {', '.join(circle)}" for circle in circles(module_arrows(root, room)))


def table(values: Mapping[str, float], budget: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{'':44}{'today':>10}{'limit':>10}{'goal':>10}"
    for name, value in values.items():
        limit = budget["limits"][name]
        yield f"{name:44}{value:>10,g}{limit['limit']:>10,g}{limit['goal']:>10,g}  {limit.get('reason', '')}".rstrip()
    yield "\nothers in the field: lines, median and 90th percentile of a function, share over 60 lines"
    for name, (lines, middle, p90, long) in FIELD.items():
        yield f"{name:24}{lines:>10,g}{middle:>10g}{p90:>10g}{100 * long:>10.1f} %"


def write(values: Mapping[str, float], budget: dict[str, Any]) -> None:
    """Write values that are better as limits; what is worse is moved by hand, with a reason."""
    for name, limit in budget["limits"].items():
        choose = max if name in RISING else min
        limit["limit"] = choose(values[name], limit["limit"])
    BUDGET.write_text(json.dumps(budget, indent=1) + "\n")


def main() -> int:
    """Print the measures; return 1 where a limit is passed or a goal missed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="print JSON")
    options.add_argument("--write", action="store_true", help="write today's values as the limits")
    options.add_argument("--modules", action="store_true", help="write docs/modules.md and nothing else")
    arguments = options.parse_args()
    if arguments.modules:
        (ROOT / "docs" / "modules.md").write_text("\n".join(index(ROOT)))
        return 0
    values, budget = measured(), json.loads(BUDGET.read_text())
    if arguments.write:
        write(values, budget)
    wrong = [*worse(values, budget), *missed(ROOT, budget["long functions"])]
    if arguments.json:
        print(json.dumps({"measures": values, "wrong": wrong, "lower": list(better(values, budget))}, indent=2))
    else:
        print("\n".join([*table(values, budget), *(f"better: {line}" for line in better(values, budget))]))
        print("\n".join(f"wrong: {line}" for line in wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
