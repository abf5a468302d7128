"""Tables of a design in a report: protocol and stages.

What was fixed before data is read off the design alone. Of the stages beside the confirmation everything launched is
shown; only a confirmation and a replication feed claims, and the tables say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from studies.checks.training import collapse_rate
from studies.log.study import RunState, StudyState
from studies.metrics import Refused, kind_of
from studies.records.design import Arm, Design, Hypothesis, Metric
from studies.records.procedure import CollapseRule, Noise, Screen, Watchdog
from studies.records.runs import NOISE_ARM
from studies.records.statements import value_of
from studies.records.verdict import CollapseRate, Verdict
from studies.report.claims import verdict_cell
from studies.report.elements import Cell, Fact, Table, cell, pairs, table
from studies.report.wording import (
    NONE,
    describe_counts,
    format_signed,
    format_size,
    in_unit,
    number,
    one_line,
    percent,
    plural,
    setting,
    span,
)
from studies.statistics.comparison import spread
from studies.verdicts.judge import gather


def describe_rule(rule: CollapseRule) -> str:
    return (
        f"it ended below where it began, or its training success fell by more than {percent(rule.lost)} of what it had "
        f"gained, by more than {rule.errors:g} standard errors each; or it broke down. It is no part of a mean, and is "
        "counted"
    )


def collapse_table(state: StudyState) -> Table | None:
    """Return each arm's rate of collapse with exact limits, and the runs; None for a design without a rule of it."""
    if state.design is None or (state.design.collapse is None and not reads_collapses(state.design)):
        return None
    columns = ("Arm", "Collapsed", "Rate, 95 % limits", "Not ruled out: up to", "Runs")
    return table(columns, [*_rows(state)], numeric=(1, 2, 3), cards=True)


def reads_collapses(design: Design) -> bool:
    """Return whether collapsed trainings count with their value: they are told all the same, by the usual rule."""
    try:
        return bool(design.metric.kind) and kind_of(design.metric).reads_collapses
    except Refused:  # the package that brought it is gone
        return False


def _rows(state: StudyState) -> Iterator[list[Cell]]:
    design = state.design
    assert design is not None
    if design.collapse is None:  # what is told by the usual rule decides nothing
        state = replace(state, design=design.model_copy(update={"collapse": CollapseRule()}))
    for arm, data in gather(state, look=max(1, len(design.looks))).items():
        found = collapse_rate(arm, data.broken, len(data.values) + len(data.worst))
        ways = {**data.collapsed, **{run: f"it broke down ({code})" for run, code in data.worst.items()}}
        runs = "; ".join(f"{run}: {one_line(how)}" for run, how in sorted(ways.items()))
        yield [
            cell(arm), cell(f"{found.count} of {found.of}"), cell(f"{number(found.low, 2)} to {number(found.high, 2)}"),
            cell(_most(found)), cell(runs or "none"),
        ]  # fmt: skip


def _most(found: CollapseRate) -> str:
    """Return the highest rate that is not ruled out, in whole percent."""
    return percent(round(found.upper, 2))


def describe_scope(claim: Hypothesis, verdict: Verdict) -> str:
    """Return of which trainings a verdict speaks, as a sentence; empty where no rule of collapse was locked."""
    if not verdict.collapses or verdict.verdict == "invalid" or verdict.estimate is None:
        return ""
    if verdict.scope == "all":
        return " It holds for all trainings: no rate of collapse that the runs leave open would undo it."
    if verdict.arms:
        return f" This is where training does not collapse: {_by_arm(verdict.collapses)}."
    control, treatment = verdict.collapses
    return f" This is where training does not collapse: {_describe_collapses(claim, control, treatment)}."


def _by_arm(rates: Sequence[CollapseRate]) -> str:
    told = (f"{r.count} of {r.of} did with {r.arm} (up to {_most(r)} is not ruled out)" for r in rates)
    return ", ".join(told)


