"""Tables of a design in a report: protocol and stages. Everything launched is shown, whether it feeds a claim or
not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from statistics import fmean
from typing import Any, Final

from studies.checks.training import collapse_rate
from studies.log.study import StudyState
from studies.metrics import Refused, kind_of
from studies.records.design import KNOB, Design
from studies.records.procedure import CollapseRule, Screen, Watchdog
from studies.records.runs import NOISE_ARM
from studies.records.statements import value_of
from studies.records.verdict import CollapseRate, one_line
from studies.report.claims import unit_of, verdict_cell
from studies.report.elements import Cell, Fact, Row, Table, pairs, table
from studies.report.run_tables import arm_cell
from studies.report.wording import (
    NONE,
    capital,
    describe_counts,
    describe_fields,
    duration,
    format_signed,
    format_size,
    in_unit,
    moment,
    number,
    percent,
    plural,
    span,
)
from studies.statistics.comparison import spread
from studies.verdicts.judge import gather
from studies.verdicts.wording import TESTS

_ACTS: Final = {
    "continue": "gather the next look's seeds", "settle": "gather no more seeds",
    "replicate": "repeat in the other setting",
}  # fmt: skip
_SEVERAL: Final = {
    "dunnett_bh": "Dunnett among the arms of one variable, Benjamini-Hochberg across the claims",
    "dunnett_bonferroni": "Dunnett among the arms of one variable; the variables share the round's level",
}
_DRAWN_BY: Final = {
    "splits": "by split", "records": "as one list, split by what they say", "seeds": "made of secret seeds",
}  # fmt: skip
_SAMPLERS: Final = {
    "grid": "every combination", "random": "combinations drawn at random",
    "tpe": "combinations asked of a tree-structured Parzen estimator",
    "surface": "combinations asked of a response surface over all results",
}  # fmt: skip


def lock_proof(state: StudyState) -> str:
    if state.locked is None:
        return "No design was locked."
    said = f"The design was locked as event {state.locked.seq} at {moment(state.locked.ts)}"
    if state.first_launch is None:
        return f"{said}; no run has been launched."
    lead = datetime.fromisoformat(state.first_launch.ts) - datetime.fromisoformat(state.locked.ts)
    said += f", {duration(lead.total_seconds())} before the first run was launched (event {state.first_launch.seq})"
    return f"{said}. The order is part of the hash chain."


def design_arms(design: Design) -> Table | None:
    roles = {arm.name: "control" if arm.name == design.control_arm else "treatment" for arm in design.arms}
    rows = ((arm_cell(design, arm.name), roles[arm.name], describe_fields(arm.overrides)) for arm in design.arms)
    return table(("Arm", "Role", "Sets"), rows)


def constants(state: StudyState, design: Design) -> Table | None:
    """Return every job field that is the same in all arms; first those that the user's job fixed."""
    varied = {field for arm in design.arms for field in arm.overrides}
    given: Any = state.settings.get("base_fixed") or {}
    shared = [(name, value_of(value)) for name, value in sorted(design.base_job.items()) if name not in varied]
    facts = [(f"{name}, as given", value) for name, value in shared if name in given]
    return pairs([*facts, *((name, value) for name, value in shared if name not in given)])


def what_differs(design: Design) -> str:
    declared = {name for claim in design.hypotheses for name in claim.declared}
    return ", ".join(sorted(declared) or [knob.field for knob in (design.screen.knobs if design.screen else ())])


def design_facts(design: Design, design_hash: str | None) -> Table | None:
    return pairs([*_measure_facts(design), *_rule_facts(design), ("sha256 of the design", design_hash or NONE)])


