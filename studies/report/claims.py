"""What a report says of claims and of the stages that led to them: predictions, looks, screens, rewards, quoted plays.

Verdicts are repeated here, never formed. Each reward has a scale of its own, so training rewards are only put beside
the hidden success of the same runs.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import unified_diff
from itertools import pairwise
from statistics import fmean
from typing import Final

from studies.checks.conditions import collapse_rate
from studies.log.entries import BUDGET_EXHAUSTED, LoggedAmendment, Veto
from studies.log.study import StudyState
from studies.metrics import Refused, kind_of
from studies.records.design import REWARD, Design, Hypothesis, is_expression
from studies.records.procedure import CollapseRule, Screen
from studies.records.runs import NOISE_ARM
from studies.records.statements import statement, statement_of, value_of
from studies.records.verdict import CollapseRate, Verdict, one_line, planner_label
from studies.report import elements, wording
from studies.report.elements import Cell, Play, Quote, Remark, Row, Section, Table, Text, section, table, threat
from studies.report.evidence import BEFORE, REWARDS, Evidence
from studies.report.prose import lock_facts, mark
from studies.report.wording import NONE, duration, format_signed, number, p_value, percent, plural, span
from studies.statistics.comparison import spread
from studies.verdicts.judge import gather
from studies.verdicts.wording import deciding_interval, name_judged_look

_SIDE = re.compile(", (the predicted side|against the prediction)")
"""What a rule says of a prediction's side, which an open question has none of."""
_PLAIN: Final = frozenset({
    "__future__", "collections", "dataclasses", "difflib", "enum", "fractions", "functools", "itertools", "json",
    "math", "operator", "re", "statistics", "string", "textwrap", "typing", "unicodedata",
})  # fmt: skip
"""Modules that compute on what they are given."""
_SAMPLERS: Final = {
    "grid": "every combination", "random": "combinations drawn at random",
    "tpe": "combinations asked of a tree-structured Parzen estimator",
    "surface": "combinations asked of a response surface over all results",
}  # fmt: skip
_REACHING: Final = frozenset({
    "breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals", "input", "locals", "open", "setattr",
    "vars",
})  # fmt: skip


def claims(state: StudyState) -> tuple[Hypothesis, ...]:
    return state.design.hypotheses if state.design else state.hypotheses


def quote_planner(state: StudyState) -> str:
    if (name := str(state.planner.get("name", "unknown"))) == "rules":
        return "Planned by the built-in rules; no language model took part."
    model = state.planner.get("model")
    return f"Planned by a language model ({model})." if model else f"Planned by the planner `{name}`."


def quotes(state: StudyState) -> Iterator[Quote]:
    metric = None if state.design is None else state.design.metric
    by = f"in the words of the planner {planner_label(str(state.planner['name']), state.planner.get('model'))}"
    if state.selection is not None:
        by = "written by code from the screen"
    for claim in claims(state):
        words = claim.statement
        if state.selection is None:
            code = statement(claim.variable, claim.control, claim.treatment, claim.direction, metric)
            words = claim.said or ("" if words in (code, statement_of(claim, metric)) else words)
        lines = [one_line(line) for line in (words, claim.mechanism) if line]
        if state.selection is None:
            lines = [mark(line, state.rounds_before, more=lock_facts(state)) for line in lines]
        if lines:
            yield Quote(tuple(lines), f"{by}, not a finding", claim.id)


def verdict_table(state: StudyState) -> Table | None:
    unit, rows = unit_of(state), []
    for claim in claims(state):
        verdict, prediction = state.verdict_on(claim.id), claim.prediction
        interval = deciding_interval(state.design, verdict) if state.design is not None and verdict else None
        ends = f"{span(interval.low, interval.high, unit=unit)} ({percent(interval.level)})" if interval else NONE
        rows.append((
            f"{claim.id}: {wording.describe_comparison(claim)}",
            format_signed(verdict.estimate, unit=unit) if verdict else NONE,
            ends,
            wording.describe_counts(verdict) if verdict else NONE,
            f"{span(prediction.low, prediction.high, unit=unit)} ({percent(prediction.level)})",
            {True: "yes", False: "no", None: NONE}[verdict.within_prediction if verdict else None],
            verdict_cell(state, verdict),
        ))  # fmt: skip
    columns = ("Hypothesis", "Difference", "Interval that decided", "Runs", "Predicted", "Inside", "Verdict")
    return table(columns, rows, (1, 2, 3, 4))


