"""The tables of `docs/calibration.md` on other metrics than success, as far as they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rig.pages.tables import figures_of, share_of

ABOUT = """
## Other metrics than success

`python benchmarks/metric_verdicts.py --json` simulates runs with a hidden curve: a logistic rise whose time, top, and
fall differ from run to run, and evaluations before, after and nine times during a training, of 64 episodes each, drawn
from it. The shipped metric reads its number off them, and the shipped verdict judges look by look. The truth is planted
in the metric's own unit and is that of the curves, not of what evaluations see of them: {studies} studies, {row} a row,
or fewer where some mixtures have no such effect. The promised effect is what so many seeds see with power 0.8 under
normal noise as large as that of the row's arms; it is the margin of equivalence. Where a row has no power, no treatment
in these worlds has so large an effect.

*spreads*: standard deviations of the logarithm of the time to 0.7, of control and treatment. *late*: so many runs are
at 0.7 only after the end of training; *stuck*: so many never get there. *mixture*: each study draws one of 40 of
all of it. Goals are those of verdicts on success: at most 5 % false, 1 % of the wrong sign, 5 % equivalent at the
margin, and intervals that hold the truth as often as they say, to 2 %; power of 75 % only where nearly all runs reach
0.7 and none collapses, as nothing is promised elsewhere.
"""
TITLES: Mapping[str, tuple[str, str]] = {
    "episodes": (
        "Training episodes to 0.7 hidden success (`episodes:0.7`)",
        "Welch's test of the mean restricted to the horizon. *Not claimed*: studies in which more than half of an arm "
        "did not reach 0.7, so that nothing was claimed of time; it is counted as no claim. A claim counts as false by "
        "the truth that its verdict names: where every run of an arm got there, that of trainings that do, unless no "
        "share of others that so few runs leave open would undo it; and it counts as false where its interval leaves "
        "that truth out, too. *Read of all* is how often it would be false if "
        "a reader took it for one of all trainings: where a few runs of one arm alone never arrive, most samples hold "
        "none of them, and no test can see what is not there. *Of all*: verdicts that say they are. Where the tops "
        "differ, the mean of three "
        "evaluations, which times are read off, is late by unequal amounts, so that a planted difference is measured "
        "too small.",
    ),
    "seconds": (
        "Seconds of training to 0.7 hidden success (`seconds:0.7`)",
        "The same test; a run that never arrives counts with twice what a training of the usual pace takes, as designs "
        "cut it. *Steps vary*: standard deviation of the logarithm of what a run's steps take, from run to run; of one "
        "number, of control and treatment. Where the steps of one arm are 1.5 times as long, equal seconds are fewer "
        "episodes. In the mixture, steps vary by up to .3 and differ between the arms. Where a few runs of one arm "
        "alone never arrive, its mean is told too low as it is in episodes, and by more, as the cut lies further out: "
        "equal means are called different in a quarter to a half of the studies.",
    ),
    "area": (
        "Area under the hidden curve (`area`)",
        "Welch's test of the trainings that do not collapse. *Read as speed*: arms that are equally fast and end at "
        "different heights. The areas do differ, so that the verdicts are right; *false claims* is there how often a "
        "reader would be wrong who took them for speed.",
    ),
    "area:0.7": (
        "Area below 0.7 (`area:0.7`)",
        "The same test. *Read as speed* is how often a reader would be wrong who took a difference of what lies below "
        "0.7 for one of the time to 0.7.",
    ),
    "collapse": (
        "Share of trainings that collapse (`collapse`)",
        "Boschloo's exact test of two rates; the interval is Newcombe's on exact limits, which hold the truth more "
        "often than they state. Rates are planted; whether a run collapsed is what the shipped rule says of its "
        "course. A run that had hardly risen when its fall is planted has little to lose, and mostly passes for one "
        "that held: where one arm is late, and in the mixture, the rates that are seen differ from the planted ones, "
        "and verdicts are of those that are seen. The promised effect is the rate that so many seeds tell from none at "
        "one look of 5 %: designs with several looks see less. With 3 seeds that is a rate of 93 %, so that "
        "*equivalent* says next to nothing there.",
    ),
}  # fmt: skip


_OF_TIMES = ("unreached", "false_of_all", "said_of_all")


def metric_tables() -> Iterator[str]:
    """Yield the section on other metrics; nothing where none was measured."""
    if (figures := figures_of("metric_verdicts")) is None:
        return
    known = figures["metrics"]
    rows = [row for one in known.values() for row in one["rows"] if row["figures"] is not None]
    counts = [row["figures"]["studies"] for row in rows]
    yield ABOUT.format(studies=f"{sum(counts):,}", row=f"{max(counts):,}")
    for name, one in known.items():
        yield from _table(name, one)


def _table(name: str, one: Mapping[str, Any]) -> Iterator[str]:
    title, about = TITLES[name]
    yield f"\n### {title}\n"
    yield f"{about} Flown {one['date']} at commit {one['commit']}.\n"
    if one["missed"]:
        yield "**Missed**:\n"
        yield "\n".join(f"- {words}" for words in one["missed"]) + "\n"
    late = name in ("episodes", "seconds")
    yield (
        "| noise | seeds | false claims | called equivalent | intervals that hold the truth (stated) | power | "
        f"sign errors | equivalent at the margin |{' not claimed | read of all | of all |' if late else ''}"
    )
    yield "|---|---|---|---|---|---|---|---|" + ("---|---|---|" if late else "")
    for cell, seeds in dict.fromkeys((row["cell"], row["n"]) for row in one["rows"]):
        yield _row(cell, seeds, one["rows"], late=late)


def _row(cell: str, seeds: int, rows: Sequence[Mapping[str, Any]], *, late: bool) -> str:
    null, planted = (_of(rows, cell, seeds, planted=kind) for kind in (False, True))
    cells = [
        *(share_of(null[name] if null else None) for name in ("false", "equivalent")),
        _coverage(null),
        *(share_of(planted[name] if planted else None) for name in ("found", "wrong_sign", "falsely_equivalent")),
        *(share_of(null[field] if null else None) for field in (_OF_TIMES if late else ())),
    ]
    return f"| {cell} | {seeds} | {' | '.join(cells)} |"


def _of(
    rows: Sequence[Mapping[str, Any]], cell: str, seeds: int, *, planted: bool
) -> Mapping[str, Any] | None:  # fmt: skip
    found = (row["figures"] for row in rows if (row["cell"], row["n"], row["planted"]) == (cell, seeds, planted))
    return next(found, None)


def _coverage(null: Mapping[str, Any] | None) -> str:
    if null is None or null["coverage"] is None:
        return ""
    return f"{share_of(null['coverage'])} ({100 * null['level']:.1f})"
