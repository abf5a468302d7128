"""The sections on trainings and on verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from performance.headlines import real_row, row_with, suite_figure, verdict_row
from performance.writing import Figures, counted, percent, rate, share, signed, table

SHOWN = (("tiny", "ragged 8"), ("tiny", "ragged 128"), ("1M", "ragged 128"), ("5M", "ragged 8"), ("5M", "ragged 128"),
         ("5M", "8 turns"))  # fmt: skip
LOADS = {
    "ragged 8": "8 at once, uneven lengths",
    "ragged 128": "128 at once, uneven lengths",
    "8 turns": "conversations of 8 turns",
}
SIZES = {"tiny": "0.1M parameters", "1M": "1M", "5M": "5M"}
OTHERS = {
    "static": "a static batch by hand",
    "padded": "padded `generate`",
    "continuous": "transformers' continuous batching",
    "vllm": "vLLM on a CPU",
}


def generate(figures: Figures) -> Iterator[str]:
    """Yield how fast the local engine generates, beside others."""
    yield (
        "The local engine beside others on one core, same model, same tokens, in turns: sampled tokens per second, and "
        "how many times each other one's (medians of both, the second turn by turn). `--vllm-python PATH` measures "
        "vLLM, too."
    )
    rows = []
    for model, load in SHOWN:
        row = row_with(figures["rows"], model=model, load=load, threads=1)
        times = [f"{row['ours over'][other]:.2f}" if other in row["ours over"] else "" for other in OTHERS]
        rows.append((SIZES[model], LOADS[load], f"{row['tokens per second']['ours']:,}", *times))
    yield from table(("model", "requests", "tokens/s", *OTHERS.values()), rows)


def train_step(figures: Figures) -> Iterator[str]:
    """Yield how much faster an update is on merged calls."""
    layouts = figures["layouts"]
    yield (
        f"An update on merged calls beside one row per call. Lengths are a {figures['scale']}th of real "
        "conversations', the whole update is timed, and both compute logits only where they are trained. The tree is "
        "of 8 episodes."
    )
    rows = []
    for workload in dict.fromkeys(row["workload"] for row in layouts):
        found = {row["layout"]: row for row in layouts if row["workload"] == workload}
        cells = [
            f"{found[layout][ratio]:.1f}" if layout in found else ""
            for layout in ("linear", "tree")
            for ratio in ("token ratio", "wall ratio")
        ]
        rows.append((workload.replace("T = ", "turns: "), *cells))
    yield from table(("conversation", "fewer ids, linear", "times as fast", "fewer ids, tree", "times as fast"), rows)
    kept = [row["wall/token"] for row in layouts if row["layout"] == "tree" and row["thought"]]
    yield (
        "A tree saves less time than ids where its ids are deep, for their attention is long: "
        f"{min(kept):.2f} to {max(kept):.2f} of the ratio where thinking is dropped; the goal is 0.8."
    )


def gpu(figures: Figures) -> Iterator[str]:
    """Yield how much faster an update on merged calls is on a GPU."""
    yield (
        f"The same on a GPU ({figures['gpu']}, torch {figures['torch']}): half a billion random weights in "
        f"{figures['dtype']}, conversations in full length, whole updates."
    )
    rows = []
    for workload in dict.fromkeys(row["workload"] for row in figures["updates"]):
        found = {row["layout"]: row for row in figures["updates"] if row["workload"] == workload}
        cells = [f"{found[layout]['seconds']:g}" for layout in ("unmerged", "linear")]
        times = [f"{found['linear'][ratio]:.1f}" for ratio in ("token ratio", "wall ratio")]
        rows.append((workload.replace("T = ", "turns: "), *cells, *times))
    yield from table(("conversation", "unmerged, s", "linear, s", "fewer ids, linear", "times as fast"), rows)
    yield "An id of a tree took about twice as long there as one of a row: trees are for a CPU, a GPU trains rows."
    for row in figures.get("generation", ()):
        ours, others = row["tokens per second"]["ours"], ("continuous", "padded")
        continuous, padded = (ours / row["tokens per second"][name] for name in others)
        yield (
            f"Generation, {row['requests']} requests at once: {ours:,} tokens per second, {continuous:.1f} times "
            f"transformers' continuous batching and {padded:.1f} times its padded `generate`; log-probs are at most "
            f"{row['off a plain forward']['ours']:g} off a plain forward's."
        )
    if note := figures.get("note"):
        yield f"Of these figures: {note}."


def merge_ratio(figures: Figures) -> Iterator[str]:
    """Yield how many ids merging saves."""
    row = row_with(figures["workloads"], kind="group", T=20, n=8)
    yield (
        "How many ids merging saves depends on the workload alone; the benchmark plays it and finds the closed form of "
        f"[merging.md](merging.md#how-much-merging-saves) exactly: {row['T']} turns of {row['a']} sampled and "
        f"{row['o']} observed tokens behind a prompt of {row['P']:,} are {row['unmerged/linear']:.1f} times fewer ids "
        f"in one row than in one row per call, and {row['unmerged/tree']:.1f} times fewer as a packed tree of "
        f"{row['n']} episodes."
    )


def overlap(figures: Figures) -> Iterator[str]:
    """Yield what rollout beside learning brings."""
    apart, beside = (figures["arms"][f"max_staleness {bound}"] for bound in (0, 1))
    steps = [arm["steps_per_hour"]["mean"] for arm in (apart, beside)]
    idle = [arm["learner_idle"]["mean"] for arm in (apart, beside)]
    yield (
        f"Rollout beside learning, with agents that wait for a (simulated) tool, {figures['seeds']} seeds: "
        f"`max_staleness` 1 makes {median(figures['ratio of steps an hour']):.1f} times the steps of 0 in an hour "
        f"({steps[1]:,.0f} against {steps[0]:,.0f}), with the learner idle for {percent(idle[1])} instead of "
        f"{percent(idle[0])} of the time; reward over all steps {signed(figures['difference within seeds']['reward'])}."
    )


def against_trl(figures: Figures) -> Iterator[str]:
    """Yield how fast whole GRPO steps are beside TRL's."""
    yield (
        "Whole GRPO steps beside TRL's GRPOTrainer with the same tiny model, batch and sampling, one thread. Steps per "
        "minute, as a share of TRL's (goal: 2), and the difference in reward per step:"
    )
    rows = [
        (f"`{environment}`, {name}", f"{found[arm][TIMES]:.2f}", signed(found[arm]["reward per step less TRL's"]))
        for environment, found in figures["environments"].items()
        for arm, name in (
            ("ajet, no server", "engine, call trees and learner in one process"),
            ("ajet", "the same behind a swarm server, durable store and HTTP"),
        )
    ]
    yield from table(("", "steps/min over TRL's", "reward per step less TRL's"), rows)
    missed = [name for name, found in figures["environments"].items() if _best(found) < 2]
    if missed:
        yield (
            "With a model this small the server costs more than the model: about half a millisecond a request, three "
            f"requests and more an episode. The goal of twice TRL's steps is **missed** in {' and '.join(missed)}."
        )