MEDIATORS: Final = (
    "Mediators are named in the lock, and tested by code once their claim's difference is shown: each at a part of the "
    "claim's level for every look, in this order, up to the first that does not move as expected. One that moved is "
    "consistent with the mechanism, and no proof of it; one that provably did not move speaks against it."
)
_MOVED: Final = {
    "moved": "moved with it", "opposite": "moved the other way", "alike": "did not move by what matters",
    "open": "not shown", "untested": "not tested",
}  # fmt: skip


def mediator_table(state: StudyState) -> Table | None:
    """Return what became of the mediators of decided claims; None where none names any."""
    rows = []
    for name, found in ((verdict.hypothesis, found) for verdict in state.verdicts for found in verdict.mediators):
        level = "" if found.level is None else f" ({percent(round(found.level, 6))})"
        least = "" if found.equivalence is None else f" ({found.equivalence.margin:g} matters)"
        why = f"{_MOVED[found.result]}{least}{f': {found.why}' if found.why else ''}"
        move, ends = format_signed(found.estimate), span(found.low, found.high) + level
        rows.append((name, Cell(found.metric, "mono"), found.expected, move, ends, why))
    return table(("Claim", "Mediator", "Expected", "Move", "Interval", "Found"), rows, (3, 4))


def verdict_cell(state: StudyState, verdict: Verdict | None) -> Cell | str:
    if verdict is None or state.design is None:
        return NONE
    return Cell(wording.label(state.design.hypothesis(verdict.hypothesis), verdict), verdict.verdict)


def numbers_table(state: StudyState) -> Table | None:
    """Return what each verdict was computed to, down to the hash of its inputs; those of replications come last."""
    unit = unit_of(state)
    shown = [(c.id, state.verdict_on(c.id), percent(c.prediction.probability)) for c in claims(state)]
    shown += [(f"{verdict.hypothesis} again", verdict, NONE) for verdict in state.replications]
    rows = list[list[Cell | str]]()
    for name, verdict, given in shown:
        if verdict is None:
            rows.append([name, *[NONE] * 5, given, NONE, NONE])
            continue
        same, adjusted = verdict.equivalence, verdict.p_adjusted
        rows.append([
            name,
            ", ".join(filter(None, (verdict.test, name_judged_look(state.design, verdict) if state.design else ""))),
            span(verdict.low, verdict.high, unit=unit),
            percent(round(verdict.level, 4)),
            p_value(verdict.p) + ("" if adjusted is None else f" ({p_value(adjusted)} adjusted)"),
            NONE if same is None else f"{span(same.low, same.high, unit=unit)}, p {p_value(same.p)}",
            given,
            number(verdict.brier),
            elements.hash_cell(verdict.inputs_sha256),
        ])  # fmt: skip
    columns = ("Hypothesis", "Locked test", "Interval of the difference", "Its level", "p", "Interval of equivalence")
    return table((*columns, "Forecast", "Brier", "Inputs, sha256"), rows, (2, 3, 4, 5, 6, 7))


