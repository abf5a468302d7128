"""`docs/calibration.md`, from what the benchmarks of verdicts measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.campaign_verdicts import missed
from rig.frame import RESULTS
from rig.plots import drawings

VERDICTS = """
## The rules alone, before and after

`python benchmarks/verdicts.py --json` judges simulated studies by the shipped verdict alone, which is quick enough
for thousands of each kind: {studies} studies, the same kinds of ugliness as above. *Before* is what designs locked
until these rules: one variance that the noise bank has a part in, seeds shared by the arms, a first look at two
seeds, the mean of all trainings. *After* is what they lock now: Welch's test (of more than two arms one variance of
all of them), a seed of its own for each run, a first look at three, the mean of the trainings that do not collapse
with the rate of collapse beside it. `paired` is locked where seeds are shared.

A claim counts as false by the truth that its verdict names. *Read of all*: how often it would be false if a reader
took it for one about all trainings. No test of a few seeds can mend that: five clean runs leave a rate of collapse of
up to 45 % open, and the headline says so. The promised effect is what so many seeds see with power 0.8 under clean
noise, times what the noise of the two arms is above that; it is the margin of equivalence. With collapses, power is
less than promised because fewer runs are left, and where fewer than three are left in an arm nothing is said of the
mean.
"""
REAL = """
## The noise of real trainings

`python benchmarks/real_noise.py --json` draws the residuals of 1,800 real runs again: Dopamine's Atari baselines
(Apache License 2.0), 6 agents on 60 games with 5 seeds each, as shares of each game's range. A residual is a run's
distance from the mean of its own five, made larger by sqrt(5/4) for that mean being theirs. Drawn from the *agent*,
each arm has the five residuals of one agent, so that arms differ in noise as they really do; drawn from the *game*,
both have the thirty of the game. The bank knows the mean noise of the game, and promised effect and margin follow
from it.

What this can say: whether verdicts hold where spreads differ as they really do. What it cannot: five values have no
tail beyond themselves, and what is drawn from them is discrete. A run of the five that is far from the other four is
missing from half of all samples of three and from a sixth of those of eight; what is left then looks quiet, and is not
where the truth was put. *Normal five* is the yardstick for that: five normal values of the same spread, drawn from in
the same way. What the rows of the agent have above those is real: cells in which one training of five is far from the
rest, as after a collapse that nobody recorded. Nothing is known of collapses here, so that no run is left out.
"""


def verdict_tables() -> Iterator[str]:
    """Yield the section on the rules alone; nothing where they were not measured."""
    if (figures := figures_of("verdicts")) is None:
        return
    rows = figures["rows"]
    yield VERDICTS.format(studies=f"{sum(row['studies'] for row in rows):,}")
    for arms, n in sorted({(row["arms"], row["n"]) for row in rows}):
        found = [row for row in rows if (row["arms"], row["n"]) == (arms, n)]
        yield f"\n**{arms} arms, {n} seeds each** ({_counts(found)} studies a row)\n"
        yield "| noise | rules | false claims | read of all | nulls called equivalent | power | sign errors | equivalent at the margin |"  # noqa: E501
        yield "|---|---|---|---|---|---|---|---|"
        for cell, rules in dict.fromkeys((row["cell"], row["rules"]) for row in found):
            yield _verdict_row(cell, rules, found)


def real_noise_tables() -> Iterator[str]:
    """Yield the section on real noise; nothing where it was not measured."""
    if (figures := figures_of("real_noise")) is None:
        return
    yield REAL
    rows = figures["resampled"]
    yield f"{_counts(rows)} studies a row.\n"
    yield "| drawn from the | seeds | rules | false claims | nulls called equivalent | power | sign errors | equivalent at the margin |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|"
    for null, planted in zip(rows[::2], rows[1::2], strict=True):
        rates = [
            null["false_claim"],
            null["equivalent"],
            *(planted[it] for it in ("found", "wrong_sign", "equivalent")),
        ]
        cells = [null["way"], str(null["n"]), null["rules"], *map(share_of, rates)]
        yield f"| {' | '.join(cells)} |"
    for found in figures["published"]:
        if found["rules"] == "after":
            yield (
                f"\nOf the {found['pairs']} real pairs of agents, as published, {found['claimed'][0]:.0%} are "
                f"claimed to differ. The difference of one run each has the other sign than that of the means of five "
                f"in {found['one_seed_contradicts']:.1%} of all choices of two runs, and in "
                f"{found['one_seed_contradicts_a_claim']:.1%} of those where a difference is claimed."
            )


def figures_of(name: str) -> Mapping[str, Any] | None:
    """Return what a benchmark wrote; None where it was not run."""
    path = RESULTS / f"{name}.json"
    value: Mapping[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return value


def _counts(rows: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(f"{count:,}" for count in sorted({row["studies"] for row in rows}))


def _verdict_row(cell: str, rules: str, rows: Sequence[Mapping[str, Any]]) -> str:
    null, planted = (
        next((row for row in rows if (row["cell"], row["rules"], row["planted"]) == (cell, rules, kind)), None)
        for kind in (False, True)
    )
    cells = [
        *(share_of(null[name] if null else None) for name in ("false", "false_of_all", "equivalent")),
        *(share_of(planted[name] if planted else None) for name in ("found", "wrong_sign", "falsely_equivalent")),
    ]
    return f"| {cell} | {rules} | {' | '.join(cells)} |"


def share_of(rate: Sequence[float] | None) -> str:
    """Return a share with its interval; nothing for none."""
    if rate is None:
        return ""
    value, low, high = (f"{100 * end:.1f}" for end in rate)
    return f"{value} % [{low}, {high}]"


ABOUT_INQUIRIES = """
## Inquiries of twelve rounds, judged alone

