"""The sections on servers, studies, the swarm and the backend `verl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from rig import scale_forecast
from rig.spans import ALL, ARITHMETIC
from rig.verl_scale import GOAL, JUDGED, STEPS

from performance.writing import Figures, percent, table

BACKENDS = ("local", "verl")


def verl_backend(figures: Figures) -> Iterator[str]:
    """Yield what a step takes with each backend, where verl's update goes, and what of it stays at scale."""
    yield (
        "Both backends in one process on one CPU, one job: `guess` with the tiny model, in turns, each update on the "
        "same ids. Medians over rounds; verl's part has one rank and one replica of vLLM."
    )
    own = figures["medians"]
    rows = [("boot, s", *(f"{figures['boot, s'][name]:.1f}" for name in BACKENDS))]
    rows += [(what, *(f"{own[name][what]:,.4g}" for name in BACKENDS)) for what in own["local"]]
    yield from table(("", *BACKENDS), rows)
    ratios = figures["verl over local, within rounds"]
    yield (
        f"Within rounds verl takes {ratios['rollout']:.1f} times as long for a sampled token and "
        f"{ratios['update']:.1f} times for an update. Where its update goes:"
    )
    parts = figures["parts of an update, s"]
    rows = [
        (f"{part}{', arithmetic' if part in ARITHMETIC else ''}", f"{1e3 * seconds:.1f}",
         percent(seconds / parts[ALL]))
        for part, seconds in parts.items()
    ]  # fmt: skip
    yield from table(("part", "ms", "of the update"), rows)
    yield from _at_scale(figures)


def _at_scale(figures: Figures) -> Iterator[str]:
    step = STEPS[0]
    yield (
        "Computed, not run: what of a step with 1B parameters would be the backend's own, from the seconds of each "
        "call, row, id and byte that were measured here. Assumed: arithmetic of 6 N FLOP for each id that is learned "
        f"and 2 N for each that is read or sampled, at {step.flop_s:g} FLOP/s (40 % of an H100's dense bf16 rate), "
        f"episodes of {step.ids:,} ids, {step.sampled:,} of them sampled in {step.calls} calls, weights of "
        f"{step.weight_bytes} bytes, one rank and one replica. A real generation is slower, so that this is the most "
        "that the part can be; how fast weights go to a GPU was not measured."
    )
    found = figures["at scale"]
    rows = [("arithmetic, s (assumed)", *(f"{each['arithmetic, s']:.1f}" for each in found))]
    rows += [(f"{part}, s", *(f"{each['own, s'][part]:.2f}" for each in found)) for part in found[0]["own, s"]]
    rows += [("part of the step", *(percent(each["part"]) for each in found))]
    yield from table(("", *(f"{each['assumed']['episodes']:,} episodes" for each in found)), rows)
    (judged,) = (each["part"] for each in found if each["assumed"]["episodes"] == JUDGED)
    word = "kept" if judged < GOAL else "**missed**"
    yield f"The goal, under {percent(GOAL, 0)} of a step of {JUDGED:,} episodes, is {word}: {percent(judged)}."


def verl_agreement(figures: Figures) -> Iterator[str]:
    """Yield the curves of both backends and the verdicts on their differences."""
    size = figures["size"]
    yield (
        f"Whole trainings by `verl` and by `local`, each on a swarm server of its own, {size['seeds']} seeds each of "
        f"{size['steps']} steps of {size['episodes_per_step']} episodes with the same jobs. Judged as studies are, "
        f"paired by seed, within margins that were fixed before any run; success on {size['held_out']} held-out tasks "
        "after the last step (`end`), and the mean of training success over all steps (`curve`)."
    )
    yield ""
    yield (
        f"![Training success of local and verl in {' and '.join(figures['environments'])}, mean and interval over the "
        "seeds](../benchmarks/results/verl_agreement.svg)"
    )
    rows = [
        (f"`{environment}`, {measure}", *(_mean(own["arms"][backend][measure]) for backend in BACKENDS),
         _difference(found), f"{found['margin']:g}", _verdict(found))
        for environment, own in figures["environments"].items()
        for measure, found in own["verdicts"].items()
    ]  # fmt: skip
    yield from table(("", *BACKENDS, "verl less local, 90 % interval", "margin", "verdict"), rows)
    for environment, own in figures["environments"].items():
        arms = own["arms"]
        gains = " and ".join(f"{_mean(arms[backend]['gain'])} with {backend}" for backend in BACKENDS)
        apart = arms["verl"]["largest difference of a probability"]
        seconds = " and ".join(f"{arms[b]['seconds']['boot_s']:.0f} + {arms[b]['seconds']['train_s']:.0f} s with {b}"
                               for b in BACKENDS)  # fmt: skip
        yield (
            f"`{environment}`: training gains {gains}; engine and learner of verl differ by {apart:.1e} at most in a "
            f"sampled token's probability; boot and training take {seconds}."
        )
        yield ""


