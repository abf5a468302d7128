"""`docs/performance.md` as text: a section for each benchmark that was run, and the history of its headline figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from performance import history
from performance.catalogue import BENCHMARKS, Benchmark
from performance.history import Entry
from performance.writing import RESULTS, Result, load, paragraph, table

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
HEAD = """\
# Performance

*For everybody who wants to know what is promised by measurement, and for contributors who must not make it worse.*
Every figure here is rendered from `benchmarks/results/` by `python benchmarks/run_all.py --render`; nothing is typed by
hand, what misses its bar is shown like the rest. Below each title stand the command that measures it, the day and the
commit. How each benchmark works, and what it cannot say, its `--help` tells.

`python benchmarks/run_all.py` runs them one after another, adds the headline figures to the
[history](../benchmarks/results/history/headlines.csv), renders this page, and ends with exit code 1 where a figure is
worse than it was at the last version by more than the noise of both (`--only NAME` runs one). Times are of one machine
with two cores and noisy: compare ratios.
"""


def render(folder: Path = RESULTS, past: Path = history.FILE) -> str:
    """Return the page from the result files of a folder and the history."""
    found = history.read(past)
    lines = [HEAD]
    for benchmark in BENCHMARKS:
        result = load(benchmark.name, folder)
        if result is not None:
            past_of_it = [each for each in found if each.benchmark == benchmark.name]
            lines += [paragraph(line) for line in _section(benchmark, result, past_of_it)]
    return "\n".join(lines).rstrip("\n").replace("\n\n\n", "\n\n") + "\n"


def _section(benchmark: Benchmark, result: Result, past: Sequence[Entry]) -> Iterator[str]:
    name = benchmark.name
    yield f"## {benchmark.title}"
    yield ""
    yield (
        f"`python {' '.join(benchmark.command)}`, measured {result.date or 'on an unknown day'} at commit "
        f"{result.commit or 'unknown'} ([figures](../benchmarks/results/{name}.json))."
    )
    yield ""
    yield from benchmark.section(result.figures)
    yield ""
    yield from _history(past)


def _history(past: Sequence[Entry]) -> Iterator[str]:
    """Yield a row for each figure and a column for each version; nothing where only one was measured."""
    versions = list(dict.fromkeys(each.commit for each in past))
    if len(versions) < 2:
        return
    yield "From version to version:"
    dates = {each.commit: each.date for each in past}
    rows = []
    for figure in dict.fromkeys(each.figure for each in past):
        entries = {each.commit: each for each in past if each.figure == figure}
        rows.append((figure, *(_cell(past, entries.get(version)) for version in versions)))
    yield from table(("", *(f"{dates[version]}, {version}" for version in versions)), rows)


def _cell(past: Sequence[Entry], entry: Entry | None) -> str:
    if entry is None:
        return ""
    worse = " **worse**" if history.regressions(past, [entry]) else ""
    return f"{entry.value:.4g}{worse}"
