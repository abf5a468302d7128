"""Headline figures: of each benchmark the few that are followed from version to version, with their noise and goals.

The noise of a figure is the half-width of its 95 % interval where its benchmark knows one; else what repetitions on a
shared machine of two cores differ by: a fifth of a duration or a rate, a tenth of a ratio of two that were measured in
turns, and half of a 99th percentile. Counts that must be exact have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Headline:
    """One figure; `noise` is in its own unit, `text` is how the page shows it (the value with four digits without)."""

    name: str
    value: float
    noise: float
    lower_is_better: bool = False
    goal: float | None = None
    text: str = ""
    at: tuple[str, str] | None = None
    """Commit and day of its measurement, where they are not those of the whole file."""

    @property
    def better(self) -> str:
        """Return `higher` or `lower`."""
        return "lower" if self.lower_is_better else "higher"

    @property
    def missed(self) -> bool:
        """Say whether the figure misses its goal."""
        if self.goal is None:
            return False
        return self.value > self.goal if self.lower_is_better else self.value < self.goal


def row_with(rows: Sequence[Figures], **fields: object) -> Figures:
    """Return the first row whose fields are as given. Raises KeyError if there is none."""
    for row in rows:
        if all(row[name] == value for name, value in fields.items()):
            return row
    raise KeyError(f"expected a row with {fields}; found none")


def percent(value: float, digits: int = 1) -> str:
    """Return a share as percent."""
    return f"{100 * value:.{digits}f} %"


def rate(name: str, ends: Sequence[float], *, lower: bool, goal: float | None = None) -> Headline:
    """Return a share that its benchmark gives as value and both ends of its 95 % interval."""
    value, low, high = ends
    text = f"{percent(value)} ({100 * low:.1f} to {100 * high:.1f})"
    return Headline(name, value, (high - low) / 2, lower, goal, text)


def interval(name: str, figure: Figures, *, lower: bool = False, goal: float | None = None) -> Headline:
    """Return a figure with an interval: a share of a count (`value`, `count`, `of`) or a mean."""
    value = figure.get("value", figure.get("mean"))
    low, high = figure.get("low"), figure.get("high")
    noise = 0.0 if low is None or high is None else (high - low) / 2
    if figure.get("count") is None:
        text = f"{value:.3f}" + (f" ({low:.3f} to {high:.3f})" if noise else "")
    elif value in (0, 1):
        text = f"{figure['count']:,} of {figure['of']:,}"
    else:
        ends = f"(95 % interval {100 * figure['low']:.1f} to {100 * figure['high']:.1f})"
        text = f"{percent(value)} {ends}, {figure['count']:,} of {figure['of']:,}"
    return Headline(name, value, noise, lower, goal, text)


def seconds(name: str, value: float, goal: float | None = None) -> Headline:
    """Return a duration in seconds, or in what its name says."""
    return Headline(name, value, 0.2 * value, True, goal)


def ratio(name: str, value: float, *, lower: bool = False, goal: float | None = None, text: str = "") -> Headline:
    """Return a ratio of two that were measured in turns."""
    return Headline(name, value, 0.1 * value, lower, goal, text or f"{value:.2f}")


def exact(name: str, value: float, text: str = "") -> Headline:
    """Return a count that must be 0."""
    return Headline(name, value, 0.0, True, 0.0, text)


def _simlab(figures: Figures) -> Iterator[Headline]:
    def figure(name: str, suite: str, key: str, *, lower: bool, goal: float | None = None) -> Headline:
        own = figures["suites"][suite]
        headline = interval(name, row_with(own["figures"], name=key), lower=lower, goal=goal)
        at = (own["commit"], own["date"])
        return headline if at == (figures["commit"], figures["date"]) else replace(headline, at=at)

    false = "mixture: studies with a false claim"
    yield figure("ugly nulls with a false claim", "null", false, lower=True, goal=0.05)
    yield figure("ugly effects found", "effects", "mixture: power", lower=False, goal=0.75)
    yield figure("ugly effects with a wrong sign", "effects", "mixture: sign errors", lower=True, goal=0.01)
    yield figure("baits taken", "baits", "baits taken", lower=True, goal=0)
    yield figure("traps that became a result", "traps", "traps that became a result", lower=True, goal=0)
    yield figure("same verdicts after a kill", "faults", "same verdicts after a kill", lower=False, goal=1)
    yield figure("regret of a search, wherever there is something to gain", "search", "regret", lower=True)
    yield figure("regret of a search in planted worlds", "search", "regret in planted worlds", lower=True)
    for grid in ("arith", "guess"):
        kind = f"recorded trainings of {grid}"
        yield figure(f"regret of a search on {kind}", "search", f"regret, {kind}", lower=True)
    yield figure("searches with a claim of the wrong sign", "search", "searches with a claim of the wrong sign",
                 lower=True)  # fmt: skip


def _verdicts(figures: Figures) -> Iterator[Headline]:
    def told(
        name: str, cell: str, rules: str = "after", n: int = 5, arms: int = 2, *, planted: bool = False
    ) -> Iterator[Headline]:
        fields = {"cell": cell, "rules": rules, "planted": planted, "arms": arms, "n": n}
        for row in [row for row in figures["rows"] if fields.items() <= row.items()]:
            whole = name + ", out of scope" * row.get("outside", False)
            share = rate(whole, row["found" if planted else "false"], lower=not planted, goal=0.75 if planted else 0.05)
            yield replace(share, at=(row["commit"], row["date"])) if "commit" in row else share

    for cell, name in (("clean", "clean"), ("noise 1:5", "noise 1:5"), ("correlation -0.6", "seeds against each other"),
                       ("mixture", "mixture")):  # fmt: skip
        yield from told(f"false claims, {name}", cell)
    for cell in ("clean", "mixture"):
        yield from told(f"power, {cell}", cell, planted=True)
    for cell in ("stuck in one arm, 5 %, equal over all", "stuck in one arm, 10 %, equal over all",
                 "skewed in one arm, 3 times as loud"):  # fmt: skip
        yield from told(f"false claims, {cell}", cell)
    yield from told("false claims, ended by its budget", "clean", "budget", 8)
    yield from told("false claims, ended by a peeker", "clean", "peeker", 8)
    yield from told("false claims, ended by a peeker, 5 seeds", "clean", "peeker", 5)
    sized = "a pilot, effect of 2 sd"
    yield from told("false claims, sized by a pilot", sized, "pilot", 20)
    yield from told("power, sized by a pilot", sized, "pilot", 20, planted=True)
    for arms in (3, 5):
        yield from told(f"false claims, sized by a pilot, {arms} arms", sized, "pilot", 20, arms)
        yield from told(f"false claims on a trend, sized by a pilot, {arms} arms", sized, "trend", 20, arms)


def _metric_verdicts(figures: Figures) -> Iterator[Headline]:
    for metric in ("episodes", "area", "area:0.7", "training-area", "collapse"):
        if metric not in figures["metrics"]:
            continue
        rows = figures["metrics"][metric]["rows"]
        ugly = row_with(rows, cell="mixture", n=5, planted=False)["figures"]["false"]
        clean = row_with(rows, cell="none collapse" if metric == "collapse" else "clean", n=5, planted=True)
        yield rate(f"false claims on `{metric}`, mixture", ugly, lower=True, goal=0.05)
        yield rate(f"power on `{metric}`, clean", clean["figures"]["found"], lower=False, goal=0.75)


def _inquiries(figures: Figures) -> Iterator[Headline]:
    rows = [row for row in figures["rows"] if row["ledgers"]]
    for name, key in (("difference", "false_difference"), ("equivalence", "false_equivalence")):
        worst = max(rows, key=lambda row: row[key][2])
        kind = f"{worst['truth']}, asked by: {worst['planner']}, {worst['noise']}"
        yield rate(f"any false {name} in twelve rounds, the worst of {len(rows)} kinds: {kind}", worst[key], lower=True,
                   goal=0.06)  # fmt: skip
    without = row_with(figures["rows"], ledgers=False, truth="nothing", planner="plain")
    yield rate("any false difference of nothing, at 5 % each round", without["false_difference"], lower=True)


def _mechanisms(figures: Figures) -> Iterator[Headline]:
    for planner, told in figures["planners"].items():
        own = told["commit"], told["date"]
        at = None if own == (figures["circumstances"]["commit"], figures["circumstances"]["date"]) else own
        wrong = row_with(told["figures"], name="inquiries with anything false")
        yield replace(interval(f"{planner}: inquiries with anything false", wrong, lower=True, goal=0.05), at=at)
        named = "inquiries that name the mechanism, where there is one"
        yield replace(interval(f"{planner}: {named}", row_with(told["figures"], name=named)), at=at)


def _real_noise(figures: Figures) -> Iterator[Headline]:
    def row(way: str, *, planted: bool) -> Figures:
        return row_with(figures["resampled"], way=way, rules="after", planted=planted, n=5)

    yield rate("false claims", row("game", planted=False)["false_claim"], lower=True, goal=0.05)
    yield rate("false claims, arms that differ in noise", row("agent", planted=False)["false_claim"], lower=True,
               goal=0.05)  # fmt: skip
    yield rate("power", row("game", planted=True)["found"], lower=False, goal=0.75)


def _runs_needed(figures: Figures) -> Iterator[Headline]:
    for environment, goal in (("guess", 0.55), ("arith", 0.65)):
        own = figures["ratios"][environment]
        yield ratio(f"{environment}: runs to a verdict over those before", own["runs"], lower=True, goal=goal)


def _first_study(figures: Figures) -> Iterator[Headline]:
    yield seconds("command to report, s", figures["seconds"]["command to report"])
    if (verdict := figures["seconds"].get("of it: to the first verdict")) is not None:
        yield seconds("to the first verdict, s", verdict, goal=240.0)
    yield seconds("one run, s", figures["seconds per run (mean)"]["whole"], goal=18.0)
    if (own := figures.get("of a pretrained model")) is not None:
        took = seconds("on the 135M model: command to report, s", own["seconds"]["command to report"], goal=600.0)
        at = own["commit"], own["date"]
        yield replace(took, at=None if at == (figures["commit"], figures["date"]) else at)
    forked, kept = figures["captured"]["forked calls"], figures["captured"]["continued calls"]
    ids = f"{forked:.0f}; kept: {kept:,.0f} of {kept + forked:,.0f}"
    yield exact("continued calls whose ids were not kept", forked, ids)


def _evaluation_cost(figures: Figures) -> Iterator[Headline]:
    yield Headline(
        "longer for evaluations during training, share", figures["share of a run"]["longer"], 0.02, True, 0.1
    )


def _orchestration(figures: Figures) -> Iterator[Headline]:
    yield seconds("a look in vain at 10,000 runs, s", row_with(figures["ticks"], runs=10_000)["idle tick"])
    yield seconds("an attempt in Prefect, s", figures["prefect"][0]["an attempt, server"])
    yield seconds("list of 1,000 studies, s", figures["list"]["again"], goal=1.0)
    yield Headline("a controller's growth over ten days, MiB", figures["days"]["grown"], 5.0, True, 20.0)


def _server_capacity(figures: Figures) -> Iterator[Headline]:
    calls, tail = figures["calls per second"], figures["p99 over p50"]
    share = figures["ratio of calls per second"]
    text = f"{share:.2f} ({calls['server']:,} of {calls['bare']:,})"
    yield ratio("calls/s over the bare route's", share, text=text)
    yield seconds("added p50 at half load, ms", figures["added p50 ms"])
    yield Headline("p99 over p50", tail, tail / 2, True, 8.0)
    yield ratio("CPU of turn 64 over turn 1", figures["growth"]["CPU of turn 64 over turn 1"], lower=True)


def _soak(figures: Figures) -> Iterator[Headline]:
    must = figures["must be zero"]
    trained = figures["served (clients' logs), by what became of it (server's store)"]["trained"]["episodes"]
    once = (f"0; trained once each, lost, twice: {trained:,}; {must['acknowledged ends lost'] or 'none'}; "
            f"{must['episodes trained twice'] or 'none'}")  # fmt: skip
    wrong = sum(must.values())
    yield exact("violations of what must be exact", wrong, "" if wrong else once)
    yield seconds("kill to serving again, s", figures["seconds to roll again"]["median"])


def _scale(figures: Figures) -> Iterator[Headline]:
    eight = row_with(figures["traffic"], turns=8, client="ajet")
    yield ratio(
        "bytes up of a call of 8 turns",
        eight["bytes a call"]["up"],
        lower=True,
        text=f"{eight['bytes a call']['up']:,}",
    )
    stored = row_with(figures["store"], turns=8)["stored bytes an episode"]
    yield ratio("bytes stored of an episode of 8 turns", stored, lower=True, text=f"{stored:,}")


def _powers(figures: Figures) -> Iterator[Headline]:
    proofs = figures["proofs"]
    for arm, gain in proofs["teams"]["comparisons"].items():
        yield interval(f"teams: gain of both learning over the {arm}", {**gain, "value": gain["difference"]}, goal=0)
    for task, gap in proofs["cocktail"]["tasks"].items():
        name = f"cocktail: {task}, one model of three less one of its own ({gap['verdict']})"
        yield interval(name, {**gap, "value": gap["estimate"]}, goal=None if gap["verdict"] == "equivalent" else 0)
    reload = proofs["reload"]
    yield seconds("reload: from save to first play, s", reload["reload"]["median s"], reload["goal s"])


def _generate(figures: Figures) -> Iterator[Headline]:
    for other in ("static", "continuous", "vllm"):
        rows = [row for row in figures["rows"] if other in row["ours over"]]
        if rows:
            yield ratio(f"tokens/s over {other}, median of all loads", median(row["ours over"][other] for row in rows))


def _train_step(figures: Figures) -> Iterator[Headline]:
    for layout in ("linear", "tree"):
        row = row_with(figures["layouts"], workload="T = 20", layout=layout)
        yield ratio(f"20 turns, times as fast, {layout}", row["wall ratio"])


def _gpu(figures: Figures) -> Iterator[Headline]:
    def own(part: str, headline: Headline) -> Headline:
        at = figures.get("at", {}).get(part, figures)
        same = (at["commit"], at["date"]) == (figures["commit"], figures["date"])
        return headline if same else replace(headline, at=(at["commit"] or "unknown", at["date"]))

    checks = [row for row in figures.get("conformance", ()) if "holds" in row]
    if checks:
        wrong = sum(not row["holds"] for row in checks)
        yield own("conformance", exact(f"checks of {len(checks)} that do not hold", wrong))
    for row in figures.get("updates", ()):
        if row["layout"] == "linear" and row["T"] > 4 and "wall ratio" in row:
            yield own("updates", ratio(f"{row['workload']}, update on merged calls, times as fast", row["wall ratio"]))
    for row in figures.get("generation", ()):
        rates = row["tokens per second"]
        for other in sorted(rates.keys() - {"ours"}) if row["requests"] == 32 and "ours" in rates else ():
            yield own("generation", ratio(f"tokens/s over {other}, 32 requests", rates["ours"] / rates[other]))
    pace = {row["who"]: row["steps per minute"] for row in figures.get("steps", ()) if "steps per minute" in row}
    if {"ours", "trl"} <= pace.keys():
        yield own("steps", ratio("GRPO steps per minute over TRL's", pace["ours"] / pace["trl"]))


def _merge_ratio(figures: Figures) -> Iterator[Headline]:
    wrong = sum(
        row[view] != row["closed form"][view] for row in figures["workloads"] for view in ("unmerged", "linear", "tree")
    )
    yield exact("counts that are not the closed form's", wrong)


FASTER_THAN_TRL = {"arith": 0.8, "guess": 1.2}
"""Goals of the tiny models behind a server, in TRL's steps per minute."""


