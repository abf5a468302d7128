"""`docs/performance.md` as text, the results it is made of, and the history of their headline figures."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from math import hypot
from pathlib import Path
from shutil import which
from typing import Any

from rig import training
from rig import verl_pair as verl

from performance.headlines import HEADLINES, Figures, Headline

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
RESULTS = Path(__file__).parents[1] / "results"
HISTORY = RESULTS / "history" / "headlines.csv"
HEAD = """\
# Performance

*For everybody who wants to know what is promised by measurement, and for contributors who must not make it worse.*
Rendered from `benchmarks/results/` by `python benchmarks/run_all.py --render`; nothing is typed by hand. Each block is
a benchmark: its question, the command, the day and commit of its last run, and its headline figures; all others stand
in its [result file](../benchmarks/results). How it works, and what it cannot say, its `--help` tells. In brackets: 95 %
intervals. *Before* is the last other version ([history](../benchmarks/results/history/headlines.csv)).

`python benchmarks/run_all.py` runs one after another, renders this page, and ends with exit code 1 where a figure is
worse than before by more than the noise of both (`--only NAME` runs one). Times are of one machine with two cores and
noisy: compare ratios.
"""


def no_gpu() -> str | None:
    """Return what is missing where torch finds no GPU."""
    import torch

    return None if torch.cuda.is_available() else "a GPU that torch finds"


def no_browser() -> str | None:
    """Return what is missing where pages cannot be looked at."""
    return None if which("chromium") else "chromium (.ci/run installs it)"


@dataclass(frozen=True)
class Benchmark:
    """One script of `benchmarks/`.

    `name` is that of the script and of its result file, `minutes` what it takes about on two cores, `options` what its
    command has beside `--json`. `missing` says what is needed and not here, None where it can be run.
    """

    name: str
    title: str
    minutes: int
    options: tuple[str, ...] = ()
    missing: Callable[[], str | None] | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """What is run, after `python`."""
        return (f"benchmarks/{self.name}.py", *self.options, "--json")


BENCHMARKS = (
    Benchmark("simlab", "How often is a study wrong?", 30),
    Benchmark("verdicts", "How often is a verdict wrong, by its rules alone?", 10),
    Benchmark("metric_verdicts", "And on other metrics than success?", 20),
    Benchmark("inquiries", "And over inquiries of twelve rounds?", 15),
    Benchmark("mechanisms", "Who finds a planted mechanism, and who claims a false one?", 60),
    Benchmark("real_noise", "And on the noise of real trainings?", 1),
    Benchmark("runs_needed", "How many runs does a verdict need, beside the rules before?", 2),
    Benchmark("first_study", "How long does a first study take?", 6),
    Benchmark("evaluation_cost", "What do evaluations during training cost?", 5),
    Benchmark("orchestration", "What does orchestration cost?", 12),
    Benchmark("pages", "How fast are the pages, and what do they cost a training?", 25, missing=no_browser),
    Benchmark("server_capacity", "How many calls does a server carry?", 6),
    Benchmark("soak", "Is a sample lost or trained twice when processes are killed?", 6, ("--minutes", "5")),
    Benchmark("scale", "What does an episode send and store?", 4),
    Benchmark("powers", "Do the powers of the swarm hold what they promise?", 75),
    Benchmark("generate", "How fast does the local engine generate, beside others?", 8),
    Benchmark("train_step", "How much faster is an update on merged calls?", 7),
    Benchmark("gpu", "And on a GPU?", 8, missing=no_gpu),
    Benchmark("merge_ratio", "Does merging save the ids that the formula says?", 1),
    Benchmark("against_trl", "How fast are whole steps, beside TRL's?", 6),
    Benchmark("real_model", "How long does a step of a pretrained model take?", 15, missing=training.missing),
    Benchmark("verl_backend", "What does a step of the backend verl take?", 15, missing=verl.missing),
    Benchmark("verl_agreement", "Does the backend verl learn what local learns?", 60, missing=verl.missing),
    Benchmark("sandbox", "What does a container cost a client?", 6),
)
"""In the page's order."""


