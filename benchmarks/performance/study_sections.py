"""The sections on whole studies and trainings: a first study, learning curves, the recorded grids."""

from __future__ import annotations

from collections.abc import Iterator

from performance.results import Figures
from performance.writing import percent, table


def first_study(figures: Figures) -> Iterator[str]:
    """Yield how long a first study takes, and what came out."""
    seconds, run = figures["seconds"], figures["seconds per run (mean)"]
    success, captured = figures["hidden success (mean)"], figures["captured"]
    kept = captured["continued calls"]
    yield (
        f"One study of {figures['runs']['planned']} runs (two arms, five seeds each) on {figures['machine']['cpus']} "
        "cores; times are of one machine and noisy."
    )
    yield from table(("", ""), [
        ("command to report", f"{seconds['command to report']:.0f} s: {seconds['train and evaluate']:.0f} s training "
                              f"and evaluation, {seconds['make the model']:.0f} s making the tiny model, "
                              f"{seconds['start Prefect']:.0f} s starting Prefect"),
        ("one run, two at once", f"{run['whole']:.0f} s: {run['train']:.0f} s for 40 GRPO steps of 128 episodes over "
                                 f"HTTP, {run['boot']:.0f} s boot, {run['initial'] + run['final']:.0f} s for two "
                                 "evaluations of 512 hidden episodes"),
        ("hidden success before and after training, means of five seeds", ", ".join(
            f"{ends['before']:.3f} and {ends['after']:.3f} ({arm.replace('_', ' ').replace('=', ' ')})"
            for arm, ends in success.items())),
        ("continued model calls whose served ids were kept", f"{kept:,.0f} of {kept + captured['forked calls']:,.0f}"),
        ("largest difference between the learner's and the engine's probability of a sampled token",
         f"{captured['largest difference of learner and engine probability']:.1e}"),
        ("tokens trained, one row per call over merged rows", f"{captured['tokens unmerged over merged']:.2f}"),
    ])  # fmt: skip


def evaluation_cost(figures: Figures) -> Iterator[str]:
    """Yield what evaluations during training cost, and how noisy what is read off them is."""
    share, error = figures["share of a run"], figures["standard error"]
    seconds, schedule = figures["seconds (mean)"], figures["schedule"]
    kept = "kept" if share["longer"] <= 0.1 else "**missed**"
    yield (
        "Metrics of the course of a training look at it while it goes on. Runs of the default job in `guess`, with and "
        "without, in turn, on a quiet machine:"
    )
    yield from table(("", ""), [
        ("schedule", f"{schedule['episodes']} hidden episodes every {schedule['every']} training episodes, "
                     f"{seconds['with']['evaluations']:.0f} times"),
        ("one run", f"{seconds['with']['whole']:.1f} s with, {seconds['without']['whole']:.1f} s without: "
                    f"{percent(share['longer'], 1)} of a run (goal: at most 10 %, {kept})"),
        ("of this, training waited for an evaluation", percent(share["waited"], 1)),
        ("standard error at a success of a half", f"{error['of one evaluation']:.3f} (one evaluation), "
                                                  f"{error['of the area']:.3f} (the area)"),
    ])  # fmt: skip


def orchestration(figures: Figures) -> Iterator[str]:
    """Yield what a controller, Prefect and a list of studies take of a core, and a controller's memory over days."""
    ticks, shown, listed, days = (figures[name] for name in ("ticks", "prefect", "list", "days"))
    yield "Seconds of one core for studies of simulated attempts, half of whose runs are done:"
    yield from table(("runs", "events", "first look at the log", "a look in vain", "an attempt that ends"), [
        (f"{row['runs']:,}", f"{row['events']:,}", *(f"{row[name]:.3f}" for name in (
            "first look", "idle tick", "attempt ended"))) for row in ticks
    ])  # fmt: skip
    yield ""
    yield "Showing such studies in a real Prefect server, in the controller's process and in the server's:"
    yield from table(("runs", "shown anew after an outage", "a look in vain", "an attempt that ends and the next"), [
        (f"{row['runs']:,}", f"{row['catching up, controller']:.2f} + {row['catching up, server']:.1f}",
         f"{row['idle refresh']:.4f}", f"{row['an attempt, controller']:.3f} + {row['an attempt, server']:.3f}")
        for row in shown
    ])  # fmt: skip
    kept = "kept" if listed["again"] < 1.0 else "**missed**"
    yield ""
    yield (
        f"`ajet study list` of {listed['studies']:,} studies takes {listed['again']:.2f} s as a whole command (goal: "
        f"less than 1 s, {kept}), {listed['the command alone']:.2f} s of it Python's start and imports, and "
        f"{listed['first']:.1f} s the first time. Over {days['days']:.0f} simulated days and {days['runs']} runs a "
        f"controller's memory grows by {days['grown']:.0f} MiB after the first (goal: less than 20, "
        f"{'kept' if days['grown'] < 20 else '**missed**'})."
    )


def learning_curves(figures: Figures) -> Iterator[str]:
    """Yield how three algorithms learn in two environments."""
    environments = figures["environments"]
    algorithms = ", ".join(next(iter(environments.values())))
    yield (
        f"Whole trainings of {figures['steps']} steps through the real server and client, {figures['seeds']} seeds "
        f"each, by {algorithms}: with the default job they learn alike."
    )
    yield ""
    yield (
        f"![Training reward of {algorithms} in {' and '.join(environments)}, mean and interval over the seeds]"
        "(../benchmarks/results/learning_curves.svg)"
    )
    yield from table(("environment", "algorithm", "reward at the start", "at the end", "95 % interval"), [
        (environment, algorithm, f"{curve['start']['mean']:.3f}", f"{curve['end']['mean']:.3f}",
         f"{curve['end']['low']:.3f} to {curve['end']['high']:.3f}")
        for environment, curves in environments.items() for algorithm, curve in curves.items()
    ])  # fmt: skip


def landscape(figures: Figures) -> Iterator[str]:
    """Yield what the recorded grids of real trainings hold."""
    yield (
        "Grids of real trainings (learning rate, group size, epochs) that searches are compared on: the best place is "
        "known. They ship with the project and are recorded once, so they have no history."
    )
    yield from table(("environment", "trainings", "places", "before training", "best place", "its hidden success",
                      "sd between seeds"), [
        (name, str(grid["runs"]), str(grid["configurations"]), f"{grid['before training']:.3f}",
         ", ".join(f"{field} {value:g}" for field, value in grid["best"]["at"].items()), f"{grid['best']['mean']:.3f}",
         f"{grid['noise']['sd']:.3f}")
        for name, grid in figures["environments"].items()
    ])  # fmt: skip
