"""What a study would be, in lines and tables: what the terminal prints of a preview, and what a page shows."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from research.controller.preview import PlanCost, PlanPreview, run_hours
from research.proposals.metric_choice import format_amount, format_difference, format_value
from research.text import format_seconds
from studies import StudyState
from studies.records.statements import metric_name, setting
from studies.report.claims import describe_length, describe_sizing
from studies.report.tables import SEVERAL
from studies.report.wording import capital
from studies.verdicts.wording import TESTS


class Fact(NamedTuple):
    """A fact under its name."""

    name: str
    text: str
    warns: bool = False
    inset: bool = False


class Grid(NamedTuple):
    """A table under its caption; `styles` has `bold`, `dim` or nothing for each row."""

    caption: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    styles: Sequence[str] = ()


def describe_plan(seen: PlanPreview) -> Iterator[Fact | Grid]:
    """Yield what a study would be, could see and would cost."""
    yield Fact("asked", seen.asked)
    yield from (Fact("tested", sentence) for sentence in seen.tested)
    yield from (Fact("not tested", text, warns=True) for text in seen.not_tested)
    if seen.job:
        yield Fact("job", ", ".join(setting(name, value) for name, value in seen.job.items()))
    yield from (Fact("assumed", note) for note in dict.fromkeys(seen.assumed))
    yield from (Fact("unequal", f"the arms differ in {clause}", warns=True) for clause in seen.unequal)
    yield from (Fact("unusual", sentence, warns=True) for sentence in seen.unusual)
    if seen.explores:
        told = "one run of each arm on one seed, evaluated on search tasks; nothing is tested, and no level is spent"
        yield Fact("explores", told, warns=True)
    for hypothesis in () if seen.explores else seen.hypotheses:
        span = hypothesis.prediction
        odds = f"supported with {span.probability:.0%}"
        odds += f"; given up when {hypothesis.kill_if}" if hypothesis.kill_if else ""
        yield Fact(f"hypothesis {hypothesis.id}", hypothesis.statement)
        yield Fact("predicted", f"{span.low:+g} to {span.high:+g} ({span.level:.0%}), {odds}", inset=True)
        yield from (Fact("feared", confounder, inset=True) for confounder in hypothesis.confounds)
    for environment in seen.brought:
        tasks = ", ".join(f"{count} {split}" for split, count in environment.tasks.items())
        yield Fact("environment", f"{environment.name}: {environment.title}; {tasks} tasks")
        if not environment.hidden_apart:
            told = "clients hold code that makes the hidden tasks by itself, or files that hold them"
            yield Fact("", told, warns=True, inset=True)
    yield from _metric(seen)
    yield Fact("arms", f"{' vs '.join(seen.arms)}{_format_search(seen)}")
    yield from _design(seen)
    yield from () if seen.explores else _evaluations(seen)
    yield Fact("noise", _noise(seen))
    if seen.power_curve:
        effect, power = format_difference(seen.metric, seen.smallest_effect), seen.promised_power
        study = "A study of it: what" if seen.explores else "What"
        yield _curve(seen, f"{study} seeds see of a difference of {effect}, with power {power:g} promised:")
    yield from _rounds(seen)
    until = "until it is sized" if seen.pilot_runs_first else "at the worst"
    costs = "costs:" if seen.explores else f"costs {until}:"
    rows = [
        (stage.name, str(stage.runs), format_seconds(stage.seconds_per_run), f"{stage.run_hours:.2f}")
        for stage in seen.stages
    ]
    whole = ("in all", str(sum(stage.runs for stage in seen.stages)), "", f"{run_hours(seen.stages):.2f}")
    caption = f"What it {costs}" if seen.design or seen.explores else "What would be needed:"
    yield Grid(caption, ("stage", "runs", "a run", "run-hours"), [*rows, whole], ("runs", "a run", "run-hours"))
    yield Fact("at once", seen.at_once)
    yield Fact("costs", _cost(seen.cost))
    yield from _expected_lines(seen)
    yield Fact("priced", f"by {seen.priced_by}")


def _cost(cost: PlanCost) -> str:
    known = {"GPU": cost.gpu_hours, "server": cost.server_hours, "core": cost.core_hours}
    hours = next((f"{count:.2f} {name} hours" for name, count in known.items() if count), "0 hours")
    trained, evaluated, *planner = (f"{float(f'{count:.2g}'):,.0f}" for count in cost.tokens.values())
    tokens = f"about {trained} tokens sampled and trained, {evaluated} sampled in evaluations"
    spoken = f"; the planner read {planner[0]} tokens and wrote {planner[1]}" if planner != ["0", "0"] else ""
    money = (
        f"no price known of {' and '.join(cost.unpriced)}" if cost.unpriced else f"{cost.money:,.2f} {cost.currency}"
    )
    return f"{hours}; {tokens}{spoken}; {money.strip()}"


def _metric(seen: PlanPreview) -> Iterator[Fact]:
    metric, asked = seen.metric, seen.requested_metric
    better = "higher" if metric.higher_is_better else "lower"
    yield Fact("metric", f"{metric_name(metric)}: {metric.meaning}; {better} is better")
    if asked is not None and asked.words:
        told = f"for {asked.words!r}, as --metric {asked.text}; another by --metric (`ajet metric list`)"
        yield Fact("chosen", told, inset=True)
    if metric.unit:
        ends = f"{format_value(metric, metric.worst)} to {format_value(metric, metric.best)} {metric.unit}"
        yield Fact("range", ends, inset=True)
    told = f"{format_difference(metric, seen.smallest_effect)} is the smallest that matters; another by --effect"
    yield Fact("effect", told, inset=True)
    if metric.schedule is not None:
        every = f"{metric.schedule.episodes} hidden episodes about every {metric.schedule.every} training episodes"
        yield Fact("schedule", f"{every}, in all arms alike", inset=True)


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


def _design(seen: PlanPreview) -> Iterator[Fact]:
    if seen.plumbing_run_first:
        yield Fact("first", _FIRST)
    if seen.design is None:
        return
    analyses = ", ".join(f"{look.seeds} seeds (level {look.alpha:.2g})" for look in seen.design.looks)
    planned = f"{len(seen.design.seeds)} of each arm; looked at after {analyses}"
    yield Fact("seeds", planned if seen.design.pilot is None else f"{seen.design.pilot.seeds} of each arm first")
    locked = StudyState(design=seen.design, locked_design=seen.design, settings={"power": seen.promised_power})
    told = {"size": describe_sizing(locked), "length": describe_length(locked)}
    yield from (Fact(name, text.strip()) for name, text in told.items() if text)
    if seen.design.test == "contrast":
        times = (sum(weight * weight for weight in claim.weights) / 2 for claim in seen.design.hypotheses)
        share = ", ".join(f"{each:.2g}" for each in times)
        yield Fact("arms", f"{len(seen.design.arms)}, of which a claim has {share} times a difference's variance")
    inside = f"no difference where it is surely inside ±{format_difference(seen.metric, seen.smallest_effect)}"
    several = f"; {SEVERAL[seen.design.multiplicity]}" if seen.design.multiplicity in SEVERAL else ""
    yield Fact("test", f"{capital(TESTS[seen.design.test])}{several}; {inside}")


def _evaluations(seen: PlanPreview) -> Iterator[Fact]:
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
    yield Fact("episodes", f"{chosen:,} of each evaluation{why}: {priced.pop(chosen)}")
    others = "; ".join(f"{episodes:,}: {price}" for episodes, price in priced.items())
    yield Fact("instead", others, inset=True)


def _rounds(seen: PlanPreview) -> Iterator[Fact | Grid]:
    if not seen.rounds:
        return
    caption = (
        f"Up to {len(seen.rounds)} rounds, each a question on what the last one found. Any false difference in all "
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
    yield Grid(caption, names, rows, names)


def _noise(seen: PlanPreview) -> str:
    if seen.noise is None:
        return seen.no_noise_because or "unknown"
    part = seen.noise.evaluation_sd
    evaluation = f", of which evaluation {format_amount(seen.metric, part)}" if part is not None else ""
    sd = format_amount(seen.metric, seen.noise.sd)
    return f"sd {sd} between seeds{evaluation}; {seen.noise.df} degrees of freedom: {seen.noise.basis}"


def _curve(seen: PlanPreview, caption: str) -> Grid:
    names = ("seeds", "power", "", "sees", "runs", "time", "run-hours", " ")
    rows, styles = list[tuple[str, ...]](), list[str]()
    chosen = len(seen.design.seeds) if seen.design else None
    for row in seen.power_curve:
        mark = "the design" if row.seeds == chosen else "" if row.affordable else "not affordable"
        style = "bold" if row.seeds == chosen else "" if row.power >= seen.promised_power else "dim"
        sees = "nothing" if row.detectable is None else format_amount(seen.metric, row.detectable)
        styles.append(style)
        rows.append((
            str(row.seeds), f"{row.power:.0%}", "█" * round(20 * row.power), sees, str(row.runs),
            format_seconds(row.seconds), f"{row.run_hours:.2f}", mark,
        ))  # fmt: skip
    return Grid(caption, names, rows, [name for name in names if name.strip()], styles)


def _expected_lines(seen: PlanPreview) -> Iterator[Fact]:
    until = "until it is sized" if seen.pilot_runs_first else "at the worst"
    yield Fact("time", f"{format_seconds(seen.total_s)} {until}; {seen.budget}")
    for entry in seen.expected:
        if seen.design is not None and len(seen.design.looks) > 1:
            amount = f" of {format_difference(seen.metric, entry.effect)}" if entry.effect else ""
            name = f"with{'' if amount else 'out'} a difference{amount}"
            told = f"about {format_seconds(entry.seconds)} and {entry.runs:.0f} runs {name}, as looks may end it"
            yield Fact("", told, inset=True)
