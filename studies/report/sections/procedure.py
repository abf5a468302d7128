"""The locked procedure in words and tables: what was fixed before data about looks, noise, rules and limits.

It reads the design alone: nothing here depends on how the study went.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from studies.records.design import Design, Hypothesis, Metric
from studies.records.design_parts import Noise, Screen, Watchdog
from studies.report.parts.parts import Cell, Fact, Table, cell, pairs, table
from studies.report.parts.wording import NONE, in_unit, number, one_line, percent, plural, sized, value_of
from studies.report.sections.collapses import rule_said

_TESTS: Final = {
    "welch": "Welch's t-test (unequal variances)",
    "pooled": "t-test with one variance for all arms and the noise bank",
    "common": "t-test with one variance for all arms",
    "paired": "paired t-test of runs that share a seed",
    "boschloo": "Boschloo's exact test of two rates",
    "contrast": "Welch's t-test of a contrast of all arms (unequal variances)",
}
_ACTS: Final = {
    "continue": "gather the next look's seeds",
    "settle": "gather no more seeds",
    "replicate": "repeat in the other setting",
}


def design_facts(design: Design, design_hash: str | None) -> Table:
    """Return what the lock fixed about the comparison itself, and the lock's hash."""
    metric = design.metric
    facts = [
        Fact("What differs", what_differs(design)),
        Fact("Environment", design.environment),
        *_brought(design),
        Fact("Metric", f"{metric.key}: {metric.meaning}"),
        Fact("Measured on", f"{plural(metric.episodes, 'episode')} of the {metric.split} split, by the harness"),
        *_measured(metric),
        *_seeds(design),
        Fact("Test", _test(design)),
        *_promises(design),
        Fact("Attempts per run, at most", str(design.max_attempts)),
        *_accounting(design),
        Fact("sha256 of the design", design_hash or NONE),
    ]
    return pairs(facts)


def _measured(metric: Metric) -> Iterator[Fact]:
    """Yield what was fixed about a metric besides its meaning: its range, and when it looks."""
    if not metric.kind:
        return
    yield Fact(
        "From worst to best", f"{number(metric.worst, unit=metric.unit)} to {in_unit(f'{metric.best:g}', metric)}"
    )
    if metric.threshold is not None:
        yield Fact("Threshold", f"{metric.threshold:g} hidden success")
    if metric.schedule is not None:
        every, episodes = plural(metric.schedule.every, "training episode"), plural(metric.schedule.episodes, "episode")
        yield Fact("Evaluated during training", f"every {every}, by {episodes} of hidden tasks, alike in all arms")


def _brought(design: Design) -> Iterator[Fact]:
    ways = {"splits": "by split", "records": "as one list, split by what they say", "seeds": "made of secret seeds"}
    for known in design.environments:
        counts = ", ".join(f"{count:,} {split}" for split, count in known.tasks.items())
        yield Fact(f"What {known.name} is", f"{one_line(known.title)}, brought from {one_line(known.reference)}")
        yield Fact(f"Tasks of {known.name}", f"{counts}; given {ways.get(known.drawn_by, known.drawn_by)}")
        for part in ("code", "data", "requirements"):
            if digest := getattr(known, part):
                yield Fact(f"sha256 of the {part} of {known.name}", digest)


def _seeds(design: Design) -> Iterator[Fact]:
    if design.shared_seeds:
        yield Fact("Seeds, the same in every arm", ", ".join(str(seed) for seed in design.seeds))
        return
    for arm in design.arms:
        yield Fact(f"Seeds of {arm.name}", ", ".join(str(seed) for seed in design.seeds_of(arm.name, design.seeds)))


def what_differs(design: Design) -> str:
    """Return the variables of a design, or the knobs of its screen while there are no hypotheses."""
    declared = sorted(frozenset().union(*(h.declared for h in design.hypotheses)))
    knobs = [knob.field for knob in design.screen.knobs] if design.screen else []
    return ", ".join(declared or knobs)


def looks_table(design: Design) -> Table | None:
    """Return when the data are analysed and at which level; None for one analysis at the end."""
    if len(design.looks) < 2:
        return None
    rows = [
        [cell(str(index)), cell(str(look.seeds)), cell(f"{look.alpha:.4f}"), cell(percent(round(1 - look.alpha, 4)))]
        for index, look in enumerate(design.looks, start=1)
    ]
    return table(("Look", "Seeds of each arm", "Two-sided level", "Interval"), rows, numeric=(0, 1, 2, 3))


def rules_table(design: Design) -> Table | None:
    """Return the decision table, kill conditions first, and what no rule covers last; None where there is no rule."""
    kills = [(f"kill {h.id}", h.kill_if, "settle") for h in design.hypotheses if h.kill_if]
    rules = [(rule.name, rule.when, rule.then) for rule in design.decision_table]
    rows = [[cell(name), cell(when, "mono"), cell(_ACTS[then])] for name, when, then in (*kills, *rules)]
    rest = [cell(NONE), cell("no rule holds"), cell(_ACTS["settle"])]
    return table(("Rule", "When", "Then"), [*rows, rest], cards=True) if rows else None


