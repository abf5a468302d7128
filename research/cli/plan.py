"""`ajet study plan`: what a study would be, could see and would cost, without running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from research.cli.app import Json, answer, make_table, show_progress, takes_options
from research.controller import options
from research.controller.evaluation import PlanningInputs
from research.controller.preview import PlanPreview, preview, run_hours
from research.controller.session import parallel_of
from research.design.compiler import DesignCompiler
from research.design.known_findings import load_findings
from research.design.noise_bank import NoiseBank, model_key
from research.design.pricing import make_pricing, median_seconds
from research.environments.catalog import find_all_measurements
from research.errors import DesignRefused, TopicDeclined
from research.installation.base_job import require_known
from research.installation.home import Home
from research.models.fetch import check_loader
from research.planners.rules import RulesPlanner
from research.planners.tools import MOST_FINDINGS, find_related
from research.proposals.metric_choice import format_amount, format_difference, format_value
from research.terminal import warn
from research.text import format_seconds
from studies import EventLog
from studies.records.alpha import AlphaLedgers
from studies.records.design import Budget
from studies.records.statements import metric_name, setting
from swarm.job import Job


@takes_options(options.ResearchOptions, omit={"approve", "sandbox"})
def plan(asked: options.ResearchOptions, json: Json = False) -> None:
    """Show what a study would be, what it could see and what it would cost; nothing is run.

    Its flags mean what they mean to `ajet research`. Exit code 2 where the design would be refused, with the reason and
    what would do on the last line.

    Examples:
        ajet study plan "Does a larger group size make GRPO learn the guessing game faster?"
        ajet study plan "learning rate 1e-3 vs 3e-3" --env arith --effect 0.05 --budget 30m
        ajet study plan --vary group_size=4,16 --set steps=80 --env guess
        ajet study plan --vary learning_rate=0.001,0.003 --env guess --metric episodes:0.6
        ajet study plan --vary group_size=4,16 --vary learning_rate=0.001,0.003 --as interaction
        ajet study plan "group size 4 vs 8" --json
    """
    request = options.make_request(asked, warn)
    require_known((request.base or Job()).backend)
    chosen = options.select_planner(request, warn)
    if isinstance(chosen, RulesPlanner):
        options.require_understood(request, options.ask_on_terminal, asked, "study plan")
    home = Home.locate().prepare()
    log, check_of = EventLog(home.database), check_loader(home.models)
    runs = parallel_of(request.base, request.requested, check_of)
    compiler = DesignCompiler(
        price=make_pricing(runs, median_seconds(log), measured=find_all_measurements(home), check_of=check_of),
        budget=Budget(wall_clock_s=request.budget_s, max_runs=request.max_runs),
        base=request.base,
        requirements=request.requirements,
        ledgers=AlphaLedgers.begin(request.requirements.rounds or 1),
        bank=NoiseBank.of(log),
        models=request.requested.models,
        explores=request.explore,
    )
    own = model_key(request.base or Job())
    every = load_findings(home, log).findings
    context = PlanningInputs(
        request.topic, compiler, lambda: request.budget_s, wanted=request.requested, parsed=request.parsed,
        findings=find_related(every, "", request.topic, MOST_FINDINGS),
        known=[entry for entry in every if entry.conditions.model_key == own],
    )  # fmt: skip
    with show_progress(json, "planning"):
        try:
            seen = preview(context, chosen)
        except TopicDeclined as end:
            message = {"by": end.said.by, "reason": end.said.text}
            answer(json, {"accepted": False, "declined": message}, Text(f"declined  {end.message}"))
            return
    answer(json, as_json(seen), screen(seen))
    if seen.refused is not None:
        raise DesignRefused(seen.refused)


def screen(seen: PlanPreview) -> Iterator[Text | Table]:
    yield Text.assemble(("asked  ", "dim"), (seen.asked, "italic"))
    yield from (Text.assemble(("tested  ", "dim"), sentence) for sentence in seen.tested)
    yield from (Text.assemble(("not tested  ", "yellow"), text) for text in seen.not_tested)
    if seen.job:
        yield Text(f"job  {', '.join(setting(name, value) for name, value in seen.job.items())}")
    for note in dict.fromkeys(seen.assumed):
        yield Text(f"assumed  {note}")
    for clause in seen.unequal:
        yield Text(f"unequal  the arms differ in {clause}", "yellow")
    for sentence in seen.unusual:
        yield Text(f"unusual  {sentence}", "yellow")
    if seen.explores:
        told = "one run of each arm on one seed, evaluated on search tasks; nothing is tested, and no level is spent"
        yield Text(f"explores  {told}", "yellow")
    for hypothesis in () if seen.explores else seen.hypotheses:
        span = hypothesis.prediction
        odds = f"supported with {span.probability:.0%}"
        odds += f"; given up when {hypothesis.kill_if}" if hypothesis.kill_if else ""
        yield Text(f"hypothesis {hypothesis.id}  {hypothesis.statement}")
        yield Text(f"  predicted {span.low:+g} to {span.high:+g} ({span.level:.0%}), {odds}")
        for confounder in hypothesis.confounds:
            yield Text(f"  feared  {confounder}")
    for environment in seen.brought:
        tasks = ", ".join(f"{count} {split}" for split, count in environment.tasks.items())
        yield Text(f"environment  {environment.name}: {environment.title}; {tasks} tasks")
        if not environment.hidden_apart:
            yield Text("  clients hold code that makes the hidden tasks by itself, or files that hold them", "yellow")
    yield from _metric(seen)
    yield Text(f"arms  {' vs '.join(seen.arms)}{_format_search(seen)}")
    yield from _design(seen)
    yield from () if seen.explores else _evaluations(seen)
    yield Text(f"noise  {_noise(seen)}")
    if seen.power_curve:
        effect, power = format_difference(seen.metric, seen.smallest_effect), seen.promised_power
        study = "A study of it: what" if seen.explores else "What"
        yield Text(f"\n{study} seeds see of a difference of {effect}, with power {power:g} promised:")
        yield _curve(seen)
    yield from _rounds(seen)
    until = "until it is sized" if seen.pilot_runs_first else "at the worst"
    costs = "costs:" if seen.explores else f"costs {until}:"
    yield Text(f"\nWhat it {costs}" if seen.design or seen.explores else "\nWhat would be needed:")
    rows = [
        (stage.name, str(stage.runs), format_seconds(stage.seconds_per_run), f"{stage.run_hours:.2f}")
        for stage in seen.stages
    ]
    whole = ("in all", str(sum(stage.runs for stage in seen.stages)), "", f"{run_hours(seen.stages):.2f}")
    yield make_table(("stage", "runs", "a run", "run-hours"), [*rows, whole], right=("runs", "a run", "run-hours"))
    yield from map(Text, _expected_lines(seen))
    yield Text(f"priced  by {seen.priced_by}")


def _metric(seen: PlanPreview) -> Iterator[Text]:
    metric, asked = seen.metric, seen.requested_metric
    better = "higher" if metric.higher_is_better else "lower"
    yield Text(f"metric  {metric_name(metric)}: {metric.meaning}; {better} is better")
    if asked is not None and asked.words:
        yield Text(f"  chosen  for {asked.words!r}, as --metric {asked.text}; another by --metric (`ajet metric list`)")
    if metric.unit:
        yield Text(
            f"  range  {format_value(metric, metric.worst)} to {format_value(metric, metric.best)} {metric.unit}"
        )
    yield Text(
        f"  effect  {format_difference(metric, seen.smallest_effect)} is the smallest that matters; another by --effect"
    )
    if metric.schedule is not None:
        yield Text(
            f"  schedule  {metric.schedule.episodes} hidden episodes about every {metric.schedule.every} training "
            "episodes, in all arms alike"
        )


def _format_search(seen: PlanPreview) -> str:
    if seen.design is None:
        return "" if seen.hypotheses else " vs the best candidates of a screen"
    if seen.design.screen is None:
        return ""
    found = seen.design.screen
    knobs = ", ".join(knob.field for knob in found.knobs)
    best = "the best one" if found.confirmed == 1 else f"the best {found.confirmed}"
    return f" vs {best} of {found.candidates} candidates over {knobs}"


_FIRST: Final = "one training with a learning rate of 0, which must change nothing and evaluates the untrained model"


def _design(seen: PlanPreview) -> Iterator[Text]:
    if seen.plumbing_run_first:
        yield Text(f"first  {_FIRST}")
    if seen.design is None:
        return
    analyses = ", ".join(f"{look.seeds} seeds (level {look.alpha:.2g})" for look in seen.design.looks)
    test = {
        "common": "t, one variance of all arms", "paired": "paired t", "welch": "Welch's t",
        "boschloo": "Boschloo's exact test of two rates", "contrast": "Welch's t of a contrast of all arms",
    }  # fmt: skip
    also = _SEVERAL[seen.design.multiplicity]
    if (pilot := seen.design.pilot) is not None:
        effect = format_difference(seen.metric, seen.smallest_effect)
        yield Text(
            f"seeds  {pilot.seeds} of each arm first; how far these runs vary, whichever their arms, says how many see "
            f"{effect} with power {seen.promised_power:g}: up to {pilot.most} of each arm, as the budget carries"
        )
    else:
        yield Text(f"seeds  {len(seen.design.seeds)} of each arm; looked at after {analyses}")
    if (longer := seen.design.extension) is not None:
        yield Text(
            f"length  {seen.design.base_job['steps']} steps; all runs {longer.steps} where the first ones, arms not "
            f"told apart, rise by {longer.rise:g} or more on average over their last quarter (training success)"
        )
    promise = seen.design.promise
    if promise is not None and promise.power < seen.promised_power:
        effect = format_difference(seen.metric, promise.effect)
        yield Text(f"promise  power {promise.power:g} at {effect}, not {seen.promised_power:g}: all the budget carries")
    if seen.design.test == "contrast":
        times = (sum(weight * weight for weight in claim.weights) / 2 for claim in seen.design.hypotheses)
        share = ", ".join(f"{each:.2g}" for each in times)
        yield Text(f"arms  {len(seen.design.arms)}, of which a claim has {share} times a difference's variance")
    inside = f"no difference where it is surely inside ±{format_difference(seen.metric, seen.smallest_effect)}"
    yield Text(f"test  {test[seen.design.test]}{also}; {inside}")


def _evaluations(seen: PlanPreview) -> Iterator[Text]:
    if not seen.evaluations:
        return
    priced = {
        option.episodes: f"{option.seeds} seeds, {format_seconds(option.seconds)}"
        f"{'' if option.affordable else ', not affordable'}" if option.seeds else "too few for any number of seeds"
        for option in seen.evaluations
    }  # fmt: skip
    able = any(option.seeds for option in seen.evaluations)
    why = ", as asked" if seen.requested_episodes else ", the cheapest, or nearly" if able else ""
    chosen = seen.metric.episodes
    yield Text(f"episodes  {chosen:,} of each evaluation{why}: {priced.pop(chosen)}")
    yield Text("  instead  " + "; ".join(f"{episodes:,}: {price}" for episodes, price in priced.items()))


_SEVERAL = {
    "none": "", "dunnett_bh": ", Dunnett and Benjamini-Hochberg", "dunnett_bonferroni": ", Dunnett; variables share it",
}  # fmt: skip


def _rounds(seen: PlanPreview) -> Iterator[Text | Table]:
    if not seen.rounds:
        return
    yield Text(
        f"\nUp to {len(seen.rounds)} rounds, each a question on what the last one found. Any false difference in all "
        "of them together has a probability of 5 % at most, and so has any false equivalence; a round that ends in a "
        "claim hands its level on."
    )
    names = ("round", "level", "of no difference", f"sees, power {seen.promised_power:g}", "power 0.5")
    rows = []
    nothing = "unknown yet" if seen.noise is None else "none"
    for row in seen.rounds:
        effects = (
            nothing if effect is None else format_difference(seen.metric, effect)
            for effect in (row.detectable, row.detectable_at_half)
        )
        rows.append((str(row.round), f"{row.level:.2%}", f"{row.level_of_no_difference:.2%}", *effects))
    yield make_table(names, rows, right=names)


def _noise(seen: PlanPreview) -> str:
    if seen.noise is None:
        return seen.no_noise_because or "unknown"
    part = seen.noise.evaluation_sd
    evaluation = f", of which evaluation {format_amount(seen.metric, part)}" if part is not None else ""
    sd = format_amount(seen.metric, seen.noise.sd)
    return f"sd {sd} between seeds{evaluation}; {seen.noise.df} degrees of freedom: {seen.noise.basis}"


def _curve(seen: PlanPreview) -> Table:
    names = ("seeds", "power", "", "sees", "runs", "time", "run-hours", " ")
    table = make_table(names, (), right=[name for name in names if name.strip()])
    chosen = len(seen.design.seeds) if seen.design else None
    for row in seen.power_curve:
        mark = "the design" if row.seeds == chosen else "" if row.affordable else "not affordable"
        style = "bold" if row.seeds == chosen else "" if row.power >= seen.promised_power else "dim"
        sees = "nothing" if row.detectable is None else format_amount(seen.metric, row.detectable)
        table.add_row(
            str(row.seeds), f"{row.power:.0%}", "█" * round(20 * row.power), sees, str(row.runs),
            format_seconds(row.seconds), f"{row.run_hours:.2f}", mark, style=style,
        )  # fmt: skip
    return table


def _expected_lines(seen: PlanPreview) -> Iterator[str]:
    until = "until it is sized" if seen.pilot_runs_first else "at the worst"
    yield f"time  {format_seconds(seen.total_s)} {until}; {seen.budget}"
    for entry in seen.expected:
        if seen.design is not None and len(seen.design.looks) > 1:
            amount = f" of {format_difference(seen.metric, entry.effect)}" if entry.effect else ""
            name = f"with{'' if amount else 'out'} a difference{amount}"
            yield f"      about {format_seconds(entry.seconds)} and {entry.runs:.0f} runs {name}, as looks may end it"


_FOR_PEOPLE = ("requested_metric", "requested_episodes", "budget")
_THROWN_AWAY: Any = {"seeds": True, "screen": {"seed"}, "replication": {"seeds"}}
"""Seeds that a plan's design was compiled with: a study draws its own."""


def as_json(seen: PlanPreview) -> dict[str, Any]:
    facts = {field.name: getattr(seen, field.name) for field in fields(seen) if field.name not in _FOR_PEOPLE}
    return facts | {"design": seen.design.model_dump(mode="json", exclude=_THROWN_AWAY) if seen.design else None}