def _mean(found: Mapping[str, float]) -> str:
    return f"{found['mean']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def _difference(found: Figures) -> str:
    same = found["equivalence"]
    if same is None:
        return "" if found["estimate"] is None else f"{found['estimate']:+.3f}"
    return f"{found['estimate']:+.3f} ({same['low']:+.3f} to {same['high']:+.3f})"


def _verdict(found: Figures) -> str:
    return "equivalent" if found["verdict"] == "equivalent" else f"**{found['verdict']}**"


def server_capacity(figures: Figures) -> Iterator[str]:
    """Yield how many calls one server process carries, and what it adds to a call."""
    calls, p50, p99 = figures["calls per second"], figures["p50 ms"], figures["p99 ms"]
    growth = figures["growth"]["CPU of turn 64 over turn 1"]
    tools = figures["slow tools"]["steps per hour over the tools' own bound"]
    tail = figures["p99 over p50"]
    yield (
        "One server process, durable capture included, beside a bare FastAPI route that returns the same bytes: 1,000 "
        f"open episodes, an engine that answers at once, both measured in turns on {figures['machine']['cpus']} cores "
        "shared with the load."
    )
    yield from table(("", ""), [
        ("calls per second, as a share of the bare route's", f"{figures['ratio of calls per second']:.2f} "
         f"({calls['server']:,} of {calls['bare']:,}); from four client processes "
         f"{figures['calls per second, 4 client processes']:,}"),
        ("latency added at half of that load (p50)", f"{figures['added p50 ms']:.1f} ms ({p50['server']:.1f} against "
                                                     f"{p50['bare']:.1f})"),
        ("p99 over p50 there", f"{tail:.0f} ({p99['server']:.0f} ms); the goal of 8 is "
                               f"{'kept' if tail <= 8 else '**missed**'}"),
        ("steps per hour of agents whose tools take four times the server's time limit for silent agents, as a share "
         "of what the tools' own time allows", f"{tools:.2f}"),
        ("memory of an open episode of 8 turns", f"{figures['memory']['KiB per open episode, 8 turns']:.0f} KiB"),
        ("CPU of a call in turn 64 over one in turn 1, equal new tokens", f"{growth:.1f}: the history's JSON is read, "
         "compared with what was served, and its ids copied; it is not tokenised again"),
    ])  # fmt: skip


def soak(figures: Figures) -> Iterator[str]:
    """Yield what became of every episode while server and clients were killed."""
    became = figures["served (clients' logs), by what became of it (server's store)"]
    trained, waiting = became["trained"]["episodes"], became["open: waits for its batch"]["episodes"]
    given_up = sum(
        found["episodes"] for name, found in became.items()
        if name.split(":")[0] in ("aborted", "fenced", "dropped")
    )  # fmt: skip
    must = figures["must be zero"]
    yield (
        f"Killed at random for {figures['minutes']:g} minutes, server and clients, then the clients' own books laid "
        f"beside the server's: {figures['server killed']} kills of the server and {figures['clients killed']} of "
        f"clients, {figures['steps']} steps; {trained:,} acknowledged episodes trained once each, {given_up:,} given "
        f"up with their reasons, {waiting:,} waiting, {must['acknowledged ends lost'] or 'none'} lost, "
        f"{must['episodes trained twice'] or 'none'} trained twice; {figures['seconds to roll again']['median']:.1f} s "
        "(median) from a kill to a server that serves again."
    )


def scale(figures: Figures) -> Iterator[str]:
    """Yield what an episode sends and stores, and what a parameter weighs."""
    formula = figures["formula over measured"]
    yield (
        "Bytes of HTTP between real clients and a server process (engine without a model, real tokenizer, SQLite), "
        "counted by a relay; rows and bytes of its store; safetensors files of a tiny model. Agents ask in messages of "
        "240 characters and are answered as much (48 tokens). Formulas with these constants, from 1 and 8 turns, give "
        f"{formula['up']:.3f} of the bytes up, {formula['down']:.3f} of those down and {formula['stored']:.3f} of "
        "those stored at 32 turns; what they come to for 1,000 clients, 8 servers and a model of 32B: "
        "[scale.md](scale.md)."
    )
    for head, rows in scale_forecast.measured(figures):
        yield from table(head, rows)