TIMES = "times TRL's steps per minute"


def _best(found: Mapping[str, Mapping[str, float]]) -> float:
    return max(arm[TIMES] for arm in found.values() if TIMES in arm)


def real_model(figures: Figures) -> Iterator[str]:
    """Yield what a step of a pretrained model takes."""
    yield (
        f"A step of {figures['model']}, without a server: 64 episodes, 8 tasks of 8 and at most 8 tokens each behind "
        "six examples as turns, then GRPO's update on them. Medians in seconds, variants in turns."
    )
    rows = [
        (PRETRAINED[name], threads, *(f"{row[part]:.1f}" for part in ("rollout", "update")), f"{row['fed']:,.0f}")
        for row in figures["rows"]
        if row["code"] == "here"
        for name, _, threads in [row["variant"].partition("-")]
    ]
    yield from table(("trained", "threads", "rollout, s", "update, s", "ids fed in the update"), rows)


PRETRAINED = {"fp32": "all weights, fp32", "bf16": "all weights, bfloat16", "lora": "LoRA of rank 16, fp32"}


MIXTURE = "mixture: "


def simlab(figures: Figures) -> Iterator[str]:
    """Yield what simulated studies with a planted truth came to."""
    flights = sum(suite["flights"] for suite in figures["suites"].values())
    yield (
        f"How often the system is wrong, over {flights:,} simulated studies with planted truth or over recorded real "
        "trainings. *Ugly* means that each study draws its own mixture: trainings that collapse, arms of unequal "
        "noise, heavy tails, runs that go with or against each other, a noise bank that is wrong by a factor of 2. All "
        "figures, and the bars that are missed: [calibration.md](calibration.md)."
    )
    yield from table(("", "measured", "bar"), [*_claims(figures), *_attacks(figures), *_searches(figures)])
    yield "The search was chosen after it was seen on these recorded trainings: for it they are no held-out test."


