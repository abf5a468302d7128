"""`docs/calibration.md`: how often the system is wrong, as the benchmarks of verdicts measured it.

The page holds the bars and the worst cells; every cell stands in the figures beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rig.campaign_verdicts import missed
from rig.frame import RESULTS
from rig.plots import drawings

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = "calibration"
_FIGURES = "../benchmarks/results"
_MOST_FALSE = 0.05
Row = Mapping[str, Any]
INTRODUCTION = f"""\
# Calibration: how often ajet is wrong

*For whoever asks whether a verdict can be trusted, and for reviewers of the statistics; [verdicts.md](verdicts.md) says
what it means for a report.*

Every figure here is of simulated studies whose truth is known. They run through the shipped code: planner, design
compiler, scheduler, recovery, collection, statistics, report. What is simulated is the training: nothing on this page
says what works in reinforcement learning. Two worlds of *search* are grids of real trainings that were recorded once.

The noise is as ugly as real noise may be: trainings that collapse, in all arms or in one; an arm that is twice or five
times as loud; heavy tails; runs of one seed that go together; a measure near its ceiling; arms that sometimes never
start or are skewed; a noise bank that is wrong by a factor of 2, or that knows nothing, so that a pilot sizes; and a
mixture that each study draws from its own seed, so that nobody could tune to one. Judged by the rules alone: arms that
do more for some tasks than for others; studies that a budget or a hand ends. A claim is scored against the truth that
its verdict names. Runs of one seed that go against each other are *out of scope*
([why](statistics.md#where-this-is-approximate)): no mixture has them, and where a bar can be told it is told beside.
Brackets hold 95 % (Clopper and Pearson for shares, Student for means). Bars were set before these runs; one that too
few studies were run to tell is neither kept nor missed. Every cell:
[simlab.json]({_FIGURES}/simlab.json).
"""
PICTURES = {
    "bars.svg": "Shares with a bar. Dot: measured; line: its 95 % interval; tick: the bar; cross: missed.",
    "null.svg": "Each claim's interval, by its estimate; the truth is 0 everywhere.",
    "power.svg": "How often a difference is found, by its size in standard deviations between seeds.",
    "equivalence.svg": "Verdicts by the true difference; the margin is 0.10.",
}
NOTES = """
- **search**: on the recorded grids the best gains 0.09 (`arith`) and 0.04 (`guess`) over the default job, less than the
  effect of 0.1 that a study is sized for: a search that ends without a claim chooses nothing, a regret of 1.
- **inquiries** are too few to tell 5 %; so many that it can be told are below, judged by the rules alone.
"""


class Chapter(NamedTuple):
    """A benchmark that judges simulated data by the shipped verdict alone, thousands of times."""

    title: str
    figures: str
    about: str
    shares: Mapping[str, str]
    """Keys of a row, and what they are called; the largest is the worst, but for power."""


_SHARES = {
    "false": "false claims where there is no difference", "wrong_sign": "claims of the wrong sign",
    "falsely_equivalent": "called equivalent at the margin", "found": "power at the promised effect",
}  # fmt: skip
RULES = Chapter(
    "The rules alone", "verdicts",
    "Studies of 2 or 5 arms with 3, 5 or 8 seeds under each ugliness, judged by what designs lock today: all arms have "
    "the same seeds; Welch's test (of more than two arms one variance of all), or *paired*, which is locked where runs "
    "of one seed surely go together; the mean of the trainings that do not collapse. The promised effect is what so "
    "many seeds see with power 0.8 under clean noise; with collapses fewer runs are left, and power is less than "
    "promised. *Stuck* trainings stay where they began, in one arm; claims of the arms' means are counted where all "
    "trainings, and where those that start, are equally good. A *pilot* sizes up to 20 seeds where nothing is known of "
    "the noise, also of a *trend* over all arms. A *budget* ends studies at a run that chance picks, the *peeker* at "
    "the first run after which that leads to a claim.",
    _SHARES,
)  # fmt: skip
REAL = Chapter(
    "The noise of real trainings", "real_noise",
    "Residuals of 1,800 real runs drawn again: Dopamine's Atari baselines (Apache License 2.0), 6 agents on 60 games "
    "with 5 seeds each. Whether verdicts hold where spreads differ as they really do; five values have no tail beyond "
    "themselves, and nothing is known of collapses. *Normal five* is the yardstick for that.",
    {"false_claim": _SHARES["false"], "wrong_sign": _SHARES["wrong_sign"],
     "equivalent": _SHARES["falsely_equivalent"], "found": _SHARES["found"]},
)  # fmt: skip
INQUIRIES = Chapter(
    "Inquiries of twelve rounds", "inquiries",
    "Twelve questions one after the other, each chosen on what came before, judged at the level that the shipped "
    "ledgers give them: one of claims of a difference, one of claims of equivalence, each to be false anywhere in an "
    "inquiry with a probability of 5 % at most, whoever asks (one asks the largest estimate again, one repeats until "
    "something is claimed, one farms sure questions to earn level, one lies). *5 % each round* is what somebody has "
    "who tests until something is significant.",
    {"false_difference": "any false difference", "false_equivalence": "any false equivalence"},
)  # fmt: skip
NEEDED = Chapter(
    "Runs to a verdict", "runs_needed",
    "Two arms of recorded trainings of the tiny model, asked for an effect of 0.03, 0.05 or 0.1 with a power of 0.8; "
    "*from* by the rules of 0.1.0 *to* those of today: runs until the effect is judged, those before the design among "
    "them, their seconds, and the power that came of it. Rules that fall short of 0.8 are charged in the sum. "
    "A setting's six residuals are drawn again, for both arms those of one seed: as with *normal five* above, few "
    "seeds err more than on fresh ones, most where the six of two settings happen to go against each other.",
    {},
)  # fmt: skip
METRICS = Chapter(
    "Other metrics than success", "metric_verdicts",
    "Runs with a hidden curve, of which the shipped metric reads its number; the truth is that of the curves. Times "
    "are restricted to the horizon: where a few runs of one arm alone never arrive, most samples hold none of them, "
    "and no test can see what is not there.",
    _SHARES,
)  # fmt: skip


def write_page(figures: Row, docs: Path = DOCS) -> None:
    """Write the page and its plots."""
    folder = docs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    drawn = drawings(figures["suites"])
    for name, svg in drawn.items():
        (folder / name).write_text(svg)
    (docs / "calibration.md").write_text("\n".join(_page(figures, set(drawn))) + "\n")


def _page(figures: Row, drawn: set[str]) -> Iterator[str]:
    suites = figures["suites"]
    yield INTRODUCTION
    yield _circumstances(figures)
    yield "\n## The suites\n"
    yield "| suite | question | studies | bars kept | missed | too few to tell |"
    yield "|---|---|---|---|---|---|"
    for name, suite in suites.items():
        bars = [figure["kept"] for figure in suite["figures"] if figure["bar"] and not figure.get("outside")]
        counts = f"{bars.count(True)} | {bars.count(False)} | {bars.count(None)}"
        yield f"| {name} | {suite['question']} | {suite['flights']:,} | {counts} |"
    yield NOTES
    yield "## The bars that can be told\n"
    yield "| suite | figure | measured | bar | |"
    yield "|---|---|---|---|---|"
    yield from _real_bars()
    yield from (line for name, suite in suites.items() for line in _bars(name, suite))
    yield from (f"\n![{about}]({FOLDER}/{name})" for name, about in PICTURES.items() if name in drawn)
    yield from _chapters()


def _circumstances(figures: Row) -> str:
    size = " at its quick size, too small for any figure to be relied on" if figures["quick"] else ""
    suites = figures["suites"].values()
    minutes, versions = (
        sum(suite["seconds"] for suite in suites) / 60,
        {suite.get("commit") for suite in suites} - {None},
    )
    several = f"; suites are of commits {', '.join(sorted(versions))}" if len(versions) > 1 else ""
    return (
        f"`python benchmarks/simlab.py --json` wrote this page{size}: {sum(suite['flights'] for suite in suites):,} "
        f"studies in {minutes:.0f} minutes on {figures['machine']['cpus']} cores ({figures['date']}, commit "
        f"{figures['commit'] or 'unknown'}{several})."
    )


def _bars(name: str, suite: Row) -> Iterator[str]:
    """Yield the bars that are told: missed ones, a line for each size, then kept ones, those of one kind together."""
    told = [figure for figure in suite["figures"] if figure["bar"]]
    short: dict[tuple[str, str], list[str]] = {}
    kinds: dict[tuple[str, str], list[Row]] = {}
    for figure in told:
        if figure.get("outside") and figure["kept"] is not None:
            result = "kept" if figure["kept"] else "missed"
            yield f"| {name} | {figure['name']} | {_measured(figure)} | {figure['bar']} | out of scope: {result} |"
        if figure.get("outside") or figure["kept"] is None:
            continue
        size, _, kind = figure["name"].rpartition(": ")
        if figure["kept"]:
            kinds.setdefault((kind, figure["bar"]), []).append(figure)
        else:
            what, measured = (size, f"{kind} {_measured(figure)}") if size else (kind, _measured(figure))
            short.setdefault((what, figure["bar"]), []).append(measured)
    for (size, bar), figures in short.items():
        yield f"| {name} | {size} | {'; '.join(figures)} | {bar} | **missed** |"
    alike: dict[tuple[str, str], list[str]] = {}
    for (kind, bar), some in kinds.items():
        ends = [_number(figure) for figure in sorted(some, key=lambda figure: figure["value"])]
        measured = _measured(some[0]) if len(some) == 1 else f"{ends[0]} to {ends[-1]}"
        named = some[0]["name"] if len(some) == 1 else f"{kind} ({len(some)} kinds)"
        alike.setdefault((measured, bar), []).append(named)
    for (measured, bar), names in alike.items():
        yield f"| {name} | {'; '.join(names)} | {measured} | {bar} | kept |"


def _measured(figure: Row) -> str:
    if figure["value"] is None:
        return "nothing to count"
    ends = f" [{_number(figure, 'low')}, {_number(figure, 'high')}]" if figure["low"] is not None else ""
    counts = f", {figure['count']} of {figure['of']}" if figure["count"] is not None else ""
    return f"{_number(figure)}{ends}{counts}"


def _number(figure: Row, name: str = "value") -> str:
    value = figure[name]
    return f"{100 * value:.1f} %" if figure["percent"] else f"{value:.3g}"


def _chapters() -> Iterator[str]:
    """Yield the worst cells of what was judged alone; nothing of what was not measured."""
    if (found := figures_of(RULES.figures)) is not None:
        yield from _head(RULES, "studies")
        yield from _alone(found["rows"])
    if (found := figures_of(REAL.figures)) is not None:
        yield from _head(REAL, "studies")
        for way in dict.fromkeys(row["way"] for row in found["resampled"]):
            rows = [row for row in found["resampled"] if row["way"] == way]
            yield _worst(REAL, f"drawn from the {way}", rows, "studies", lambda row: f"{row['n']} seeds")
    if (found := figures_of(INQUIRIES.figures)) is not None:
        yield from _head(INQUIRIES, "inquiries")
        for ledgers, level in ((True, "two ledgers"), (False, "5 % each round")):
            rows = [row for row in found["rows"] if row["ledgers"] is ledgers]
            yield _worst(
                INQUIRIES, level, rows, "inquiries", lambda row: f"{row['truth']}, {row['planner']}, {row['noise']}"
            )
        yield from (f"\n**Missed**: {words}." for words in missed(found["rows"]))
    if (found := figures_of(NEEDED.figures)) is not None:
        yield f"\n## {NEEDED.title}\n\n{NEEDED.about} `python benchmarks/runs_needed.py --json`:\n"
        yield from _runs_needed(found)
    if (found := figures_of(METRICS.figures)) is not None:
        yield from _head(METRICS, "studies")
        for name, one in found["metrics"].items():
            rows = [{**row, **row["figures"]} for row in one["rows"] if row["figures"] is not None]
            label = f"`{name}`; {len(one['missed'])} bars missed in {len(rows)} cells"
            yield _worst(METRICS, label, rows, "studies", lambda row: f"{row['cell']}, {row['n']} seeds")


_ALONE: Mapping[str, Callable[[Row], bool]] = {
    "runs of one seed that go against each other: out of scope": lambda row: row.get("outside", False),
    "one arm stuck in 5 or 10 % of its trainings": lambda row: row["cell"].startswith("stuck"),
    "one arm skewed, three times as loud": lambda row: row["cell"].startswith("skewed"),
    "arm x task, of these tasks": lambda row: row["cell"].startswith("arm x task"),
    "paired": lambda row: row["rules"] == "paired",
    "sized by a pilot, 2 arms": lambda row: row["rules"] == "pilot" and row["arms"] == 2,
    "sized by a pilot, 3 arms": lambda row: row["rules"] == "pilot" and row["arms"] == 3,
    "sized by a pilot, 5 arms": lambda row: row["rules"] == "pilot" and row["arms"] == 5,
    "a trend, sized by a pilot": lambda row: row["rules"] == "trend",
    "ended by its budget": lambda row: row["rules"] == "budget",
    "ended by a peeker": lambda row: row["rules"] == "peeker",
}
"""Studies by the rules alone that have a line of their own."""


def _alone(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the worst cells of all other studies by the rules alone, and of those."""
    parts = {label: [row for row in rows if is_one(row)] for label, is_one in _ALONE.items()}
    rest = [row for row in rows if not any(row in part for part in parts.values())]
    for label, part in {"all others": rest, **parts}.items():
        if part:
            yield _worst(
                RULES, label, part, "studies", lambda row: f"{row['cell']}, {row['arms']} arms, {row['n']} seeds"
            )


def _runs_needed(found: Row) -> Iterator[str]:
    """Yield a line for each state of knowledge, with a cell for each effect."""
    rows = [row for row in found["rows"] if row["planted"]]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    effects = sorted({row["effect"] for row in rows})
    yield f"| | noise | {' | '.join(f'an effect of {effect:g}' for effect in effects)} |"
    yield f"|---|---|{'---|' * len(effects)}"
    for place, known, later in dict.fromkeys((row["environment"], row["known"], row["later"]) for row in rows):
        state = "known, round 2 of 4" if later else "known" if known else "unknown"
        asked = {"environment": place, "known": known, "later": later}
        own = [pair for pair in pairs if asked.items() <= pair[1].items()]
        yield f"| {place} | {state} | {' | '.join(_from_to(*pair) for pair in own)} |"
    sums = (f"{name} {own['runs']:.2f}" for name, own in found["ratios"].items())
    yield f"\nRuns now over runs before, in sum over all of these: {', '.join(sums)}."
    worst = max((row for row in found["rows"] if not row["planted"] and row["rules"] == "now"), key=_claims)
    yield f"Most claims of nothing: {share_of(worst['claims'])} ({worst['environment']}, {worst['effect']:g})."


def _claims(row: Row) -> float:
    return float(row["claims"][0])


def _from_to(before: Row, now: Row) -> str:
    power = " to ".join(f"{100 * row['right'][0]:.0f}" for row in (before, now))
    return (
        f"{before['runs']:.1f} to {now['runs']:.1f} runs, {before['seconds']:.0f} to {now['seconds']:.0f} s, {power} %"
    )


def _real_bars() -> Iterator[str]:
    """Yield the share of false claims on real noise, which is to stand beside that on simulated noise."""
    for row in (figures_of(REAL.figures) or {}).get("resampled", ()):
        if row["way"] in ("agent", "game") and row["n"] == 5 and not row["planted"]:
            value, low, _ = row["false_claim"]
            kept = "kept" if value <= _MOST_FALSE else "**missed**" if low > _MOST_FALSE else "too few to tell"
            spread = "arms as loud as they were" if row["way"] == "agent" else "arms equally loud"
            what = f"residuals of real runs, {spread}: studies with a false claim"
            yield f"| real noise | {what} | {share_of(row['false_claim'])} | at most 5 % | {kept} |"


def _head(chapter: Chapter, counted: str) -> Iterator[str]:
    count = f"`python benchmarks/{chapter.figures}.py --json` ([every cell]({_FIGURES}/{chapter.figures}.json))"
    yield f"\n## {chapter.title}\n\n{chapter.about} The worst cells of {count}:\n"
    yield f"| | {counted} | {' | '.join(chapter.shares.values())} |\n|---|---|{'---|' * len(chapter.shares)}"


def _worst(chapter: Chapter, label: str, rows: Sequence[Row], counted: str, where: Callable[[Row], str]) -> str:
    cells = []
    for key in chapter.shares:
        planted = key in ("wrong_sign", "falsely_equivalent", "equivalent", "found")
        of = [row for row in rows if row.get(key) and row.get("planted", planted) is planted]
        of = [row for row in of if key != "found" or row["found"][0] > 0]  # else no such effect exists there
        worst = (min if key == "found" else max)(of, key=lambda row: float(row[key][0]))
        cells.append(f"{share_of(worst[key])}{f' ({where(worst)})' if worst[key][0] else ''}")
    return f"| {label} | {sum(row[counted] for row in rows):,} | {' | '.join(cells)} |"


def figures_of(name: str) -> Row | None:
    """Return what a benchmark wrote; None where it was not run."""
    path = RESULTS / f"{name}.json"
    value: Row | None = json.loads(path.read_text()) if path.exists() else None
    return value


def share_of(rate: Sequence[float]) -> str:
    value, low, high = (f"{100 * end:.1f}" for end in rate)
    return f"{value} % [{low}, {high}]"