def describe_length(state: StudyState) -> str:
    """Return how long runs are and by which rule; empty where nothing was to be decided."""
    locked, length = state.locked_design, state.length
    if locked is None or (longer := locked.extension) is None:
        return ""
    before, most = int(locked.base_job["steps"]), longer.steps
    windows = " to ".join(name.rpartition(":")[2] for name in (longer.before, longer.last))
    rule = f"where training success rises by {number(longer.rise)} or more from steps {windows}, arms not told apart"
    rule = f"Runs train {before} steps, and all of them {most} {rule}, on average over the first ones"
    if length is None:
        return f"{rule}. "
    rose = "tell one, which are too few" if length.rise is None else f"rise by {number(length.rise)}"
    told = f"{rule}: {length.runs} of the first {length.of} {rose}"
    if length.steps == most:
        return f"{told}, so that all train {most}: the first anew from their seeds, and none that is shorter counts. "
    why = "and" if length.carried else "but longer ones were not carried by time or runs, so that"
    return f"{told}, {why} runs stay as they are. "


def describe_sizing(state: StudyState) -> str:
    """Return how the design got its size, where its lock does not say, or promises less than was asked for."""
    design, sizing = state.design, state.sizing
    if design is None or (promise := design.promise) is None:
        return ""
    effect, each = wording.format_size(promise.effect, design.metric), "of each arm"
    if sizing is None and design.pilot is not None:
        return (
            f"The first {design.pilot.seeds} seeds {each} say how many see {effect} with {percent(promise.power)}: up "
            f"to {design.pilot.most}, as the budget carries."
        )
    if sizing is None:
        asked = state.settings.get("power", promise.power)
        less = f"{len(design.seeds)} seeds {each}, which see {effect} with {percent(promise.power)}"
        return f"The budget carried {less}, not the {percent(asked)} asked for." if promise.power < asked else ""
    if sizing.sd is None:
        return f"The first {plural(sizing.runs, 'measured run')} say nothing of a spread, so that no more are made."
    spread = number(sizing.sd, unit=design.metric.unit)
    alike = any(claim.sought == "equivalence" for claim in design.hypotheses)
    less = "" if alike else f", less what an effect of {effect} adds to it,"
    told = f"The first {sizing.runs} runs have{less} a spread of {spread} ({plural(sizing.df, 'degree')} of freedom"
    told += f"; {sizing.collapsed} of them collapsed)" if sizing.collapsed else ")"
    if sizing.needed is None:
        told += f", with which no {design.pilot.most if design.pilot else 0} seeds {each} see {effect}"
    else:
        told += f", with which {sizing.needed} seeds {each} see {effect}"
    told += f" with {percent(promise.power)}; arms were not told apart. "
    if sizing.needed is not None and sizing.seeds >= sizing.needed:
        return f"{told}So many are made."
    short = design.pilot is not None and sizing.seeds < design.pilot.most
    made = f"The budget carries {sizing.seeds}" if short else f"{sizing.seeds} are made"
    return f"{told}{made}, which see it with {percent(round(sizing.power or 0.0, 2))}."


def unit_of(state: StudyState) -> str:
    return state.design.metric.unit if state.design is not None else ""


def rules(state: StudyState) -> tuple[str, ...]:
    opened = {claim.id for claim in claims(state) if claim.open}
    reasons = ((v.hypothesis, _SIDE.sub("", v.reason) if v.hypothesis in opened else v.reason) for v in state.verdicts)
    return tuple(f"{name}: {wording.true_minus(reason)}" for name, reason in reasons)


def deviation_table(state: StudyState) -> Table | None:
    """Return amendments and vetoes in their order; None for a study that kept to its lock."""
    deviations: list[tuple[Veto | LoggedAmendment, str, str, str]] = [
        (veto, f"veto of {name}: no more runs for it", veto.reason, "") for name, veto in state.vetoed.items()
    ]
    for amended in state.amendments:
        change = amended.amendment
        said = {"accept": f"accepts the violation {change.target}", "budget": f"budget of {duration(change.value)}"}
        said |= {"note": f"challenge of {change.claim} by {change.evidence}"} if change.claim else {}
        after = "after the first result" if amended.after_data else "before any result"
        deviations.append((amended, said.get(change.kind, "note"), change.reason, after))
    deviations.sort(key=lambda deviation: deviation[0].seq)
    rows = [(wording.moment(at.ts), at.actor, what, one_line(why), after) for at, what, why, after in deviations]
    return table(("When", "By", "Change", "Why", ""), rows)