def _measure_facts(design: Design) -> Iterator[Fact]:
    metric = design.metric
    yield "What differs", what_differs(design)
    yield "Environment", design.environment
    for brought in design.environments:
        counts = ", ".join(f"{count:,} {split}" for split, count in brought.tasks.items())
        yield f"What {brought.name} is", f"{one_line(brought.title)}, brought from {one_line(brought.reference)}"
        yield f"Tasks of {brought.name}", f"{counts}; given {_DRAWN_BY.get(brought.drawn_by, brought.drawn_by)}"
        for part in ("code", "data", "requirements"):
            if digest := getattr(brought, part):
                yield f"sha256 of the {part} of {brought.name}", digest
    yield "Metric", f"{metric.key}: {metric.meaning}"
    same = "" if metric.task_seed is None else ", the same tasks in every run"
    yield "Measured on", f"{plural(metric.episodes, 'episode')} of the {metric.split} split, by the harness{same}"
    for name in sorted({name for arm in design.arms for name in arm.overrides if name.startswith(KNOB)}):
        locked = value_of({**design.base_job, **design.arm(design.control_arm).overrides}[name])
        where = f"at {locked} in all arms" if metric.knobs is not None else "at each arm's own value, too"
        yield name, f"trained at each arm's own value, evaluated {where}"
    if metric.kind:
        best = in_unit(f"{metric.best:g}", metric)
        yield "From worst to best", f"{number(metric.worst, unit=metric.unit)} to {best}"
    if metric.kind and metric.threshold is not None:
        yield "Threshold", f"{metric.threshold:g} hidden success"
    if metric.kind and metric.schedule is not None:
        every, episodes = plural(metric.schedule.every, "training episode"), plural(metric.schedule.episodes, "episode")
        yield "Evaluated during training", f"every {every}, by {episodes} of hidden tasks, alike in all arms"
    if design.shared_seeds:
        yield "Seeds, the same in every arm", ", ".join(map(str, design.seeds))
    for arm in design.arms if not design.shared_seeds else ():
        yield f"Seeds of {arm.name}", ", ".join(map(str, design.seeds_of(arm.name, design.seeds)))


def _rule_facts(design: Design) -> Iterator[Fact]:
    metric = design.metric
    looks = f" spent over {len(design.looks)} looks" if len(design.looks) > 1 else ""
    yield "Test", f"{capital(TESTS[design.test])}, two-sided, alpha {design.alpha:g}{looks}"
    if design.promise is not None:
        effect, power = format_size(design.promise.effect, metric), percent(design.promise.power)
        yield "Meant to see", f"a true difference of {effect} with probability {power}"
    if design.equivalence_margin is not None:
        yield "Counts as no difference", f"anything surely within ±{format_size(design.equivalence_margin, metric)}"
    if design.multiplicity in _SEVERAL:
        yield "Several claims", _SEVERAL[design.multiplicity]
    if design.noise is not None:
        noise, unit = design.noise, metric.unit
        parts = f"{number(noise.sd, unit=unit)} between seeds ({plural(noise.df, 'degree')} of freedom)"
        if noise.evaluation_sd is not None:
            alone = number(noise.evaluation_sd, unit=unit)
            parts += f", of which evaluation alone {alone} at {noise.episodes:,} episodes"
        if noise.correlation is not None:
            shared = f"{number(noise.correlation, 2)} ({plural(noise.pairs, 'pair')})"
            parts += f"; correlation of runs that share a seed {shared}"
        known = "Noise known before" if design.pilot is None else "Noise of the first runs"
        yield known, f"{parts}. {one_line(noise.basis)}"
    if design.replication is not None:
        seeds = plural(len(design.replication.seeds), "seed")
        yield "Replication, if a rule asks for it", f"in {design.replication.environment}, {seeds}"
    if design.spending == "reached":
        yield (
            "Where it ends before a look has its runs",
            "a last look at what is there, with all the level that is left; after a veto, or where the budget was "
            "changed once runs had begun, with that of the part that was reached",
        )
    yield "Attempts per run, at most", str(design.max_attempts)
    yield "Runs dropped from the analysis if", ", ".join(design.exclusions) or "nothing was named"
    if (rule := design.collapse) is not None:
        yield (
            "Collapsed if",
            f"it ended below where it began, or its training success fell by more than {percent(rule.lost)} of what it "
            f"had gained, by more than {rule.errors:g} standard errors each; or it broke down. It is no part of a "
            "mean, and is counted",
        )
    if (start := design.start) is not None:
        yield (
            "Never started if",
            f"it ended where it began, within {start.errors:g} standard errors of its evaluations and of its training "
            "success. It counts with its value",
        )
    if design.collapse is None and design.counted_as_worst:
        size = format_size(metric.worst, metric)
        yield "Runs counted at their worst if", f"{', '.join(design.counted_as_worst)}: the run counts with {size}"
    if design.most_excluded < 1:
        yield "Invalid if more of an arm is dropped than", percent(design.most_excluded)


