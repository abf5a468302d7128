"""The section on what the swarm's powers were shown to hold: teams, cocktails, faults, live code."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from performance.results import Figures
from performance.writing import table


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
