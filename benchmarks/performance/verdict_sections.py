"""The sections on how often verdicts are wrong: over simulated studies, by the rules alone, on real noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from performance.headlines import real_row, row_with, suite_figure, verdict_row
from performance.results import Figures
from performance.writing import counted, percent, rate, share, table

MIXTURE = "mixture: "


def simlab(figures: Figures) -> Iterator[str]:
    """Yield what simulated studies with a planted truth came to."""
    flights = sum(suite["flights"] for suite in figures["suites"].values())
    yield (
        f"How often the system is wrong, over {flights:,} simulated studies with planted truth or over recorded real "
        "trainings. *Ugly* means that each study draws its own mixture: trainings that collapse, arms of unequal "
        "noise, heavy tails, runs that go with or against each other, a noise bank that is wrong by a factor of 2. All "
        "figures, and the bars that are missed: [calibration.md](calibration.md)."
    )
    yield from table(("", "measured", "bar"), [*_claims(figures), *_attacks(figures), *_searches(figures)])
    yield "The search was chosen after it was seen on these recorded trainings: for it they are no held-out test."


def _claims(figures: Figures) -> Iterator[tuple[str, str, str]]:
    def figure(suite: str, name: str) -> Mapping[str, Any]:
        return suite_figure(figures, suite, name)

    promised = row_with(figures["suites"]["effects"]["rows"], cell="mixture")["power at the promised effect"]
    power = figure("effects", MIXTURE + "power")
    ends = [power[end] for end in ("value", "low", "high")]
    yield (
        "ugly studies of fields that do nothing, with a false claim",
        share(figure("null", MIXTURE + "studies with a false claim")), "5 %",
    )  # fmt: skip
    yield "ugly studies of an effect: wrong sign", counted(figure("effects", MIXTURE + "sign errors")), "1 %"
    yield (
        "called equivalent where the difference is the margin",
        share(figure("effects", MIXTURE + "called equivalent at the margin")), "5 %",
    )  # fmt: skip
    yield "ugly studies of an effect as large as the design promised to see: found", promised, "-"
    yield (
        "ugly studies of an effect as large as the seeds can see in the noise that was really met: found",
        rate(ends),
        "75 %",
    )
    yield "clean noise: wrong sign", counted(figure("effects", "sign errors")), "1 %"
    yield (
        "clean noise: equivalence claimed at the margin",
        share(figure("equivalence", "equivalent at the margin")),
        "5 %",
    )


def _attacks(figures: Figures) -> Iterator[tuple[str, str, str]]:
    named = suite_figure(figures, "baits", "confounds named")
    forged = suite_figure(figures, "traps", "traps that became a result")
    killed = suite_figure(figures, "faults", "same verdicts after a kill")
    yield "confounds as baits: named, and nothing claimed", counted(named), "all"
    yield "forged, edited, deleted or demanded results that became a verdict", counted(forged), "none"
    yield "`kill -9` at every event: same verdicts, no run twice, none left over", counted(killed), "all"


def _searches(figures: Figures) -> Iterator[tuple[str, str, str]]:
    def regret(prefix: str, *others: str) -> str:
        values = {
            name: suite_figure(figures, "regret", f"{prefix}regret, {name}")["value"] for name in ("ajet", *others)
        }
        return f"{values.pop('ajet'):.2f}; " + ", ".join(f"{name} {value:.2f}" for name, value in values.items())

    def false(name: str) -> Mapping[str, Any]:
        return suite_figure(figures, "regret", f"false among claims, {name}")

    yield (
        "regret of a search at 40 whole runs, planted worlds",
        regret("", "random", "tpe", "asha", "greedy"),
        "below all",
    )
    others = ", ".join(f"{name} {percent(false(name)['value'])}" for name in ("greedy", "single seed"))
    yield "false among its claims", f"{counted(false('ajet'))}; {others}", "far below"
    for runs in (40, 20):
        measured = regret(f"recorded trainings, {runs} runs: ", "random", "tpe", "greedy")
        yield f"regret on recorded real trainings, {runs} runs", measured, "below all"


def verdicts(figures: Figures) -> Iterator[str]:
    """Yield what the rules of the verdict alone get wrong, before they were changed and after."""
    studies = verdict_row(figures, "clean", planted=False)["studies"]
    yield (
        f"The verdict alone, {studies:,} simulated studies a figure, each of two arms with five seeds; *before*: "
        "the same studies judged by the earlier rules, which older designs are locked with. Bars: false "
        "claims in at most 5 %, power of at least 75 %."
    )
    rows = []
    for name, cell, planted, field, bar in (
        ("false claims, clean noise", "clean", False, "false", 0.05),
        ("false claims, noise of one arm five times the other's", "noise 1:5", False, "false", 0.05),
        ("false claims, runs of one seed go against each other", "correlation -0.6", False, "false", 0.05),
        ("false claims, mixture", "mixture", False, "false", 0.05),
        ("power at the promised effect, clean noise", "clean", True, "found", 0.75),
        ("power at the effect promised for clean noise, mixture", "mixture", True, "found", 0.75),
    ):
        now = verdict_row(figures, cell, planted=planted)[field]
        before = verdict_row(figures, cell, planted=planted, rules="before")[field]
        kept = now[0] >= bar if planted else now[0] <= bar
        rows.append((name, rate(now), percent(before[0], 1), "kept" if kept else "**missed**"))
    yield from table(("", "measured", "before", "bar"), rows)


def metric_verdicts(figures: Figures) -> Iterator[str]:
    """Yield what verdicts on other metrics than success get wrong."""
    yield (
        "The verdict alone, on metrics that are read off simulated hidden curves whose truth is planted in the "
        "metric's own unit; five seeds. Bars: false claims in at most 5 %, power of at least 75 % with clean noise. "
        "An interval is off where it holds the truth 2 % more or less often than it states: those of rates, on exact "
        "limits, mostly more. All cells, and the bars that are missed: [calibration.md](calibration.md)."
    )
    rows = []
    for metric, clean in (
        ("episodes", "clean"),
        ("area", "clean"),
        ("area:0.7", "clean"),
        ("collapse", "50 % in both"),
    ):
        found = figures["metrics"][metric]["rows"]
        power = "none collapse" if metric == "collapse" else "clean"
        rates = (
            row_with(found, cell=cell, n=5, planted=planted)["figures"][name]
            for cell, planted, name in ((clean, False, "false"), ("mixture", False, "false"), (power, True, "found"))
        )
        missed = figures["metrics"][metric]["missed"]
        off = sum(": intervals:" in words for words in missed)
        rows.append((f"`{metric}`", *map(rate, rates), str(len(missed) - off), str(off)))
    heads = ("metric", "false claims, equal arms", "the same, mixture", "power", "bars missed", "intervals off")
    yield from table(heads, rows)


def inquiries(figures: Figures) -> Iterator[str]:
    """Yield what inquiries of several rounds claim falsely, with and without ledgers of error."""
    known = figures["rows"]
    yield (
        f"Inquiries of twelve rounds under two error ledgers, {max(row['inquiries'] for row in known):,} of each kind, "
        "judged by the shipped verdict; the planner chooses each question on all that came before. The upper end of an "
        "interval is to lie at 6 % or below. All kinds: [calibration.md](calibration.md)."
    )
    rows = [
        (
            f"{row['truth']}, asked by: {row['planner']}" + ("" if row["noise"] == "normal" else f", {row['noise']}"),
            "two ledgers" if row["ledgers"] else "5 % each round",
            *(rate(row[name]) for name in ("false_difference", "false_equivalence")),
        )
        for row in known
    ]
    yield from table(("what is true", "level", "any false difference", "any false equivalence"), rows)


def real_noise(figures: Figures) -> Iterator[str]:
    """Yield what verdicts get wrong on the noise of real trainings."""
    studies = real_row(figures, "game", planted=False)["studies"]
    yield (
        f"Residuals of 1,800 real runs (Dopamine's Atari baselines) drawn again into {studies:,} studies a row, five "
        "runs in each arm. Drawn from the *agent*, arms differ in noise as they really do; *normal five* is the "
        "yardstick for what five values that are drawn again do by themselves."
    )
    rows = [
        (way, *(rate(real_row(figures, way, planted=planted)[field]) for planted, field in
                ((False, "false_claim"), (True, "found"), (True, "wrong_sign"))))
        for way in ("game", "agent", "normal five")
    ]  # fmt: skip
    yield from table(("drawn from the", "false claims", "power", "wrong sign"), rows)
