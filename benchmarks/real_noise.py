"""How often are verdicts wrong on the noise of real trainings?

    python benchmarks/real_noise.py [--quick] [--json] [--check]

Residuals of 1,800 real runs (Dopamine's Atari baselines: 6 agents, 60 games, 5 seeds each) are drawn again into studies
without a difference and studies with the effect that so many seeds promise to see, and judged by the shipped
`studies.verdicts.rules.judge` under the designs of today (`rig.simulated_verdicts`). `rig.real_verdicts` says how.

What it can say: whether the verdicts hold for noise whose spread differs from agent to agent and from game to game as
it really does. What it cannot: five values know no tail beyond themselves, so that what comes once in twenty runs is in
few games at all; what is drawn is discrete (with three seeds one arm in 25 has no spread, and one run of the five that
is far from the others is missing from half of all samples of three), which alone makes false claims: the rows `normal
five` show how many; and the scores are returns of games, not shares of solved tasks.

Goals: false claims in at most 5 %, the wrong sign in at most 1 %, equivalent at the margin in at most
5 %. Of power there is none: the promise goes by the mean noise of a game, and agents differ in theirs.
Full size: some 40 seconds on two cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from rig.frame import circumstances, concluded, parser, tell
from rig.real_verdicts import Way, resampled
from rig.simulated_verdicts import ALPHA, Procedure, promised
from simlab.scores import Bar, counted, work

STUDIES, QUICK = 3000, 60
SEEDS = (3, 5, 8)
YARDSTICK: Way = "normal five"
WAYS: tuple[Way, ...] = ("agent", "game", YARDSTICK)
GOALS = {
    False: {"false_claim": Bar("at most", ALPHA)},
    True: {"wrong_sign": Bar("at most", 0.01), "equivalent": Bar("at most", ALPHA)},
}


def main() -> int:
    """Draw, judge, print, and write what the options ask."""
    options = parser(__doc__, quick=f"{QUICK} studies a row instead of {STUDIES}", parallel=True).parse_args()
    started = time.monotonic()
    studies = QUICK if options.quick else STUDIES
    rows = work("real_noise", partial(_row, studies), [*product(WAYS, SEEDS, (False, True))],
                workers=options.workers, tell=tell)  # fmt: skip
    show(rows)
    seconds = round(time.monotonic() - started, 1)
    print(f"\n{studies} studies a row, {seconds:.0f} s")
    figures = {"circumstances": circumstances(options), "seconds": seconds, "resampled": rows}
    return concluded("real_noise", figures, missed(rows), options)


def _row(studies: int, row: tuple[Way, int, bool]) -> dict[str, Any]:
    way, seeds, planted = row
    return resampled(Procedure("after", seeds, margin=promised(seeds)), way, studies, planted=planted)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what was found."""
    print(f"{'drawn from':12s} {'seeds':>5s} {'false claims':>22s} {'power':>8s} {'sign error':>11s} "
          f"{'equivalent at the margin':>25s}")  # fmt: skip
    for null, planted in zip(rows[::2], rows[1::2], strict=True):
        rate, low, high = null["false_claim"]
        power, wrong, same = (planted[name][0] for name in ("found", "wrong_sign", "equivalent"))
        print(f"{null['way']:12s} {null['n']:5d} {rate:8.1%} [{low:.1%}, {high:.1%}] "
              f"{power:8.1%} {wrong:11.2%} {same:25.1%}")  # fmt: skip


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which goals are missed, in words."""
    figures = [
        counted(f"drawn from the {row['way']}, {row['n']} seeds: {name}", round(row[name][0] * row["studies"]),
                row["studies"], bar)
        for row in rows if row["way"] != YARDSTICK
        for name, bar in GOALS[row["planted"]].items()
    ]  # fmt: skip
    return [figure.words() for figure in figures if figure.kept is False]


if __name__ == "__main__":
    sys.exit(main())