@dataclass(frozen=True)
class Result:
    """What one benchmark measured; `date` (ISO) and `commit` are None where its file does not know them."""

    name: str
    figures: Figures
    date: str | None
    commit: str | None

    @property
    def headlines(self) -> list[Headline]:
        """Its headline figures."""
        return list(HEADLINES[self.name](self.figures))


def load(name: str, folder: Path = RESULTS) -> Result | None:
    """Return the result of a benchmark; None without one of full size: those of `--quick` runs are not relied on."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    figures: Mapping[str, Any] = json.loads(path.read_text())
    around: Mapping[str, Any] = figures.get("circumstances", figures)
    return None if around.get("quick") else Result(name, figures, around.get("date"), around.get("commit"))


@dataclass(frozen=True)
class Entry:
    """One figure of one version: `commit` (short) and `date` (ISO) of the measurement, value and noise in its unit."""

    benchmark: str
    figure: str
    commit: str
    date: str
    value: float
    noise: float
    better: str

    def is_worse_than(self, before: Entry) -> bool:
        """Say whether it is worse than before by more than the noise of both together."""
        loss = before.value - self.value if self.better == "higher" else self.value - before.value
        return loss > hypot(self.noise, before.noise)


def entries(result: Result) -> list[Entry]:
    """Return the entries of a result."""
    whole = (result.commit or "unknown", result.date or "unknown")
    return [
        Entry(result.name, headline.name, *(headline.at or whole), float(f"{headline.value:.4g}"),
              float(f"{headline.noise:.2g}"), headline.better)
        for headline in result.headlines
    ]  # fmt: skip


def read_history(path: Path = HISTORY) -> list[Entry]:
    """Return the history, oldest first within each benchmark; empty where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        return [
            Entry(**{**row, "value": float(row["value"]), "noise": float(row["noise"])})  # type: ignore[arg-type]
            for row in csv.DictReader(lines)
        ]


def append(new: Iterable[Entry], path: Path = HISTORY) -> None:
    """Add entries to the history; a version's figure that is there is written anew in its place."""
    rows = {(entry.benchmark, entry.figure, entry.commit): entry for entry in [*read_history(path), *new]}
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(field.name for field in fields(Entry))
        writer.writerows([f"{value:g}" if isinstance(value, float) else value for value in astuple(row)]
                         for row in rows.values())  # fmt: skip


def previous(history: Sequence[Entry], now: Entry) -> Entry | None:
    """Return the entry of the same figure that was measured last, of another version than `now`; None without one."""
    same = [entry for entry in history if (entry.benchmark, entry.figure) == (now.benchmark, now.figure)]
    until = next((place for place, entry in enumerate(same) if entry.commit == now.commit), len(same))
    return same[until - 1] if until else None


def regressions(history: Sequence[Entry], of: Iterable[Entry]) -> list[tuple[Entry, Entry]]:
    """Return each of some entries that is worse than the last one of another version, with that one."""
    pairs = [(now, previous(history, now)) for now in of]
    return [(now, before) for now, before in pairs if before is not None and now.is_worse_than(before)]


def render(folder: Path = RESULTS, past: Path = HISTORY) -> str:
    """Return the page from the result files of a folder and the history."""
    history = read_history(past)
    lines = [HEAD, "| | measured | before | goal |", "|---|---|---|---|"]
    for benchmark in BENCHMARKS:
        result = load(benchmark.name, folder)
        if result is not None:
            lines += _rows(benchmark, result, history)
    return "\n".join(lines) + "\n"


def _rows(benchmark: Benchmark, result: Result, history: Sequence[Entry]) -> Iterator[str]:
    at = f"{result.date or 'on an unknown day'} at {result.commit or 'unknown'}"
    yield f"| **{benchmark.title}** `python {' '.join(benchmark.command)}`, {at} | | | |"
    if note := result.figures.get("note"):
        yield f"| *{note}* | | | |"
    for headline, now in zip(result.headlines, entries(result), strict=True):
        before = previous(history, now)
        was = "" if before is None else f"{before.value:g}" + (" **(worse now)**" if now.is_worse_than(before) else "")
        goal = "" if headline.goal is None else f"{headline.goal:g}" + (" **missed**" if headline.missed else "")
        when = "" if headline.at is None else f"; {now.date} at {now.commit}"
        cells = (headline.name, (headline.text or f"{headline.value:.4g}") + when, was, goal)
        yield "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
