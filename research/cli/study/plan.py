"""`ajet study plan`: what a study would be, what it could see and what it would cost, without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from research.cli.output import console, print_json
from research.cli.plots import PowerCurve, draw_power
from research.cli.study.request import (
    DEFAULT_BUDGET,
    Effect,
    Env,
    Episodes,
    Held,
    LookCount,
    MaxRuns,
    OldModel,
    PlannerModel,
    PlannerName,
    Power,
    Topic,
    TopicRequest,
    Vary,
    WallClock,
    planning_by,
)
from research.design.compiler import DesignCompiler
from research.design.power import MOST_SEEDS
from research.design.pricing import EVALUATION_EPISODES, make_pricing, observed_seconds
from research.design.requirements import DEFAULT_LOOKS, DEFAULT_POWER, METRIC_RANGE, StatisticalRequirements
from research.durations import format_seconds
from research.errors import Declined, DesignRefused
from research.installation.home import Home
from research.installation.machine import parallel
from research.noise.bank import NoiseBank
from research.proposals.actions import LEAST_SEEDS
from research.study.evaluation import PlanningContext
from research.study.preview import PlanPreview, PowerRow, preview, run_hours
from research.study.session import new_study_id
from studies import EventLog
from studies.records.design import Budget, Hypothesis
from studies.records.design_parts import NoisePlan


def plan(
    topic: Topic = None,
    vary: Vary = [],  # noqa: B006  # typer's own copy
    held: Held = [],  # noqa: B006
    env: Env = None,
    planner: PlannerName = "rules",
    planner_model: PlannerModel = None,
    model: OldModel = None,
    budget: WallClock = DEFAULT_BUDGET,
    max_runs: MaxRuns = None,
    effect: Effect = None,
    power: Power = DEFAULT_POWER,
    looks: LookCount = DEFAULT_LOOKS,
    episodes: Episodes = EVALUATION_EPISODES,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Show what a study would be, what it could see and what it would cost; nothing is run.

    Its flags mean what they mean to `ajet research`. Exit code 2 where the design would be refused, with the reason and
    what would do on the last line.

    Examples:

        ajet study plan "Does a larger group size make GRPO learn the guessing game faster?"

        ajet study plan "learning rate 1e-3 vs 3e-3" --env arith --effect 0.05 --budget 30m

        ajet study plan --vary group_size=4,16 --set steps=80 --env guess

        ajet study plan "group size 4 vs 8" --json
    """
    requirements = StatisticalRequirements.asked(effect, power, looks, episodes)
    request = TopicRequest.read(topic, vary, held, env, requirements, budget, max_runs)
    chosen = planning_by(request.requested, planner, planner_model)
    home = Home.locate().prepare()
    context = _context(request, EventLog(home.database))
    with console().status("planning") if console().is_terminal and not json else nullcontext():
        try:
            seen = preview(context, chosen)
        except Declined as end:
            _show_declined(end, json)
            return
        pictures = _pictures(seen, home.path / "plans" / new_study_id(request.topic)) if seen.curve else ()
    if json:
        print_json({**as_json(seen), "pictures": [str(path) for path in pictures]})
    else:
        for part in screen(seen, pictures):
            console().print(part)
    if seen.refused is not None:
        raise DesignRefused(seen.refused)


def _context(request: TopicRequest, log: EventLog) -> PlanningContext:
    """Return what a study of this request would be planned by on this machine."""
    compiler = DesignCompiler(
        price=make_pricing(parallel(), observed_seconds(log)),
        budget=Budget(wall_clock_s=request.budget_s, max_runs=request.max_runs),
        requirements=request.requirements,
        bank=NoiseBank.of(log),
    )
    return PlanningContext(request.topic, compiler, lambda: request.budget_s, request.requested)


def _show_declined(end: Declined, json: bool) -> None:
    """Say that there is no plan, as the planner declines the topic."""
    if json:
        print_json({"accepted": False, "declined": {"by": end.by, "reason": end.said}})
    else:
        console().print(Text(f"declined  {end.message}"))