def analyses_table(design: Design) -> Table | None:
    rows = [
        (str(index), str(look.seeds), f"{look.alpha:.4f}", percent(round(1 - look.alpha, 4)))
        for index, look in enumerate(design.looks, start=1)
    ]
    columns = ("Look", "Seeds of each arm", "Two-sided level", "Interval")
    return table(columns, rows, (0, 1, 2, 3)) if len(rows) > 1 else None


def rules_table(design: Design) -> Table | None:
    kills = [(f"kill {h.id}", h.kill_if, "settle") for h in design.hypotheses if h.kill_if]
    rules = [*kills, *((rule.name, rule.when, rule.then) for rule in design.decision_table)]
    rows = [(name, Cell(when, "mono"), _ACTS[then]) for name, when, then in rules]
    rest = (NONE, "no rule holds", _ACTS["settle"])
    return table(("Rule", "When", "Then"), [*rows, rest]) if rows else None


def stakes_table(design: Design) -> Table | None:
    rows, usual = [], design.promise.effect if design.promise is not None else None
    for claim in (h for h in design.hypotheses if h.smallest_effect or h.falsifier):
        falsifier = one_line(claim.falsifier)
        rows.append((claim.id, number(claim.smallest_effect or usual), f'"{falsifier}"' if falsifier else ""))
    return table(("Hypothesis", "Smallest effect of interest", "Shown false by, as the planner said"), rows, (1,))


def limits_table(watchdog: Watchdog | None) -> Table | None:
    known = type(watchdog).model_fields if watchdog is not None else {}
    limits = [(name, value) for name, value in watchdog or () if value is not None]
    return pairs([(n.replace("_", " "), f"{v:g}: {one_line(known[n].description or '')}") for n, v in limits])


def describe_noise(state: StudyState) -> str:
    runs = [run for run in state.runs_in("noise") if run.spec.arm == NOISE_ARM]
    if state.noise_plan is None or not runs:
        return ""
    values, unit, showed = list(state.values(NOISE_ARM, phase="noise").values()), runs[0].spec.metric.unit, "too little"
    if (sd := spread(values)) is not None:
        showed = f"{number(fmean(values), unit=unit)} on average, standard deviation {number(sd, unit=unit)}"
    return (
        f"Before the design, one job was run with {plural(len(runs), 'seed')} that differ in nothing else, to learn "
        f"what seeds alone do: {plural(len(values), 'run')} gave {showed}. No claim rests on them."
    )


def describe_screen(screen: Screen) -> str:
    knobs = "; ".join(f"{knob.field} in {', '.join(value_of(v) for v in knob.values)}" for knob in screen.knobs)
    first, *later = [plural(rung.steps, "step") for rung in screen.rungs]
    rounds = "".join(f"; the best {rung.keep} train {steps}" for rung, steps in zip(screen.rungs, later, strict=False))
    return (
        f"{plural(screen.candidates, 'candidate')} ({knobs}): {_SAMPLERS[screen.sampler]}, the first {screen.initial} "
        f"spread over the space. Each trains {first}{rounds}; the best {screen.confirmed} of the last round are "
        f"confirmed. One seed for all ({screen.seed}), scored on the {screen.split} tasks. No claim rests on a screen: "
        "what it keeps meets fresh seeds and hidden tasks."
    )


