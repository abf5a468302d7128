"""What does every benchmark measure today, and is anything worse than at the last version?

    python benchmarks/run_all.py                one benchmark after another: hours on two cores
    python benchmarks/run_all.py --only soak    only this one (again: --only scale ...)
    python benchmarks/run_all.py --render       measures nothing: history and docs/performance.md from what is there

Each benchmark writes its figures to benchmarks/results/. Its headline figures are compared with those of the last other
version in benchmarks/results/history/headlines.csv and added to them, and docs/performance.md is rendered anew. What is
worse by more than the noise of both is named. Exit code 1 where something is worse, or a benchmark failed. What needs
something that is not here (a pretrained model) is skipped with the reason.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from performance.page import (
    BENCHMARKS,
    HISTORY,
    PAGE,
    RESULTS,
    Benchmark,
    append,
    entries,
    load,
    read_history,
    regressions,
    render,
)

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Measure and render, as the options ask; return the exit code."""
    arguments = _arguments()
    problems = [] if arguments.render else measure(_chosen(arguments.only))
    append(entry for result in (load(each.name) for each in BENCHMARKS) if result for entry in entries(result))
    PAGE.write_text(render())
    for words in problems:
        print(words)
    return 1 if problems else 0


def measure(chosen: Sequence[Benchmark], folder: Path = RESULTS, past: Path = HISTORY) -> list[str]:
    """Run benchmarks, whose results lie in `folder`, and add them to the history; return what failed or is worse."""
    problems: list[str] = []
    for benchmark in chosen:
        if benchmark.missing is not None and (reason := benchmark.missing()) is not None:
            print(f"{benchmark.name}: skipped, as {reason}", flush=True)
            continue
        print(f"{benchmark.name}: about {benchmark.minutes} min", flush=True)
        ended = subprocess.run([sys.executable, *benchmark.command], cwd=ROOT, check=False)
        if ended.returncode != 0:
            problems.append(f"{benchmark.name}: failed with exit code {ended.returncode}")
        else:
            problems += _recorded(benchmark, folder, past)
    return problems


def _recorded(benchmark: Benchmark, folder: Path, past: Path) -> list[str]:
    result = load(benchmark.name, folder)
    if result is None:
        return [
            f"{benchmark.name}: expected a result of full size in benchmarks/results/{benchmark.name}.json; found none"
        ]
    new = entries(result)
    worse = regressions(read_history(past), new)
    append(new, past)
    return [
        f"{now.benchmark}: {now.figure} is worse: {now.value:g} at {now.commit}, {before.value:g} at {before.commit}"
        for now, before in worse
    ]


def _chosen(only: Sequence[str] | None) -> list[Benchmark]:
    return [each for each in BENCHMARKS if not only or each.name in only]


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [each.name for each in BENCHMARKS]
    options.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    options.add_argument("--render", action="store_true", help="measure nothing")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())