def _against_trl(figures: Figures) -> Iterator[Headline]:
    times = "times TRL's steps per minute"
    real = figures.get("real model", {"contests": {}})
    for contest in real["contests"].values():
        if not contest["quick"]:
            own = contest["commit"], contest["date"]
            name = f"{real['name']}, {contest['title']}: times TRL's steps/min"
            at = None if own == (figures["commit"], figures["date"]) else own
            yield replace(ratio(name, contest["ajet"][times], goal=contest["goal"]), at=at)
    for environment, contestants in figures["environments"].items():
        for contestant, goal in (("ajet", FASTER_THAN_TRL[environment]), ("ajet, no server", None)):
            name = f"{environment}: {contestant}, times TRL's steps/min"
            yield ratio(name, contestants[contestant][times], goal=goal)


def _real_model(figures: Figures) -> Iterator[Headline]:
    for variant in ("fp32-2", "lora-2"):
        row = row_with(figures["rows"], variant=variant, code="here")
        for part in ("rollout", "update"):
            yield seconds(f"{figures['model']}, {variant}: {part}, s", row[part])


def _verl_backend(figures: Figures) -> Iterator[Headline]:
    for what, value in figures["verl over local, within rounds"].items():
        yield ratio(f"{what}, verl over local", value, lower=True)
    part = figures["at scale"]["part"]
    yield ratio("own part of a step of 1B, computed", part, lower=True, goal=0.15, text=percent(part))


