"""Headline figures: of each benchmark the few that are followed from version to version, with their noise.

The noise of a figure is the half-width of its 95 % interval where its benchmark knows one; else what repetitions on a
shared machine of two cores differ by: a fifth of a duration or a rate, a tenth of a ratio of two that were measured in
turns, and half of a 99th percentile. Counts that must be exact have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rig.verl_scale import ScaleStep

from performance.writing import Figures, Result

OF_A_DURATION = 0.2
OF_A_RATIO = 0.1
SEEDS_ALONE = 0.03
"""What the mean of five runs of the first study moves by when only their seeds are others."""


@dataclass(frozen=True)
class Headline:
    """One figure of a benchmark; `better` is `higher` or `lower`, `noise` is in the figure's own unit."""

    name: str
    value: float
    noise: float
    better: str


def headlines(result: Result) -> list[Headline]:
    """Return the headline figures of a result; none for a benchmark that has none.

    Raises:
        KeyError: a result of another form, without a figure that is followed.
    """
    return list(OF[result.name](result.figures)) if result.name in OF else []


def row_with(rows: Sequence[Mapping[str, Any]], **wanted: object) -> Mapping[str, Any]:
    """Return the first row whose fields are as wanted."""
    for row in rows:
        if all(row[name] == value for name, value in wanted.items()):
            return row
    raise KeyError(f"expected a row with {wanted}; found none")


def suite_figure(figures: Figures, suite: str, name: str) -> Mapping[str, Any]:
    """Return a figure of SimLab by its suite and name."""
    return row_with(figures["suites"][suite]["figures"], name=name)


def verdict_row(figures: Figures, cell: str, *, planted: bool, rules: str = "after") -> Mapping[str, Any]:
    """Return the row of `verdicts.py` for two arms with five seeds each."""
    return row_with(figures["rows"], cell=cell, rules=rules, planted=planted, arms=2, n=5)


def real_row(figures: Figures, way: str, *, planted: bool) -> Mapping[str, Any]:
    """Return the row of `real_noise.py` for today's rules and five runs drawn in one way."""
    return row_with(figures["resampled"], way=way, rules="after", planted=planted, n=5)


def _interval(name: str, figure: Mapping[str, Any], better: str) -> Headline:
    noise = (figure["high"] - figure["low"]) / 2 if figure.get("low") is not None else 0.0
    return Headline(name, figure.get("value", figure.get("mean")), noise, better)


def _rate(name: str, ends: tuple[float, float, float], better: str) -> Headline:
    value, low, high = ends
    return Headline(name, value, (high - low) / 2, better)


def _timed(name: str, value: float, better: str) -> Headline:
    return Headline(name, value, OF_A_DURATION * value, better)


def _ratio(name: str, value: float, better: str = "higher") -> Headline:
    return Headline(name, value, OF_A_RATIO * value, better)


def _exact(name: str, value: float, better: str = "lower") -> Headline:
    return Headline(name, value, 0.0, better)


def _simlab(figures: Figures) -> Iterator[Headline]:
    def figure(name: str, suite: str, key: str, better: str) -> Headline:
        return _interval(name, suite_figure(figures, suite, key), better)

    yield figure("ugly nulls with a false claim", "null", "mixture: studies with a false claim", "lower")
    yield figure("ugly effects found", "effects", "mixture: power", "higher")
    yield figure("ugly effects with a wrong sign", "effects", "mixture: sign errors", "lower")
    yield figure("baits taken", "baits", "baits taken", "lower")
    yield figure("traps that became a result", "traps", "traps that became a result", "lower")
    yield figure("same verdicts after a kill", "faults", "same verdicts after a kill", "higher")
    yield figure("regret of a search", "regret", "regret, ajet", "lower")
    yield figure("false among a search's claims", "regret", "false among claims, ajet", "lower")


def _verdicts(figures: Figures) -> Iterator[Headline]:
    yield _rate("false claims, clean", verdict_row(figures, "clean", planted=False)["false"], "lower")
    against = verdict_row(figures, "correlation -0.6", planted=False)
    yield _rate("false claims, seeds against each other", against["false"], "lower")
    yield _rate("power, clean", verdict_row(figures, "clean", planted=True)["found"], "higher")
    yield _rate("power, mixture", verdict_row(figures, "mixture", planted=True)["found"], "higher")


def _real_noise(figures: Figures) -> Iterator[Headline]:
    yield _rate("false claims", real_row(figures, "game", planted=False)["false_claim"], "lower")
    yield _rate("power", real_row(figures, "game", planted=True)["found"], "higher")


def _first_study(figures: Figures) -> Iterator[Headline]:
    yield _timed("command to report, s", figures["seconds"]["command to report"], "lower")
    yield _timed("one run, s", figures["seconds per run (mean)"]["whole"], "lower")
    yield Headline(
        "hidden success, group size 4", figures["hidden success (mean)"]["group_size=4"]["after"], 0.03, "higher"
    )
    yield _exact("continued calls whose ids were not kept", figures["captured"]["forked calls"])