def _pictures(seen: PlanPreview, folder: Path) -> tuple[Path, ...]:
    """Draw the power curve of the smallest effect, of half and of twice of it; return where it lies."""
    if seen.analysis is None:
        return ()
    analysis, counts = seen.analysis, range(LEAST_SEEDS, MOST_SEEDS + 1)
    effects = [effect for factor in (1.0, 0.5, 2.0) if (effect := seen.effect * factor) < METRIC_RANGE]
    curve = PowerCurve(
        title=f"What seeds see, at a noise of {analysis.noise.sd:.3f} between them",
        promised=seen.requirements.power,
        series={effect: [(seeds, analysis.power(seeds, effect)) for seeds in counts] for effect in effects},
        chosen=len(seen.design.seeds) if seen.design else None,
        affordable=seen.affordable or LEAST_SEEDS - 1,
    )
    svg, png = folder.with_suffix(".svg"), folder.with_suffix(".png")
    draw_power(curve, svg, png)
    return svg, png


def screen(seen: PlanPreview, pictures: tuple[Path, ...]) -> Iterator[Text | Table]:
    """Yield what a person reads, top to bottom."""
    yield from _question(seen)
    for note in dict.fromkeys(seen.notes):
        yield Text(f"assumed  {note}")
    for clause in seen.unequal:
        yield Text(f"unequal  the arms differ in {clause}", "yellow")
    for hypothesis in seen.hypotheses:
        yield from _hypothesis(hypothesis)
    yield Text(f"arms  {' vs '.join(seen.arms)}{_searched(seen)}")
    yield from _design(seen)
    yield Text(f"noise  {_noise(seen)}")
    if seen.curve:
        yield Text(
            f"\nWhat seeds see of a difference of {seen.effect:g}, with power {seen.requirements.power:g} promised:"
        )
        yield _curve(seen)
    yield Text("\nWhat it costs at the worst:" if seen.design else "\nWhat would be needed:")
    yield _stages(seen)
    for line in _expected(seen):
        yield Text(line)
    if pictures:
        yield Text(f"curve  {pictures[0]}\n       {pictures[1]}")


def _first(plan: NoisePlan) -> str:
    alike = f"{len(plan.seeds)} A/A runs: one job, another seed each" if plan.seeds else ""
    still = "one training with a learning rate of 0, which must change nothing" if plan.plumbing is not None else ""
    return "; ".join(filter(None, (still, alike)))


def _question(seen: PlanPreview) -> Iterator[Text]:
    yield Text.assemble(("asked  ", "dim"), (seen.topic, "italic"))
    for sentence in seen.tested:
        yield Text.assemble(("tested  ", "dim"), sentence)
    for text in seen.not_tested:
        yield Text.assemble(("not tested  ", "yellow"), text)


def _hypothesis(entry: Hypothesis) -> Iterator[Text]:
    said = entry.prediction
    yield Text(f"hypothesis {entry.id}  {entry.statement}")
    yield Text(
        f"  predicted {said.low:+g} to {said.high:+g} ({said.level:.0%}), supported with {said.probability:.0%}"
        + (f"; given up when {entry.kill_if}" if entry.kill_if else "")
    )
    for fear in entry.confounds:
        yield Text(f"  feared  {fear}")


def _searched(seen: PlanPreview) -> str:
    if seen.design is None:
        return "" if seen.hypotheses else " vs the best candidates of a screen"
    if seen.design.screen is None:
        return ""
    found = seen.design.screen
    knobs = ", ".join(knob.field for knob in found.knobs)
    best = "the best one" if found.confirmed == 1 else f"the best {found.confirmed}"
    return f" vs {best} of {found.candidates} candidates over {knobs}"


def _design(seen: PlanPreview) -> Iterator[Text]:
    if seen.design is None:
        if seen.first is not None:
            yield Text(f"first  {_first(seen.first)}; the design follows")
        return
    looks = ", ".join(f"{look.seeds} seeds (level {look.alpha:.2g})" for look in seen.design.looks)
    test = {"common": "t, one variance of all arms", "paired": "paired t", "welch": "Welch's t"}
    also = ", Dunnett and Benjamini-Hochberg" if seen.design.multiplicity == "dunnett_bh" else ""
    yield Text(f"seeds  {len(seen.design.seeds)} of each arm; looked at after {looks}")
    yield Text(f"test  {test[seen.design.test]}{also}; no difference where it is surely inside ±{seen.effect:g}")