def _verl_agreement(figures: Figures) -> Iterator[Headline]:
    for environment, own in figures["environments"].items():
        verdict = own["verdicts"]["end"]
        if (same := verdict["equivalence"]) is not None:
            apart = max(abs(same["low"]), abs(same["high"]))
            name = f"{environment}, end: most that verl may differ by"
            yield Headline(name, apart, (same["high"] - same["low"]) / 2, True, verdict["margin"])


def _sandbox(figures: Figures) -> Iterator[Headline]:
    start = figures["start"]["seconds"]["container"]["to the first call"]
    yield seconds("container to the first call, s", start)
    calls = figures["calls"]["64 connections"]["ratio of calls per second"]["container"]
    yield ratio("calls/s at 64 connections over the process's", calls)


def _pages(figures: Figures) -> Iterator[Headline]:
    large = max(row["warm ms"] for row in figures["pages"]["rows"] if row["runs"] == 10_000)
    yield seconds("the slowest of desk, runs and review at 10,000 runs, warm, ms", large, 500.0)
    (late,) = (row["p99 s"] for row in figures["events"]["rows"] if row["tabs"] == 8)
    yield Headline("event to pixel, 8 tabs, 99th percentile, s", late, late / 2, True, 2.0)
    names = ("axe violations", "console messages", "requests off the host", "too wide")
    yield exact(
        "axe violations, console messages, requests off the host", sum(figures["browser"][name] for name in names)
    )


HEADLINES: Mapping[str, Callable[[Figures], Iterator[Headline]]] = {
    "simlab": _simlab, "verdicts": _verdicts, "metric_verdicts": _metric_verdicts, "inquiries": _inquiries,
    "mechanisms": _mechanisms, "real_noise": _real_noise, "runs_needed": _runs_needed, "first_study": _first_study,
    "evaluation_cost": _evaluation_cost, "orchestration": _orchestration, "pages": _pages,
    "server_capacity": _server_capacity,
    "soak": _soak, "scale": _scale, "powers": _powers, "generate": _generate, "train_step": _train_step, "gpu": _gpu,
    "merge_ratio": _merge_ratio, "against_trl": _against_trl, "real_model": _real_model,
    "verl_backend": _verl_backend, "verl_agreement": _verl_agreement, "sandbox": _sandbox,
}  # fmt: skip
"""The headline figures of each benchmark, by its name. Each raises KeyError for a result of another form."""