def _describe_collapses(claim: Hypothesis, control: CollapseRate, treatment: CollapseRate) -> str:
    uppers = {_most(found) for found in (control, treatment)}
    if not control.count and not treatment.count and len(uppers) == 1:
        return f"none of {control.of} + {treatment.of} did, but up to {uppers.pop()} per arm is not ruled out"
    told = [
        f"{found.count} of {found.of} did with {setting(claim, value)} (up to {_most(found)} is not ruled out)"
        for found, value in ((treatment, claim.treatment), (control, claim.control))
    ]
    differ = ", and which ones survive may differ" if control.count != treatment.count else ""
    return f"{' and '.join(told)}{differ}"


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
    metric = design.metric
    facts = [
        Fact("What differs", what_differs(design)),
        Fact("Environment", design.environment),
        *_environment_facts(design),
        Fact("Metric", f"{metric.key}: {metric.meaning}"),
        Fact("Measured on", f"{plural(metric.episodes, 'episode')} of the {metric.split} split, by the harness"),
        *_metric_facts(metric),
        *_seeds(design),
        Fact("Test", _test(design)),
        *_power_facts(design),
        Fact("Attempts per run, at most", str(design.max_attempts)),
        *_exclusion_facts(design),
        Fact("sha256 of the design", design_hash or NONE),
    ]
    return pairs(facts)


def _metric_facts(metric: Metric) -> Iterator[Fact]:
    if not metric.kind:
        return
    ends = f"{number(metric.worst, unit=metric.unit)} to {in_unit(f'{metric.best:g}', metric)}"
    yield Fact("From worst to best", ends)
    if metric.threshold is not None:
        yield Fact("Threshold", f"{metric.threshold:g} hidden success")
    if metric.schedule is not None:
        every, episodes = plural(metric.schedule.every, "training episode"), plural(metric.schedule.episodes, "episode")
        yield Fact("Evaluated during training", f"every {every}, by {episodes} of hidden tasks, alike in all arms")


def _environment_facts(design: Design) -> Iterator[Fact]:
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


def analyses_table(design: Design) -> Table | None:
    if len(design.looks) < 2:
        return None
    rows = [
        [cell(str(index)), cell(str(look.seeds)), cell(f"{look.alpha:.4f}"), cell(percent(round(1 - look.alpha, 4)))]
        for index, look in enumerate(design.looks, start=1)
    ]
    return table(("Look", "Seeds of each arm", "Two-sided level", "Interval"), rows, numeric=(0, 1, 2, 3))


def rules_table(design: Design) -> Table | None:
    kills = [(f"kill {h.id}", h.kill_if, "settle") for h in design.hypotheses if h.kill_if]
    rules = [(rule.name, rule.when, rule.then) for rule in design.decision_table]
    rows = [[cell(name), cell(when, "mono"), cell(_ACTS[then])] for name, when, then in (*kills, *rules)]
    rest = [cell(NONE), cell("no rule holds"), cell(_ACTS["settle"])]
    return table(("Rule", "When", "Then"), [*rows, rest], cards=True) if rows else None


def stakes_table(hypotheses: tuple[Hypothesis, ...]) -> Table | None:
    said = [h for h in hypotheses if h.smallest_effect or h.falsifier or h.confounds]
    rows = [_stakes(h) for h in said]
    columns = ("Hypothesis", "Smallest effect of interest", "Shown false by, as the planner said", "Feared confounds")
    return table(columns, rows, numeric=(1,), cards=True) if rows else None


def limits_table(watchdog: Watchdog | None) -> Table | None:
    if watchdog is None:
        return None
    known = type(watchdog).model_fields
    facts = [
        Fact(name.replace("_", " "), f"{value:g}: {one_line(known[name].description or '')}")
        for name, value in watchdog
        if value is not None
    ]
    return pairs(facts) if facts else None


def describe_screen(screen: Screen) -> str:
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