def _claims(figures: Figures) -> Iterator[tuple[str, str, str]]:
    def figure(suite: str, name: str) -> Mapping[str, Any]:
        return suite_figure(figures, suite, name)

    promised = row_with(figures["suites"]["effects"]["rows"], cell="mixture")["power at the promised effect"]
    power = figure("effects", MIXTURE + "power")
    ends = [power[end] for end in ("value", "low", "high")]
    yield (
        "ugly studies of fields that do nothing, with a false claim",
        share(figure("null", MIXTURE + "studies with a false claim")), "5 %",
    )  # fmt: skip
    yield "ugly studies of an effect: wrong sign", counted(figure("effects", MIXTURE + "sign errors")), "1 %"
    yield (
        "called equivalent where the difference is the margin",
        share(figure("effects", MIXTURE + "called equivalent at the margin")), "5 %",
    )  # fmt: skip
    yield "ugly studies of an effect as large as the design promised to see: found", promised, "-"
    yield (
        "ugly studies of an effect as large as the seeds can see in the noise that was really met: found",
        rate(ends),
        "75 %",
    )
    yield "clean noise: wrong sign", counted(figure("effects", "sign errors")), "1 %"
    yield (
        "clean noise: equivalence claimed at the margin",
        share(figure("equivalence", "equivalent at the margin")),
        "5 %",
    )


def _attacks(figures: Figures) -> Iterator[tuple[str, str, str]]:
    named = suite_figure(figures, "baits", "confounds named")
    forged = suite_figure(figures, "traps", "traps that became a result")
    killed = suite_figure(figures, "faults", "same verdicts after a kill")
    yield "confounds as baits: named, and nothing claimed", counted(named), "all"
    yield "forged, edited, deleted or demanded results that became a verdict", counted(forged), "none"
    yield "`kill -9` at every event: same verdicts, no run twice, none left over", counted(killed), "all"


def _searches(figures: Figures) -> Iterator[tuple[str, str, str]]:
    def regret(prefix: str, *others: str) -> str:
        values = {
            name: suite_figure(figures, "regret", f"{prefix}regret, {name}")["value"] for name in ("ajet", *others)
        }
        return f"{values.pop('ajet'):.2f}; " + ", ".join(f"{name} {value:.2f}" for name, value in values.items())

    def false(name: str) -> Mapping[str, Any]:
        return suite_figure(figures, "regret", f"false among claims, {name}")

    yield (
        "regret of a search at 40 whole runs, planted worlds",
        regret("", "random", "tpe", "asha", "greedy"),
        "below all",
    )
    others = ", ".join(f"{name} {percent(false(name)['value'])}" for name in ("greedy", "single seed"))
    yield "false among its claims", f"{counted(false('ajet'))}; {others}", "far below"
    for runs in (40, 20):
        measured = regret(f"recorded trainings, {runs} runs: ", "random", "tpe", "greedy")
        yield f"regret on recorded real trainings, {runs} runs", measured, "below all"