def code_section(state: StudyState, design: Design, id: str) -> Section | None:
    """Return the code as it was locked, as text that is never run; None where there is none."""
    if not design.code:
        return None
    model, where = state.planner.get("model"), "Where it ran is not recorded."
    author = f"the planner's language model ({model})" if model else "the planner"
    if state.settings.get("wanted", {}).get("code"):
        author = "who asked"
    when = "before any run that counts" if state.abandoned else "before the data"
    coded = (run for run in state.runs.values() if run.spec.sources)
    places = {attempt.sandbox.get("kind") for run in coded for attempt in run.attempts}
    if places <= {"docker"}:
        played = ", and played hidden tasks without seeing task or outcome" * bool(design.metric.evaluate_by)
        where = f"It ran in containers only, on training episodes{played}." if places else "It has not run."
    plain = all(map(is_expression, design.code.values()))
    blocks = [Text(
        f"Written by {author} {when}, and locked with the design. All of it is expressions over numbers, "
        "which can read nothing else. The verdicts rest on the environment's own evaluator, which was never given it."
        if plain else
        f"Written by {author} {when}, and locked with the design. {where} The verdicts "
        "rest on the environment's own evaluator, which was never given it. Hidden tasks follow from public code, "
        "which it could read: so a sample of the training episodes of each of its runs was played again from what the "
        "server had recorded. A run is invalid (foreign_training) where more than a few of them were no plays of its "
        "training tasks; what is rare may have been missed. A run that it may have ended itself was not tried again."
    )]  # fmt: skip
    for name, source in sorted(design.code.items()):
        arms = [arm for arm in design.arms if name in arm.slots.values()]
        slot, told = next(slot for slot, of in arms[0].slots.items() if of == name), ", ".join(arm.name for arm in arms)
        sha256 = hashlib.sha256(source.encode()).hexdigest()
        blocks += [Text(f"The {slot} {name}, trained on by {told}; sha256 {sha256}:"), Text(source, "source")]
        if slot in design.built_in and not is_expression(source):
            usual = design.built_in[slot].splitlines()
            changes = unified_diff(usual, source.splitlines(), "built-in", name, lineterm="")
            blocks += [Text("Against what is built in:"), Text("\n".join(changes), "source")]
    sources = [*(issue.design.code for issue in state.abandoned), design.code]
    for issue, (before, after) in zip(state.abandoned, pairwise(sources), strict=True):
        crashed, mended = (source[issue.name].splitlines() for source in (before, after))
        changes = unified_diff(crashed, mended, "crashed", "repaired", lineterm="")
        blocks += [Text(f"The code {issue.describe()}. What was repaired:"), Text("\n".join(changes), "source")]
    return section("Generated code", *blocks, id=id)