def stakes_table(hypotheses: tuple[Hypothesis, ...]) -> Table | None:
    """Return what each hypothesis put at stake before the data; None where nobody said."""
    said = [h for h in hypotheses if h.smallest_effect or h.falsifier or h.confounds]
    rows = [_stakes(h) for h in said]
    columns = ("Hypothesis", "Smallest effect of interest", "Shown false by, as the planner said", "Feared confounds")
    return table(columns, rows, numeric=(1,), cards=True) if rows else None


def limits_table(watchdog: Watchdog | None) -> Table | None:
    """Return the watchdog's limits that are on; None when none is."""
    if watchdog is None:
        return None
    known = type(watchdog).model_fields
    facts = [
        Fact(name.replace("_", " "), f"{value:g}: {one_line(known[name].description or '')}")
        for name, value in watchdog
        if value is not None
    ]
    return pairs(facts) if facts else None


def screen_said(screen: Screen) -> str:
    """Return how a screen finds the arms, in sentences."""
    ways = {
        "grid": "every combination", "random": "combinations drawn at random",
        "tpe": "combinations asked of a tree-structured Parzen estimator",
        "surface": "combinations asked of a response surface over all results",
    }  # fmt: skip
    knobs = "; ".join(f"{knob.field} in {', '.join(value_of(v) for v in knob.values)}" for knob in screen.knobs)
    first, *later = [plural(rung.steps, "step") for rung in screen.rungs]
    rounds = "".join(f"; the best {rung.keep} train {steps}" for rung, steps in zip(screen.rungs, later, strict=False))
    return (
        f"{plural(screen.candidates, 'candidate')} ({knobs}): {ways[screen.sampler]}, the first {screen.initial} "
        f"spread over the space. Each trains {first}{rounds}; the best {screen.confirmed} of the last round are "
        f"confirmed. One seed for all ({screen.seed}), scored on the {screen.split} tasks. No claim rests on a screen: "
        "what it keeps meets fresh seeds and hidden tasks."
    )


def noise_said(noise: Noise, unit: str = "") -> str:
    """Return the noise bank's word in a sentence."""
    parts = f"{number(noise.sd, unit=unit)} between seeds ({plural(noise.df, 'degree')} of freedom)"
    if noise.evaluation_sd is not None:
        parts += f", of which evaluation alone {number(noise.evaluation_sd, unit=unit)} at {noise.episodes:,} episodes"
    if noise.correlation is not None:
        parts += (
            f"; correlation of runs that share a seed {number(noise.correlation, 2)} ({plural(noise.pairs, 'pair')})"
        )
    return f"{parts}. {one_line(noise.basis)}"


def _test(design: Design) -> str:
    level = f"two-sided, alpha {design.alpha:g}"
    looks = f" spent over {len(design.looks)} looks" if len(design.looks) > 1 else ""
    return f"{_TESTS[design.test]}, {level}{looks}"


def _promises(design: Design) -> Iterator[Fact]:
    if design.promise is not None:
        effect = sized(design.promise.effect, design.metric)
        seen = f"a true difference of {effect} with probability {percent(design.promise.power)}"
        yield Fact("Meant to see", seen)
    if design.equivalence_margin is not None:
        margin = sized(design.equivalence_margin, design.metric)
        yield Fact("Counts as no difference", f"anything surely within ±{margin}")
    if design.multiplicity == "dunnett_bh":
        yield Fact("Several claims", "Dunnett among the arms of one variable, Benjamini-Hochberg across the claims")
    if design.multiplicity == "dunnett_bonferroni":
        yield Fact("Several claims", "Dunnett among the arms of one variable; the variables share the round's level")
    if design.noise is not None:
        yield Fact("Noise known before", noise_said(design.noise, design.metric.unit))
    if design.replication is not None:
        seeds = plural(len(design.replication.seeds), "seed")
        yield Fact("Replication, if a rule asks for it", f"in {design.replication.environment}, {seeds}")


def _accounting(design: Design) -> Iterator[Fact]:
    yield Fact("Runs dropped from the analysis if", ", ".join(design.exclusions) or "nothing was named")
    if design.collapse is not None:
        yield Fact("Collapsed if", rule_said(design.collapse))
    elif design.counted_as_worst:
        worst = f"{', '.join(design.counted_as_worst)}: the run counts with {sized(design.metric.worst, design.metric)}"
        yield Fact("Runs counted at their worst if", worst)
    if design.most_excluded < 1:
        yield Fact("Invalid if more of an arm is dropped than", percent(design.most_excluded))


def _stakes(hypothesis: Hypothesis) -> list[Cell]:
    falsifier = one_line(hypothesis.falsifier)
    return [
        cell(hypothesis.id), cell(number(hypothesis.smallest_effect)), cell(f'"{falsifier}"' if falsifier else ""),
        cell(one_line("; ".join(hypothesis.confounds))),
    ]  # fmt: skip