def verdicts(figures: Figures) -> Iterator[str]:
    """Yield what the rules of the verdict alone get wrong, before they were changed and after."""
    studies = verdict_row(figures, "clean", planted=False)["studies"]
    yield (
        f"The verdict alone, {studies:,} simulated studies a figure, each of two arms with five seeds; *before*: "
        "the same studies judged by the earlier rules, which older designs are locked with. Bars: false "
        "claims in at most 5 %, power of at least 75 %."
    )
    rows = []
    for name, cell, planted, field, bar in (
        ("false claims, clean noise", "clean", False, "false", 0.05),
        ("false claims, noise of one arm five times the other's", "noise 1:5", False, "false", 0.05),
        ("false claims, runs of one seed go against each other", "correlation -0.6", False, "false", 0.05),
        ("false claims, mixture", "mixture", False, "false", 0.05),
        ("power at the promised effect, clean noise", "clean", True, "found", 0.75),
        ("power at the effect promised for clean noise, mixture", "mixture", True, "found", 0.75),
    ):
        now = verdict_row(figures, cell, planted=planted)[field]
        before = verdict_row(figures, cell, planted=planted, rules="before")[field]
        kept = now[0] >= bar if planted else now[0] <= bar
        rows.append((name, rate(now), percent(before[0], 1), "kept" if kept else "**missed**"))
    yield from table(("", "measured", "before", "bar"), rows)


def metric_verdicts(figures: Figures) -> Iterator[str]:
    """Yield what verdicts on other metrics than success get wrong."""
    yield (
        "The verdict alone, on metrics that are read off simulated hidden curves whose truth is planted in the "
        "metric's own unit; five seeds. Bars: false claims in at most 5 %, power of at least 75 % with clean noise. "
        "An interval is off where it holds the truth 2 % more or less often than it states: those of rates, on exact "
        "limits, mostly more. All cells, and the bars that are missed: [calibration.md](calibration.md)."
    )
    rows = []
    for metric, clean in (
        ("episodes", "clean"),
        ("area", "clean"),
        ("area:0.7", "clean"),
        ("collapse", "50 % in both"),
    ):
        found = figures["metrics"][metric]["rows"]
        power = "none collapse" if metric == "collapse" else "clean"
        rates = (
            row_with(found, cell=cell, n=5, planted=planted)["figures"][name]
            for cell, planted, name in ((clean, False, "false"), ("mixture", False, "false"), (power, True, "found"))
        )
        missed = figures["metrics"][metric]["missed"]
        off = sum(": intervals:" in words for words in missed)
        rows.append((f"`{metric}`", *map(rate, rates), str(len(missed) - off), str(off)))
    heads = ("metric", "false claims, equal arms", "the same, mixture", "power", "bars missed", "intervals off")
    yield from table(heads, rows)


def inquiries(figures: Figures) -> Iterator[str]:
    """Yield what inquiries of several rounds claim falsely, with and without ledgers of error."""
    known = figures["rows"]
    yield (
        f"Inquiries of twelve rounds under two error ledgers, {max(row['inquiries'] for row in known):,} of each kind, "
        "judged by the shipped verdict; the planner chooses each question on all that came before. The upper end of an "
        "interval is to lie at 6 % or below. All kinds: [calibration.md](calibration.md)."
    )
    rows = [
        (
            f"{row['truth']}, asked by: {row['planner']}" + ("" if row["noise"] == "normal" else f", {row['noise']}"),
            "two ledgers" if row["ledgers"] else "5 % each round",
            *(rate(row[name]) for name in ("false_difference", "false_equivalence")),
        )
        for row in known
    ]
    yield from table(("what is true", "level", "any false difference", "any false equivalence"), rows)


def real_noise(figures: Figures) -> Iterator[str]:
    """Yield what verdicts get wrong on the noise of real trainings."""
    studies = real_row(figures, "game", planted=False)["studies"]
    yield (
        f"Residuals of 1,800 real runs (Dopamine's Atari baselines) drawn again into {studies:,} studies a row, five "
        "runs in each arm. Drawn from the *agent*, arms differ in noise as they really do; *normal five* is the "
        "yardstick for what five values that are drawn again do by themselves."
    )
    rows = [
        (way, *(rate(real_row(figures, way, planted=planted)[field]) for planted, field in
                ((False, "false_claim"), (True, "found"), (True, "wrong_sign"))))
        for way in ("game", "agent", "normal five")
    ]  # fmt: skip
    yield from table(("drawn from the", "false claims", "power", "wrong sign"), rows)