def _noise(seen: PlanPreview) -> str:
    if seen.noise is None:
        return seen.unknown or "unknown"
    part = seen.noise.evaluation_sd
    evaluation = f", of which evaluation {part:.3f}" if part is not None else ""
    return f"sd {seen.noise.sd:.3f} between seeds{evaluation}; {seen.noise.df} degrees of freedom: {seen.noise.basis}"


def _curve(seen: PlanPreview) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("seeds", "power", "", "sees", "runs", "time", "run-hours", " "):
        table.add_column(column, header_style="dim", justify="right" if column.strip() else "left", no_wrap=True)
    chosen = len(seen.design.seeds) if seen.design else None
    for row in seen.curve:
        mark = "the design" if row.seeds == chosen else "" if row.affordable else "not affordable"
        style = "bold" if row.seeds == chosen else "" if row.power >= seen.requirements.power else "dim"
        table.add_row(
            str(row.seeds), f"{row.power:.0%}", "█" * round(20 * row.power), _difference(row), str(row.runs),
            format_seconds(row.seconds), f"{row.run_hours:.2f}", mark, style=style,
        )  # fmt: skip
    return table


def _difference(row: PowerRow) -> str:
    return "nothing" if row.detectable is None else f"{row.detectable:.3f}"


def _stages(seen: PlanPreview) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("stage", "runs", "a run", "run-hours"):
        table.add_column(column, header_style="dim", justify="left" if column == "stage" else "right", no_wrap=True)
    for stage in seen.stages:
        hours = f"{run_hours([stage]):.2f}"
        table.add_row(stage.name, str(stage.runs), format_seconds(stage.seconds_per_run), hours)
    table.add_row("in all", str(sum(stage.runs for stage in seen.stages)), "", f"{run_hours(seen.stages):.2f}")
    return table


def _expected(seen: PlanPreview) -> Iterator[str]:
    yield f"time  {format_seconds(seen.total_s)} at the worst; {seen.budget}"
    for entry in seen.expected:
        if seen.design is not None and len(seen.design.looks) > 1:
            name = "without a difference" if not entry.effect else f"with a difference of {entry.effect:g}"
            yield f"      about {format_seconds(entry.seconds)} and {entry.runs:.0f} runs {name}, as looks may end it"


_THROWN_AWAY: Any = {"seeds": True, "screen": {"seed"}, "replication": {"seeds"}}
"""Seeds that a plan's design was compiled with: a study draws its own."""


def as_json(seen: PlanPreview) -> dict[str, Any]:
    """Return the preview as JSON values."""
    return {
        "asked": seen.topic,
        "tested": list(seen.tested),
        "not_tested": list(seen.not_tested),
        "unequal": list(seen.unequal),
        "accepted": seen.refused is None,
        "refused": seen.refused,
        "assumed": list(seen.notes),
        "hypotheses": [entry.model_dump(mode="json") for entry in seen.hypotheses],
        "arms": list(seen.arms),
        "smallest_effect": seen.effect,
        "promised_power": seen.requirements.power,
        "noise": seen.noise.model_dump(mode="json") if seen.noise else None,
        "no_noise_because": seen.unknown,
        "noise_runs_first": len(seen.first.seeds) if seen.first else 0,
        "plumbing_run_first": seen.first is not None and seen.first.plumbing is not None,
        "design": seen.design.model_dump(mode="json", exclude=_THROWN_AWAY) if seen.design else None,
        "seeds": len(seen.design.seeds) if seen.design else None,
        "power_curve": [
            {
                "seeds": row.seeds, "power": row.power, "detectable": row.detectable, "runs": row.runs,
                "seconds": row.seconds, "run_hours": row.run_hours, "affordable": row.affordable,
            }
            for row in seen.curve
        ],
        "stages": [
            {"name": stage.name, "runs": stage.runs, "seconds_per_run": stage.seconds_per_run,
             "run_hours": run_hours([stage])}
            for stage in seen.stages
        ],
        "total_s": seen.total_s,
        "expected": [
            {"effect": entry.effect, "runs": entry.runs, "seconds": entry.seconds} for entry in seen.expected
        ],
    }  # fmt: skip
