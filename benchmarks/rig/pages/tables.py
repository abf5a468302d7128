"""The tables of `docs/calibration.md` that come from the other two benchmarks of verdicts, as far as they were run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rig.frame import RESULTS

VERDICTS = """
## The rules alone, before and after

`python benchmarks/verdicts.py --json` judges simulated studies by the shipped verdict alone, which is quick enough
for thousands of each kind: {studies} studies, the same kinds of ugliness as above. *Before* is what designs locked
until these rules: one variance that the noise bank has a part in, seeds shared by the arms, a first look at two
seeds, the mean of all trainings. *After* is what they lock now: Welch's test (of more than two arms one variance of
all of them), a seed of its own for each run, a first look at three, the mean of the trainings that do not collapse
with the rate of collapse beside it. `paired` is locked where seeds are shared.

A claim counts as false by the truth that its verdict names. *Read of all*: how often it would be false if a reader
took it for one about all trainings. No test of a few seeds can mend that: five clean runs leave a rate of collapse of
up to 45 % open, and the headline says so. The promised effect is what so many seeds see with power 0.8 under clean
noise, times what the noise of the two arms is above that; it is the margin of equivalence. With collapses, power is
less than promised because fewer runs are left, and where fewer than three are left in an arm nothing is said of the
mean.
"""
REAL = """
## The noise of real trainings

`python benchmarks/real_noise.py --json` draws the residuals of 1,800 real runs again: Dopamine's Atari baselines
(Apache License 2.0), 6 agents on 60 games with 5 seeds each, as shares of each game's range. A residual is a run's
distance from the mean of its own five, made larger by sqrt(5/4) for that mean being theirs. Drawn from the *agent*,
each arm has the five residuals of one agent, so that arms differ in noise as they really do; drawn from the *game*,
both have the thirty of the game. The bank knows the mean noise of the game, and promised effect and margin follow
from it.

What this can say: whether verdicts hold where spreads differ as they really do. What it cannot: five values have no
tail beyond themselves, and what is drawn from them is discrete. A run of the five that is far from the other four is
missing from half of all samples of three and from a sixth of those of eight; what is left then looks quiet, and is not
where the truth was put. *Normal five* is the yardstick for that: five normal values of the same spread, drawn from in
the same way. What the rows of the agent have above those is real: cells in which one training of five is far from the
rest, as after a collapse that nobody recorded. Nothing is known of collapses here, so that no run is left out.
"""


def verdict_tables() -> Iterator[str]:
    """Yield the section on the rules alone; nothing where they were not measured."""
    if (figures := figures_of("verdicts")) is None:
        return
    rows = figures["rows"]
    yield VERDICTS.format(studies=f"{sum(row['studies'] for row in rows):,}")
    for arms, n in sorted({(row["arms"], row["n"]) for row in rows}):
        found = [row for row in rows if (row["arms"], row["n"]) == (arms, n)]
        yield f"\n**{arms} arms, {n} seeds each** ({_counts(found)} studies a row)\n"
        yield "| noise | rules | false claims | read of all | nulls called equivalent | power | sign errors | equivalent at the margin |"  # noqa: E501
        yield "|---|---|---|---|---|---|---|---|"
        for cell, rules in dict.fromkeys((row["cell"], row["rules"]) for row in found):
            yield _verdict_row(cell, rules, found)


def real_noise_tables() -> Iterator[str]:
    """Yield the section on real noise; nothing where it was not measured."""
    if (figures := figures_of("real_noise")) is None:
        return
    yield REAL
    rows = figures["resampled"]
    yield f"{_counts(rows)} studies a row.\n"
    yield "| drawn from the | seeds | rules | false claims | nulls called equivalent | power | sign errors | equivalent at the margin |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|"
    for null, planted in zip(rows[::2], rows[1::2], strict=True):
        rates = [
            null["false_claim"],
            null["equivalent"],
            *(planted[it] for it in ("found", "wrong_sign", "equivalent")),
        ]
        cells = [null["way"], str(null["n"]), null["rules"], *map(share_of, rates)]
        yield f"| {' | '.join(cells)} |"
    for found in figures["published"]:
        if found["rules"] == "after":
            yield (
                f"\nOf the {found['pairs']} real pairs of agents, as published, {found['claimed'][0]:.0%} are "
                f"claimed to differ. The difference of one run each has the other sign than that of the means of five "
                f"in {found['one_seed_contradicts']:.1%} of all choices of two runs, and in "
                f"{found['one_seed_contradicts_a_claim']:.1%} of those where a difference is claimed."
            )


def figures_of(name: str) -> Mapping[str, Any] | None:
    """Return what a benchmark wrote; None where it was not run."""
    path = RESULTS / f"{name}.json"
    value: Mapping[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return value


def _counts(rows: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(f"{count:,}" for count in sorted({row["studies"] for row in rows}))


def _verdict_row(cell: str, rules: str, rows: Sequence[Mapping[str, Any]]) -> str:
    null, planted = (
        next((row for row in rows if (row["cell"], row["rules"], row["planted"]) == (cell, rules, kind)), None)
        for kind in (False, True)
    )
    cells = [
        *(share_of(null[name] if null else None) for name in ("false", "false_of_all", "equivalent")),
        *(share_of(planted[name] if planted else None) for name in ("found", "wrong_sign", "falsely_equivalent")),
    ]
    return f"| {cell} | {rules} | {' | '.join(cells)} |"


def share_of(rate: Sequence[float] | None) -> str:
    """Return a share with its interval; nothing for none."""
    if rate is None:
        return ""
    value, low, high = (f"{100 * end:.1f}" for end in rate)
    return f"{value} % [{low}, {high}]"
