"""What every benchmark does around its measurement: options, the result file, and the judgement of its goals."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


def parser(documentation: str | None, *, quick: str, parallel: bool = False) -> argparse.ArgumentParser:
    """Return a parser of the options all benchmarks share; `quick` says what is left out then.

    One that is `parallel` also asks for `workers`.
    """
    options = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help=quick)
    options.add_argument("--json", action="store_true", help="write the figures to benchmarks/results/")
    options.add_argument("--check", action="store_true", help="exit code 1 when a goal is missed")
    if parallel:
        from research.installation.machine import cores

        options.add_argument("--workers", type=int, default=cores(), help="processes (default: all cores)")
    return options


def tell(line: str) -> None:
    """Say to whoever watches what goes on, apart from the figures."""
    print(line, file=sys.stderr, flush=True)


def earlier(name: str) -> dict[str, Any]:
    """Return the figures of a benchmark that were written before; nothing without any."""
    path = RESULTS / f"{name}.json"
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return figures


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """Write figures to a file, whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(figures, indent=2) + "\n")
    os.replace(new, path)


def concluded(name: str, figures: dict[str, Any], missed: Sequence[str], options: argparse.Namespace) -> int:
    """Write the figures and name the goals that were missed, as the options ask; return the exit code."""
    if options.json:
        write(RESULTS / f"{name}.json", figures)
    if options.check and missed:
        print("missed: " + "; ".join(missed))
        return 1
    return 0


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """Return where and with what the figures were measured."""
    from research.controller.session import collect_versions
    from research.installation.machine import describe

    return {
        "quick": options.quick,
        "machine": describe(),
        "processor": platform.processor() or platform.machine(),
        "versions": collect_versions(),
        **moment(),
    }


def moment() -> dict[str, str | None]:
    """Return the commit (short; None where git knows none) and the day."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, cwd=RESULTS.parent, check=False).stdout
    except OSError:  # no git
        found = ""
    return {"commit": found.strip() or None, "date": datetime.now(UTC).date().isoformat()}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table's lines in Markdown, between empty ones."""
    yield ""
    for place, cells in enumerate((head, *rows)):
        yield "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
        if place == 0:
            yield f"|{'---|' * len(head)}"
    yield ""


def figure_lines(figures: Mapping[str, Any], *, full_size: str) -> Iterator[str]:
    """Yield the figures as text, a line each, and how to get those of full size after a quick run."""
    for name, value in figures.items():
        if name in {"machine", "processor", "versions", "commit", "date", "quick"}:
            continue
        if isinstance(value, Mapping):
            yield f"  {name}"
            yield from (f"    {found:>10}  {part}" for part, found in _flat(value))
        else:
            yield f"  {value:>10}  {name}"
    if figures["quick"]:
        yield f"\na quick run; the full one: {full_size}"


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}: ")
        else:
            yield f"{before}{name}", value


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Print a table; all columns but the first `left` are aligned to the right."""
    lines = [columns, *rows]
    widths = [max(len(cells[place]) for cells in lines) for place in range(len(columns))]
    print(f"\n{title}")
    for number, cells in enumerate(lines):
        aligned = (cell.ljust(width) if place < left else cell.rjust(width)
                   for place, (cell, width) in enumerate(zip(cells, widths, strict=True)))  # fmt: skip
        print("  ".join(aligned).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