`python benchmarks/inquiries.py --json` asks twelve questions one after the other, each chosen on what came before, and
judges each round by the shipped verdict at the level that the shipped ledgers give it: {inquiries} inquiries. A round
is a real design at its place in the inquiry, of one to three claims with five seeds an arm, looked at after three and
five. There are two ledgers, one of claims of a difference and one of claims of equivalence; the promise is that each
kind is false anywhere in an inquiry with a probability of 5 % at most, whoever asks: one that asks something new each
time (*plain*); one that asks the *largest* estimate again; one that *repeats* until something is claimed; one that
*farms* sure questions in every second round, to earn level for hopeless ones; and a *liar* that asks for three claims a
round, whatever looked best first. An effect is as large as the margin of equivalence, which five seeds see with a power
of 80 % at a level of 5 %, or of 96 % where equivalences are asked for; it has either sign. A question that is asked
again is a new round on fresh runs of control and treatment.

*Either*: any false claim of either kind, of which nothing is promised but the sum. *Overdrawn*: rounds that had a claim
without an effect spent more than 5 % in levels, up to the first false one. *5 % each round*: the same inquiries where
every round has the whole level to itself, as somebody has who tests until something is significant. The goal of all
others: the upper end of the interval of any false claim of a kind at 6 % or below.
"""
POWER = """
**What later rounds still see**: effects as large as the margin that were claimed with their sign, by round. Where
effects are found their level is handed on, so that rounds after them see more.
"""
SHOWN_ROUNDS = (1, 2, 3, 4, 6, 9, 12)


def inquiry_tables() -> Iterator[str]:
    """Yield the chapter; nothing where no inquiry was flown."""
    if (figures := figures_of("inquiries")) is None:
        return
    rows = figures["rows"]
    yield ABOUT_INQUIRIES.format(inquiries=f"{sum(row['inquiries'] for row in rows):,}")
    if short := missed(rows):
        yield "**Missed**:\n"
        yield "\n".join(f"- {words}" for words in short) + "\n"
    yield (
        "| true | asked by | noise | level | inquiries | any false difference | any false equivalence | either | "
        "false of all claims | right differences | right equivalences | overdrawn |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    yield from map(_row, rows)
    yield f"\nFlown {', '.join(_flown(rows))}."
    yield from _power([row for row in rows if row["ledgers"] and row["power"][0] is not None])


def _row(row: Mapping[str, Any]) -> str:
    cells = [
        row["truth"], row["planner"], row["noise"], "two ledgers" if row["ledgers"] else "5 % each round",
        f"{row['inquiries']:,}",
        *(share_of(row[name]) for name in ("false_difference", "false_equivalence", "either", "false_among_claims")),
        f"{row['right_differences']:.2f}", f"{row['right_equivalences']:.2f}", f"{100 * row['overdrawn'][0]:.0f} %",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _flown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{day} at commit {commit}" for day, commit in dict.fromkeys((row["date"], row["commit"]) for row in rows)]


def _power(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield POWER
    yield f"| true | asked by | noise | {' | '.join(f'round {number}' for number in SHOWN_ROUNDS)} |"
    yield f"|---|---|---|{'---|' * len(SHOWN_ROUNDS)}"
    for row in rows:
        found = [row["power"][number - 1] for number in SHOWN_ROUNDS]
        shown = [f"{100 * share[0]:.0f} %" if share else "" for share in found]
        yield f"| {row['truth']} | {row['planner']} | {row['noise']} | {' | '.join(shown)} |"


ABOUT_METRICS = """
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
    yield ABOUT_METRICS.format(studies=f"{sum(counts):,}", row=f"{max(counts):,}")
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
        yield _metric_row(cell, seeds, one["rows"], late=late)


def _metric_row(cell: str, seeds: int, rows: Sequence[Mapping[str, Any]], *, late: bool) -> str:
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


DOCS = Path(__file__).parents[2] / "docs"
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