def sandbox(figures: Figures) -> Iterator[str]:
    """Yield what a container costs a client, beside a plain process."""
    start, calls, many = figures["start"]["seconds"], figures["calls"], figures["50 at once"]
    alone, memory = calls["1 connections"]["p50 ms"], many["container"]["MiB each"]
    shim = memory["host, the engine's shim"]
    shares = [found["ratio of calls per second"]["container"] for found in calls.values()]
    counts = [name.split()[0] for name in calls]
    yield (
        "Clients in containers beside plain processes, one swarm server with an engine that answers at once, in turns "
        f"on {figures['machine']['cpus']} cores."
    )
    yield from table(("", "process", "container"), [
        ("launch to the first model call (image there, median of 15)", f"{start['process']['to the first call']:.2f} s",
         f"{start['container']['to the first call']:.2f} s, {start['container']['imports']:.1f} s of it the client's "
         "imports"),
        ("latency of a call alone (p50)", f"{alone['process']:.2f} ms", f"{alone['container']:.2f} ms"),
        (f"calls per second at {', '.join(counts[:-1])} and {counts[-1]} connections, as a share of the process's", "1",
         ", ".join(f"{share:.2f}" for share in shares)),
        ("50 at once: started per second", *(f"{found['clients a second']:.1f}" for found in many.values())),
        ("50 at once: memory of each", f"{many['process']['MiB each']['host, processes in it']:.0f} MiB",
         f"{memory['cgroup, without page cache']:.0f} MiB and {shim:.1f} MiB of "
         "the engine"),
    ])  # fmt: skip


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


def powers(figures: Figures) -> Iterator[str]:
    """Yield a row for each proof that was run; what misses its goal is said so."""
    proofs = figures["proofs"]
    written = {"teams": _teams, "cocktail": _cocktail, "faults": _faults, "reload": _reload}
    yield (
        "Each judged by the statistics that studies use (`benchmarks/powers/` says how, and what was held equal); one "
        "proof alone: `python benchmarks/powers.py --only NAME`."
    )
    rows = [(name, told(proofs[name]), _goals(proofs[name])) for name, told in written.items() if name in proofs]
    yield from table(("", "measured", "goal"), rows)
    if missing := [name for name in written if name not in proofs]:
        yield f"Not measured yet: {', '.join(missing)}."


def _goals(proof: Figures) -> str:
    missed = [goal for goal, met in proof["goals"].items() if not met]
    return f"**missed**: {'; '.join(missed)}" if missed else "kept"


def _teams(proof: Figures) -> str:
    joint = [run["after"] for run in proof["runs"] if run["arm"] == "joint"]
    frozen = " and ".join(
        f"{found['difference']:+.2f} ({found['low']:.2f} to {found['high']:.2f}) over the {arm}"
        for arm, found in proof["comparisons"].items()
    )
    shuffled = proof["shuffled hints"]
    chance = f"{shuffled['low']:.2f} to {shuffled['high']:.2f}; chance is {shuffled['chance']:.2f}"
    return (
        f"speaker and listener that learn together solve {fmean(joint):.2f} of hidden tasks after {proof['steps']} "
        f"steps, {proof['seeds']} seeds: {frozen}, 95 % intervals; with the hints of other tasks "
        f"{shuffled['mean']:.2f} ({chance}); a frozen member's weights stay bit-equal"
    )


def _cocktail(proof: Figures) -> str:
    told = "; ".join(
        f"{task} {fmean(found['single']['success']):.2f} alone (from {found['before']:.2f}), "
        f"{found['estimate']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f}) together: {found['verdict']}"
        for task, found in proof["tasks"].items()
    )
    return (
        f"one model on three streams against three models of one each, at equal tokens, {len(proof['seeds'])} seeds, "
        f"margin {proof['margin']}: {told}"
    )


def _faults(proof: Figures) -> str:
    found = proof["verdict"]
    ends = " to ".join(f"{found[end]:+.3f}" for end in ("low", "high"))
    return (
        f"{proof['kills']} clients killed, one every {proof['kill every s']:g} s, in {proof['seeds']} trainings of "
        f"{proof['steps']} steps: reward {found['disturbed']:.3f}, undisturbed {found['undisturbed']:.3f} (90 % "
        f"interval of the difference {ends}; training alone gains {proof['gain']:+.3f}); "
        f"{len(proof['balance faults']) or 'no'} faults in the balance sheets"
    )


def _reload(proof: Figures) -> str:
    found, by_hand = proof["reload"], proof["by hand"]
    return (
        f"from the save of an agent's code to its first play {found['median s']:.1f} s (median of {proof['saves']}, "
        f"slowest {found['most s']:.1f} s); by hand {by_hand['median s']:.1f} s"
    )