def noise_sentence(noise: Noise, unit: str = "") -> str:
    parts = f"{number(noise.sd, unit=unit)} between seeds ({plural(noise.df, 'degree')} of freedom)"
    if noise.evaluation_sd is not None:
        parts += f", of which evaluation alone {number(noise.evaluation_sd, unit=unit)} at {noise.episodes:,} episodes"
    if noise.correlation is not None:
        shared = f"{number(noise.correlation, 2)} ({plural(noise.pairs, 'pair')})"
        parts += f"; correlation of runs that share a seed {shared}"
    return f"{parts}. {one_line(noise.basis)}"


def _test(design: Design) -> str:
    level = f"two-sided, alpha {design.alpha:g}"
    looks = f" spent over {len(design.looks)} looks" if len(design.looks) > 1 else ""
    return f"{_TESTS[design.test]}, {level}{looks}"


def _power_facts(design: Design) -> Iterator[Fact]:
    if design.promise is not None:
        effect = format_size(design.promise.effect, design.metric)
        seen = f"a true difference of {effect} with probability {percent(design.promise.power)}"
        yield Fact("Meant to see", seen)
    if design.equivalence_margin is not None:
        margin = format_size(design.equivalence_margin, design.metric)
        yield Fact("Counts as no difference", f"anything surely within ±{margin}")
    if design.multiplicity == "dunnett_bh":
        yield Fact("Several claims", "Dunnett among the arms of one variable, Benjamini-Hochberg across the claims")
    if design.multiplicity == "dunnett_bonferroni":
        yield Fact("Several claims", "Dunnett among the arms of one variable; the variables share the round's level")
    if design.noise is not None:
        yield Fact("Noise known before", noise_sentence(design.noise, design.metric.unit))
    if design.replication is not None:
        seeds = plural(len(design.replication.seeds), "seed")
        yield Fact("Replication, if a rule asks for it", f"in {design.replication.environment}, {seeds}")


def _exclusion_facts(design: Design) -> Iterator[Fact]:
    yield Fact("Runs dropped from the analysis if", ", ".join(design.exclusions) or "nothing was named")
    if design.collapse is not None:
        yield Fact("Collapsed if", describe_rule(design.collapse))
    elif design.counted_as_worst:
        size = format_size(design.metric.worst, design.metric)
        worst = f"{', '.join(design.counted_as_worst)}: the run counts with {size}"
        yield Fact("Runs counted at their worst if", worst)
    if design.most_excluded < 1:
        yield Fact("Invalid if more of an arm is dropped than", percent(design.most_excluded))


def _stakes(hypothesis: Hypothesis) -> list[Cell]:
    falsifier = one_line(hypothesis.falsifier)
    return [
        cell(hypothesis.id), cell(number(hypothesis.smallest_effect)), cell(f'"{falsifier}"' if falsifier else ""),
        cell(one_line("; ".join(hypothesis.confounds))),
    ]  # fmt: skip


def describe_noise(state: StudyState) -> str:
    runs = [run for run in state.runs_in("noise") if run.spec.arm == NOISE_ARM]
    if state.noise_plan is None or not runs:
        return ""
    values = list(state.values(runs[0].spec.arm, phase="noise").values())
    sd = spread(values)
    showed = "too little"
    if sd is not None:
        unit = runs[0].spec.metric.unit
        showed = f"{number(fmean(values), unit=unit)} on average, standard deviation {number(sd, unit=unit)}"
    return (
        f"Before the design, one job was run with {plural(len(runs), 'seed')} that differ in nothing else, to learn "
        f"what seeds alone do: {plural(len(values), 'run')} gave {showed}. No claim rests on them."
    )


def noise_table(state: StudyState) -> Table | None:
    rows = [
        [cell(run.run_id, "mono"), cell(str(run.spec.seed)), cell(_value(run))]
        for run in state.runs_in("noise")
        if run.spec.arm == NOISE_ARM
    ]
    return table(("Run", "Seed", "Value"), rows, numeric=(1, 2)) if rows else None