def screen_table(state: StudyState) -> Table | None:
    lengths = sorted({int(run.spec.job["steps"]) for run in state.runs_in("screen")})
    chosen, rows = state.selection, []
    for arm in state.candidates.values():
        values = dict.fromkeys(lengths, NONE)
        for run in state.runs_of(arm.name, "screen"):
            measured = run.measurements.get(run.spec.metric.key)
            value = number(measured.value, unit=run.spec.metric.unit) if measured else run.status
            values[int(run.spec.job["steps"])] = value if run.invalid is None else f"invalid: {run.invalid[0]}"
        score = number(chosen.scores.get(arm.name) if chosen else None, unit=unit_of(state))
        kept = "confirmed" if chosen and arm.name in chosen.kept else ""
        rows.append((arm.name, describe_fields(arm.overrides, none=""), *values.values(), score, kept))
    columns = ("Candidate", "Sets", *(f"after {plural(steps, 'step')}" for steps in lengths), "Ranked by", "")
    return table(columns, rows, range(2, len(lengths) + 3))


def interim_table(state: StudyState) -> Table | None:
    if state.design is None or len(state.design.looks) < 2:
        return None
    unit, rows = unit_of(state), list[Row]()
    for verdict in sorted((*state.interim, *state.verdicts), key=lambda verdict: (verdict.hypothesis, verdict.look)):
        decided = [d for d in state.decisions if (d.hypothesis, d.look) == (verdict.hypothesis, verdict.look)]
        ends = f"{span(verdict.low, verdict.high, unit=unit)} ({percent(round(verdict.level, 4))})"
        size, steps = format_signed(verdict.estimate, unit=unit), "; ".join(f"{d.action} ({d.rule})" for d in decided)
        row = verdict.hypothesis, str(verdict.look), describe_counts(verdict), size, ends
        rows.append((*row, verdict_cell(state, verdict), steps))
    columns = ("Hypothesis", "Look", "n", "Difference", "Interval at the look's level", "Verdict", "Decision")
    return table(columns, rows, (1, 2, 3, 4))


def replication_table(state: StudyState) -> Table | None:
    unit, rows = unit_of(state), list[Row]()
    for verdict in state.replications:
        cells = [verdict_cell(state, each) for each in (state.verdict_on(verdict.hypothesis), verdict)]
        numbers = format_signed(verdict.estimate, unit=unit), span(verdict.low, verdict.high, unit=unit)
        rows.append((verdict.hypothesis, *cells, *numbers, describe_counts(verdict)))
    columns = ("Hypothesis", "Confirmed as", "In the other setting", "Difference", "Interval", "Runs")
    return table(columns, rows, (3, 4, 5))


def collapse_table(state: StudyState) -> Table | None:
    """Return each arm's rate of collapse, by the locked rule or the usual one, and where it is locked of never
    starting."""
    design, rows = state.design, list[Row]()
    if design is None:
        return None
    if design.collapse is None:
        try:
            if not (design.metric.kind and kind_of(design.metric).reads_collapses):
                return None
        except Refused:  # the package that brought it is gone
            return None
        state = replace(state, design=design.model_copy(update={"collapse": CollapseRule()}))
    for arm, data in gather(state, look=max(1, len(design.looks))).items():
        found = collapse_rate(arm, data.broken, len(data.values) + len(data.worst))
        ways = {**data.collapsed, **{run: f"it broke down ({code})" for run, code in data.worst.items()}}
        runs = "; ".join(f"{run}: {one_line(how)}" for run, how in sorted(ways.items()))
        row: Row = (arm, f"{found.count} of {found.of}", _limits(found), percent(round(found.upper, 2)), runs or "none")
        if design.start is not None:
            stuck = collapse_rate(arm, len(data.unstarted), len(data.values) - len(data.collapsed))
            row = (*row, f"{stuck.count} of {stuck.of} ({_limits(stuck)})")
        rows.append(row)
    columns = ("Arm", "Collapsed", "Rate, 95 % limits", "Not ruled out: up to", "Runs")
    return table((*columns, "Never started, 95 % limits") if design.start is not None else columns, rows, (1, 2, 3))


def _limits(rate: CollapseRate) -> str:
    return f"{number(rate.low, 2)} to {number(rate.high, 2)}"
