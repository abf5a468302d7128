"""`docs/calibration.md` and its plots: what `benchmarks/simlab.py` measured, then the other benchmarks of verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.pages.inquiries import inquiry_tables
from rig.pages.metrics import metric_tables
from rig.pages.plots import drawings
from rig.pages.tables import real_noise_tables, verdict_tables

DOCS = Path(__file__).parents[3] / "docs"
FOLDER = "calibration"
INTRODUCTION = """\
# Calibration: how often ajet is wrong

*For whoever asks whether a verdict can be trusted, and for reviewers of the statistics; [verdicts.md](verdicts.md) says
what it means for a report.*

Every figure here comes from simulated studies whose truth is known. The studies fly through the shipped code: planner
seam, design compiler, scheduler, recovery, collection, statistics, decision table, report. What is simulated is the
training behind it: no model was trained, so that nothing on this page says what works in reinforcement learning. It
says how often the system that studies it claims something false, misses something true, or is fooled. What that means
for somebody who reads a report stands on one page: [what can I believe, and when not](verdicts.md).

No recording of a real language model exists for these suites, so that their planners are the built-in rules and, where
it is said, ones written for the simulator.

Two recorded landscapes are real trainings: there the truth is the mean over their seeds. An earlier screen missed the
bars on them, and its ranking by normal scores was adopted for that reason: for this change they are no held-out test.

The data are as ugly as real noise may be: trainings that collapse, in all arms or in one, and keep a part of what they
had gained; an arm that is twice or five times as loud; heavy tails; runs that go together or against each other where
they share a seed; a measure near its ceiling; a noise bank that is wrong by a factor of 2 either way, or never saw a
collapse; and a mixture of all of it that each study draws from its own seed, so that nobody could tune to one. A claim
is scored against the truth that its verdict names: that of the trainings that do not collapse, or that of all.

An interval in brackets holds 95 % (Clopper and Pearson's for shares, Student's for means). Bars were set before these
runs; what misses one is listed with the rest. A share of too few studies to tell is neither kept nor missed: the number
that is needed is the one from which the interval of a share well on the right side of the bar lies there too. A smaller
one is told where its whole interval lies on one side of the bar; that was decided after the flight of commit 672561d
was seen, for bars that are kept, and told six of its shares, the mixture's false claims and equivalence among them.
"""
ABOUT = {
    "null": ("null.svg", "Each claim's interval, by its estimate; the truth is 0 everywhere."),
    "effects": ("power.svg", "How often a difference is found, by its size in standard deviations between seeds."),
    "equivalence": ("equivalence.svg", "Verdicts by the true difference; the margin is 0.10."),
}

NOTES = {
    "regret": (
        "*ajet by tpe* is the shipped way with Optuna's TPE in the place of the response surface, from the same "
        "beginning and by the same seeds. It was flown beside it on 2026-11-28 at commit 7c8fad0, on the first twelve "
        "worlds of each family that no default was chosen on and the first fifteen searches of each recorded "
        "landscape. Its regret is 0.228 where the surface's is 0.123: 0.105 more (standard error 0.032, paired by "
        "world, 108 worlds), and 0.42 more (0.12) where trainings collapse. On recorded trainings it is 0.081 more "
        "(0.044, 30 searches) with 20 runs and 0.017 more (0.045) with 40. None of the claims of either is false. "
        "`python benchmarks/simlab.py --suite regret` flies both."
    ),
    "inquiries": (
        "In worlds of nothing, of effects, of two fields that matter only together, and of a trap: an effect that is "
        "there in the first environment alone, while trainings with it collapse. Asked by the built-in rules, by a "
        "follower of the largest estimate, and by a liar; half of the worlds have heavy tails and trainings that "
        "collapse. These are too few to tell 5 %: [inquiries judged alone](#inquiries-of-twelve-rounds-judged-alone) "
        "are enough of them."
    ),
    "rivals": (
        "Every way has the same machine hours; the loop pays for seven A/A runs out of them, as no earlier study "
        "told it of the noise, and what it could not promise it refuses: there it ends where it began, which is a "
        "regret of 1. What it leads to is what was confirmed, or *by estimates* the arm of which most is estimated. "
        "The question "
        "names five values of the learning rate, four of the group size, three of epochs and of the clip ratio: 180 "
        "configurations. Worlds are of eleven families in turn."
    ),
    "curves": (
        "*null*: the arms are equal in the metric; *effect*: they differ by the smallest effect of interest, which is "
        "the margin of equivalence too; *equivalence*: by a fifth of that, among quiet runs; *ugly*: nothing is "
        "planted in a mixture of all that is ugly. A study whose noise hides the effect is refused, and is in no "
        "share. What is said of *all metrics* or *all kinds* is pooled, as a row of one metric is mostly of too few "
        "studies to tell; which rows are pooled was decided before any was counted. A pooled share may hide that one "
        "metric is worse than the others: [verdicts on each of them](#other-metrics-than-success) were simulated by "
        "the thousand."
    ),
}  # fmt: skip
"""What a reader has to know of a suite's rows."""