def screen_table(state: StudyState) -> Table | None:
    if not state.candidates:
        return None
    lengths = sorted({int(run.spec.job["steps"]) for run in state.runs_in("screen")})
    kept = state.selection.kept if state.selection else ()
    rows = [_candidate(state, arm, lengths, kept) for arm in state.candidates.values()]
    columns = ("Candidate", "Sets", *(f"after {plural(steps, 'step')}" for steps in lengths), "Ranked by", "")
    return table(columns, rows, numeric=range(2, len(lengths) + 3), cards=True)


def describe_selection(state: StudyState) -> str:
    if state.locked_design is None or state.locked_design.screen is None:
        return ""
    return f"Confirmed: {state.selection.reason}." if state.selection else "The screen has not led to any arm."


def screen_rules(state: StudyState) -> str:
    screen = state.locked_design.screen if state.locked_design is not None else None
    return describe_screen(screen) if screen is not None else ""


def interim_table(state: StudyState) -> Table | None:
    if state.design is None or len(state.design.looks) < 2:
        return None
    taken = sorted((*state.interim, *state.verdicts), key=lambda verdict: (verdict.hypothesis, verdict.look))
    rows = [_interim_row(state, verdict) for verdict in taken]
    columns = ("Hypothesis", "Look", "n", "Difference", "Interval at the look's level", "Verdict", "Decision")
    return table(columns, rows, numeric=(1, 2, 3, 4), cards=True) if rows else None


def replication_table(state: StudyState) -> Table | None:
    rows = [_replication_row(state, verdict) for verdict in state.replications]
    columns = ("Hypothesis", "Confirmed as", "In the other setting", "Difference", "Interval", "Runs")
    return table(columns, rows, numeric=(3, 4, 5), cards=True) if rows else None


def _candidate(state: StudyState, arm: Arm, lengths: list[int], kept: tuple[str, ...]) -> list[Cell]:
    runs = {int(run.spec.job["steps"]): run for run in state.runs_of(arm.name, "screen")}
    score = state.selection.scores.get(arm.name) if state.selection else None
    return [
        cell(arm.name), cell(", ".join(f"{name} = {value_of(value)}" for name, value in arm.overrides.items())),
        *(cell(_value(runs[steps]) if steps in runs else NONE) for steps in lengths),
        cell(number(score, unit=_unit(state))), cell("confirmed" if arm.name in kept else ""),
    ]  # fmt: skip


def _value(run: RunState) -> str:
    if run.invalid is not None:
        return f"invalid: {run.invalid[0]}"
    measured = run.measurements.get(run.spec.metric.key)
    return number(measured.value, unit=run.spec.metric.unit) if measured else run.status


def _interim_row(state: StudyState, verdict: Verdict) -> list[Cell]:
    unit = _unit(state)
    decided = [d for d in state.decisions if (d.hypothesis, d.look) == (verdict.hypothesis, verdict.look)]
    return [
        cell(verdict.hypothesis), cell(str(verdict.look)), cell(describe_counts(verdict)),
        cell(format_signed(verdict.estimate, unit=unit)),
        cell(f"{span(verdict.low, verdict.high, unit=unit)} ({percent(round(verdict.level, 4))})"),
        verdict_cell(state, verdict), cell("; ".join(f"{d.action} ({d.rule})" for d in decided)),
    ]  # fmt: skip


def _replication_row(state: StudyState, verdict: Verdict) -> list[Cell]:
    confirmed, unit = state.verdict_on(verdict.hypothesis), _unit(state)
    return [
        cell(verdict.hypothesis), verdict_cell(state, confirmed), verdict_cell(state, verdict),
        cell(format_signed(verdict.estimate, unit=unit)),
        cell(span(verdict.low, verdict.high, unit=unit)), cell(describe_counts(verdict)),
    ]  # fmt: skip


def _unit(state: StudyState) -> str:
    return state.locked_design.metric.unit if state.locked_design is not None else ""