def _orchestration(figures: Figures) -> Iterator[Headline]:
    yield _timed("a look in vain at 10,000 runs, s", row_with(figures["ticks"], runs=10_000)["idle tick"], "lower")
    yield _timed("an attempt in Prefect, s", figures["prefect"][0]["an attempt, server"], "lower")
    yield _timed("list of 1,000 studies, s", figures["list"]["again"], "lower")
    yield Headline("a controller's growth over ten days, MiB", figures["days"]["grown"], 5.0, "lower")


def _server_capacity(figures: Figures) -> Iterator[Headline]:
    yield _ratio("calls/s over the bare route's", figures["ratio of calls per second"])
    yield _timed("added p50 at half load, ms", figures["added p50 ms"], "lower")
    yield Headline("p99 over p50", figures["p99 over p50"], figures["p99 over p50"] / 2, "lower")
    yield _ratio("CPU of turn 64 over turn 1", figures["growth"]["CPU of turn 64 over turn 1"], "lower")


def _soak(figures: Figures) -> Iterator[Headline]:
    yield _exact("violations of what must be exact", sum(figures["must be zero"].values()))
    yield _timed("kill to serving again, s", figures["seconds to roll again"]["median"], "lower")


def _generate(figures: Figures) -> Iterator[Headline]:
    def over(other: str) -> list[float]:
        return [row["ours over"][other] for row in figures["rows"] if other in row["ours over"] and row["threads"] == 1]

    for other in ("static", "continuous", "vllm"):
        if over(other):
            yield _ratio(f"tokens/s over {other}, median of all loads", median(over(other)))


def _train_step(figures: Figures) -> Iterator[Headline]:
    for layout in ("linear", "tree"):
        row = row_with(figures["layouts"], workload="T = 20", layout=layout)
        yield _ratio(f"20 turns, times as fast, {layout}", row["wall ratio"])


def _real_model(figures: Figures) -> Iterator[Headline]:
    for variant in ("fp32-2", "lora-2"):
        row = row_with(figures["rows"], variant=variant, code="here")
        for part in ("rollout", "update"):
            yield _timed(f"{figures['model']}, {variant}: {part}, s", row[part], "lower")


def _overlap(figures: Figures) -> Iterator[Headline]:
    yield _ratio("steps an hour, overlapping over alternating", median(figures["ratio of steps an hour"]))
    yield _interval("reward lost by overlap", figures["difference within seeds"]["reward"], "higher")


def _against_trl(figures: Figures) -> Iterator[Headline]:
    for environment, found in figures["environments"].items():
        for contestant in ("ajet", "ajet, no server"):
            yield _ratio(
                f"{environment}: {contestant}, times TRL's steps/min", found[contestant]["times TRL's steps per minute"]
            )


def _learning_curves(figures: Figures) -> Iterator[Headline]:
    for environment, found in figures["environments"].items():
        for algorithm, curve in found.items():
            yield _interval(f"{environment}, {algorithm}: reward at the end", curve["end"], "higher")


def _sandbox(figures: Figures) -> Iterator[Headline]:
    yield _timed(
        "container to the first call, s", figures["start"]["seconds"]["container"]["to the first call"], "lower"
    )
    calls = figures["calls"]["64 connections"]["ratio of calls per second"]["container"]
    yield _ratio("calls/s at 64 connections over the process's", calls)


def _merge_ratio(figures: Figures) -> Iterator[Headline]:
    wrong = sum(
        row[view] != row["closed form"][view] for row in figures["workloads"] for view in ("unmerged", "linear", "tree")
    )
    yield _exact("counts that are not the closed form's", wrong)


def _verl_backend(figures: Figures) -> Iterator[Headline]:
    for what, ratio in figures["verl over local, within rounds"].items():
        yield _ratio(f"{what}, verl over local", ratio, "lower")
    judged = row_with(figures["at scale"], assumed={**asdict(ScaleStep())})
    yield _timed("own part of a step of 1B parameters", judged["part"], "lower")


def _verl_agreement(figures: Figures) -> Iterator[Headline]:
    for environment, own in figures["environments"].items():
        for measure, found in own["verdicts"].items():
            same = found["equivalence"]
            if same is not None:
                apart = max(abs(same["low"]), abs(same["high"]))
                noise = (same["high"] - same["low"]) / 2
                yield Headline(f"{environment}, {measure}: most that verl may differ by", apart, noise, "lower")


OF: Mapping[str, Callable[[Figures], Iterator[Headline]]] = {
    "simlab": _simlab,
    "verdicts": _verdicts,
    "real_noise": _real_noise,
    "first_study": _first_study,
    "orchestration": _orchestration,
    "server_capacity": _server_capacity,
    "soak": _soak,
    "generate": _generate,
    "train_step": _train_step,
    "overlap": _overlap,
    "real_model": _real_model,
    "against_trl": _against_trl,
    "learning_curves": _learning_curves,
    "verl_backend": _verl_backend,
    "verl_agreement": _verl_agreement,
    "sandbox": _sandbox,
    "merge_ratio": _merge_ratio,
}
"""The headline figures of each benchmark, in the order of the page."""