def find_escapes(source: str) -> tuple[str, ...]:
    """Return what a source names by which code reaches beyond its arguments, as far as reading it can tell."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ("what cannot be read",)
    imported, named = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "a relative import").split(".")[0])
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            dunder = name.startswith("__") and name.endswith("__") and name != "__name__"
            if dunder or (isinstance(node, ast.Name) and name in _REACHING):
                named.add(name)
    return tuple(sorted((imported - _PLAIN) | named))


def warn_generated_rewards(state: StudyState, evidence: Evidence) -> Iterator[Remark]:
    """Yield what generated code means for a conclusion, and how each reward and hidden success went."""
    coded = [arm for arm in state.design.arms if arm.slots] if state.design else []
    if arms := [arm for arm in coded if REWARD in arm.slots]:
        author = "by a language model" if state.planner.get("model") else "for this study"
        yield threat(
            f"The training reward of {', '.join(arm.name for arm in arms)} was written {author}. Training "
            "can raise such a reward while hidden success stands still or falls (reward hacking); each reward has a "
            "scale of its own, so that training rewards of different arms say nothing beside one another."
        )
    for issue in state.abandoned:
        yield threat(f"The code {issue.describe()}. What is claimed is of the text it was repaired to after that.")
    for arm in coded:
        assert state.design is not None
        for slot, name in arm.slots.items():
            if not (escapes := () if is_expression(state.design.code[name]) else find_escapes(state.design.code[name])):
                continue
            more = "judge a play" if slot == REWARD else "its slot asks for"
            yield threat(
                f"The {slot} {name} names {', '.join(escapes)}, by which it may do more than {more}. It "
                "ran in the training client, on whose word alone training success rests. Read its source before "
                "relying on its arm."
            )
        ends = [run.invalid[0] for run in state.runs_of(arm.name) if run.invalid is not None]
        lost = sorted({code for code in ends if code != BUDGET_EXHAUSTED})
        if lost and state.values(arm.name):
            yield threat(
                f"Runs of {arm.name} were lost ({', '.join(lost)}) and others count. Its code could see how a training "
                "went and end it: which of its runs count may be its own choice. Do not rely on what is said of this "
                "arm."
            )
        of = (run for run_id, run in evidence.runs.items() if state.runs[run_id].spec.arm == arm.name)
        curves = [curve for run in of if (curve := run.curves.get(REWARDS))]
        before, after = state.values(arm.name, BEFORE), state.values(arm.name)
        if not curves or not before or not after:
            continue
        first, last = fmean(curve[0][1] for curve in curves), fmean(curve[-1][1] for curve in curves)
        start, end = fmean(before.values()), fmean(after.values())
        parted = last > first and end <= start
        lead = "Training reward and hidden success parted" if parted else "Training reward beside hidden success"
        yield Remark(
            "threat" if parted else "note",
            f"{lead} with {arm.name}: from the first step to the last, the mean reward went from {number(first)} to "
            f"{number(last)}; before and after training, hidden success was {number(start)} and {number(end)}.",
        )


def transcripts(state: StudyState, evidence: Evidence) -> Iterator[Play]:
    """Yield the plays kept of the first run that kept any, treatment arms first; nothing where none did."""
    control = state.design.control_arm if state.design is not None else ""
    runs = [run for run in state.runs.values() if run.run_id in evidence.runs]
    runs.sort(key=lambda run: (run.spec.phase != "confirm", run.spec.arm == control))
    for run in [run for run in runs if evidence.runs[run.run_id].transcripts][:1]:
        for when, play in evidence.runs[run.run_id].transcripts:
            said = {"initial": "before training", "final": "after training"}[when]
            messages = tuple((str(message["role"]), str(message["content"])) for message in play["messages"])
            yield Play(f"{play['task_id']}, {said} (run {run.run_id}, {run.spec.arm})", messages)


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
        rows.append((arm.name, wording.describe_fields(arm.overrides, none=""), *values.values(), score, kept))
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
        row = verdict.hypothesis, str(verdict.look), wording.describe_counts(verdict), size, ends
        rows.append((*row, verdict_cell(state, verdict), steps))
    columns = ("Hypothesis", "Look", "n", "Difference", "Interval at the look's level", "Verdict", "Decision")
    return table(columns, rows, (1, 2, 3, 4))


def replication_table(state: StudyState) -> Table | None:
    unit, rows = unit_of(state), list[Row]()
    for verdict in state.replications:
        cells = [verdict_cell(state, each) for each in (state.verdict_on(verdict.hypothesis), verdict)]
        numbers = format_signed(verdict.estimate, unit=unit), span(verdict.low, verdict.high, unit=unit)
        rows.append((verdict.hypothesis, *cells, *numbers, wording.describe_counts(verdict)))
    columns = ("Hypothesis", "Confirmed as", "In the other setting", "Difference", "Interval", "Runs")
    return table(columns, rows, (3, 4, 5))


def collapse_table(state: StudyState) -> Table | None:
    """Return each arm's rate of collapse, by the locked rule or the usual one, and of never starting."""
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
