"""The sections on the backend `verl`: what its steps take beside `local`'s, and whether it learns the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rig.cluster.at_scale import GOAL, JUDGED, STEPS
from rig.cluster.parts import ALL, ARITHMETIC

from performance.results import Figures
from performance.writing import percent, table

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