def write_page(figures: Mapping[str, Any], docs: Path = DOCS) -> None:
    """Write the page and its plots."""
    folder = docs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    drawn = drawings(figures["suites"])
    for name, svg in drawn.items():
        (folder / name).write_text(svg)
    (docs / "calibration.md").write_text("\n".join(_page(figures, set(drawn))) + "\n")


def _page(figures: Mapping[str, Any], drawn: set[str]) -> Iterator[str]:
    suites = figures["suites"]
    yield INTRODUCTION
    yield from _circumstances(figures)
    yield "\n## The bars\n"
    yield from _bars(suites)
    if "bars.svg" in drawn:
        yield f"\n![Shares with a bar, with their intervals.]({FOLDER}/bars.svg)\n"
        yield (
            "Dot: measured. Line: its 95 % interval. Tick: the bar. Cross: missed. What is of too few to tell is left "
            "out."
        )
    for name, suite in suites.items():
        yield from _suite(name, suite, drawn)
    yield from inquiry_tables()
    yield from verdict_tables()
    yield from real_noise_tables()
    yield from metric_tables()


def _circumstances(figures: Mapping[str, Any]) -> Iterator[str]:
    size = " at its quick size, which is too small for any of these figures to be relied on" if figures["quick"] else ""
    flights = sum(suite["flights"] for suite in figures["suites"].values())
    minutes = sum(suite["seconds"] for suite in figures["suites"].values()) / 60
    machine = figures["machine"]
    versions = {str(suite["commit"]) for suite in figures["suites"].values() if "commit" in suite}
    if len(versions) > 1:
        yield (
            f"The suites are of {len(versions)} versions ({', '.join(sorted(versions))}), as not all were flown again: "
            "each names its own.\n"
        )
    yield (
        f"`python benchmarks/simlab.py --json` wrote this page{size}: {flights} flights in {minutes:.0f} minutes on "
        f"{machine['cpus']} cores ({figures['date']}, commit {figures['commit'] or 'unknown'})."
    )


def _bars(suites: Mapping[str, Any]) -> Iterator[str]:
    rows = [(name, figure) for name, suite in suites.items() for figure in suite["figures"] if figure["bar"]]
    missed = [f"{figure['name']} ({name})" for name, figure in rows if figure["kept"] is False]
    kept = sum(figure["kept"] is True for _, figure in rows)
    untold = len(rows) - kept - len(missed)
    yield " ".join([
        f"{kept} of {len(rows)} are kept.",
        *([f"Of {untold} the sample is too small to tell."] if untold else []),
        *([f"Missed: {'; '.join(missed)}."] if missed else []),
    ])  # fmt: skip
    yield "\n| suite | figure | measured | bar | |"
    yield "|---|---|---|---|---|"
    for name, figure in rows:
        yield f"| {name} | {figure['name']} | {_measured(figure)} | {figure['bar']} | {_mark(figure)} |"


def _mark(figure: Mapping[str, Any]) -> str:
    if figure["kept"] is None:
        return f"too few to tell: {figure['needs']} are needed"
    return "kept" if figure["kept"] else "**missed**"


def _suite(name: str, suite: Mapping[str, Any], drawn: set[str]) -> Iterator[str]:
    yield f"\n## {suite['question']}\n"
    flown = f", flown {suite['date']} at commit {suite['commit']}" if "commit" in suite else ""
    yield f"Suite `{name}`: {suite['flights']} flights in {suite['seconds']:.0f} s{flown}.\n"
    if name in NOTES:
        yield f"{NOTES[name]}\n"
    picture, caption = ABOUT.get(name, ("", ""))
    if picture in drawn:
        yield f"![{caption}]({FOLDER}/{picture})\n\n{caption}\n"
    yield "| figure | measured |"
    yield "|---|---|"
    for figure in suite["figures"]:
        yield f"| {figure['name']} | {_measured(figure)} |"
    if suite["rows"]:
        yield ""
        yield from _rows(suite["rows"])


def _rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(_cell(row.get(name, '')) for name in names)} |"


def _cell(value: Any) -> str:
    text = " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= 200 else text[:199] + "…"


def _measured(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return "nothing to count"
    ends = f" [{_number(figure, 'low')}, {_number(figure, 'high')}]" if figure["low"] is not None else ""
    counts = f", {figure['count']} of {figure['of']}" if figure["count"] is not None else ""
    return f"{_number(figure, 'value')}{ends}{counts}"


def _number(figure: Mapping[str, Any], name: str) -> str:
    value = figure[name]
    return f"{100 * value:.1f} %" if figure["percent"] else f"{value:.3g}"
