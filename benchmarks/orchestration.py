"""What does orchestration cost: a controller's tick, Prefect, the list of studies, and memory over many days?

    python benchmarks/orchestration.py            everything: about 12 minutes of one core
    python benchmarks/orchestration.py --quick    up to 100 runs, 20 studies and one simulated day
    python benchmarks/orchestration.py --json     also writes benchmarks/results/orchestration.json
    python benchmarks/orchestration.py --check    exit code 1 unless the goals below are met

*Ticks*: studies of 10 to 10,000 runs, half of them done, with up to 100,000 events, written as a controller writes them
and driven by the shipped controller; attempts are simulated, so that only the controller's own time is measured.
All seconds are those of a core: what else the machine does counts for nothing.
*Prefect*: such studies shown in a real Prefect server of their own: to catch up with all runs, to look in vain, and for
an attempt that ends and the next that begins, in the controller's process and in the server's.
*List*: an installation of 1,000 concluded studies, each with its files; `ajet study list` as a whole command, where
nothing was kept of an earlier list, and where something was.
*Days*: a simulated study of ten days with a screen, a confirmation sized by a pilot and a replication, looked at every
ten simulated minutes, and the memory of the process day by day.

Goals: ten times the runs take at most 15 times as long a tick; Prefect takes less than a quarter of a second an
attempt; the list of 1,000 studies takes less than a second, once they were read; a controller grows by less than 20 MiB
in the nine days after the first.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from rig.frame import circumstances, concluded, parser
from rig.studies_at_scale import ManyStudies, Pattern, shown, ticked
from simlab.sim_run import Desk, Flight, fly, scratch
from simlab.worlds import Hill, MainEffect, Planted, Scalar

NAME = "orchestration"
SIZES = ((10, 100), (100, 1_000), (1_000, 10_000), (10_000, 100_000))
"""Runs and events."""
SHOWN = ((100, 1_000), (1_000, 10_000))
"""The same, of studies that Prefect shows."""
STUDIES = 1_000
LOOK_S = 600.0
MOST_GROWTH = 15.0
"""Times that a tick may take longer for ten times the runs."""
MOST_LIST_S = 1.0
MOST_SHOWN_S = 0.25
MOST_MIB = 20.0


def main() -> int:
    """Measure; return the exit code."""
    arguments = parser(__doc__, quick="small sizes").parse_args()
    days = memory(1.0 if arguments.quick else DAYS)  # first: what is measured after it would be in its memory
    told("days, MiB", [days])
    with scratch() as folder:
        pattern = Pattern.flown(folder / "pattern")
        ticks = [ticked(folder, pattern, *size) for size in (SIZES[:2] if arguments.quick else SIZES)]
        told("ticks, s", ticks)
        prefect = [shown(folder, pattern, *size) for size in (SHOWN[:1] if arguments.quick else SHOWN)]
        told("Prefect, s", prefect)
        with tempfile.TemporaryDirectory(prefix="ajet-orchestration-") as disk:
            count = 20 if arguments.quick else STUDIES
            many = listed(ManyStudies(Path(disk), pattern, folder / "pattern", count))
        told("list, s", [many])
    figures = {"ticks": ticks, "prefect": prefect, "list": many, "days": days, **circumstances(arguments)}
    return concluded(NAME, figures, missed(figures), arguments)


def listed(many: ManyStudies) -> dict[str, Any]:
    """Return the seconds that the list takes, for the first time and afterwards."""
    first, first_s = many.listed()
    assert first.count("\n") == many.count + 1
    _, again_s = many.listed()
    _, json_s = many.listed("--json")
    _, bare_s = many.listed("--help")
    return {
        "studies": many.count, "first": first_s, "again": again_s, "again, as JSON": json_s,
        "the command alone": bare_s,
    }  # fmt: skip


DAYS, DAY_S = 10.0, 24 * 3600.0
BUDGET_S = 30 * DAY_S
TOPIC = (
    "What are the three best values of learning rate, group size, number of epochs and temperature on the guessing "
    "game? Replicate it on arith."
)
KNOBS: Mapping[str, tuple[Scalar, ...]] = {
    "learning_rate": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "group_size": (4, 8, 16, 32),
    "epochs": (1, 2, 4),
    "temperature": (0.7, 1.0, 1.3),
}
BASE: Mapping[str, Scalar] = {"learning_rate": 1e-3, "group_size": 8, "epochs": 1, "temperature": 1.0}
EFFECTS = (Hill("learning_rate", 3e-3, 0.02), MainEffect("epochs", {2: 0.04, 4: 0.05}))


def memory(days: float) -> dict[str, Any]:
    """Return the memory of a process that drives a study of some days, after its first tenth and at its end."""
    seen: list[float] = []
    process = psutil.Process()

    def look(desk: Desk) -> None:
        state = desk.state
        if state.concluded_reason is None and state.worked_s >= DAY_S * (len(seen) + 1) * days / DAYS:
            seen.append(process.memory_info().rss / 2**20)

    world = Planted(
        seed=7, knobs=KNOBS, base=BASE, effects=EFFECTS, seed_sd=0.05, steps=8, seconds_per_step=1380.0 * days / DAYS,
        startup_s=0.0,
    )  # fmt: skip
    asks = {"effect": 0.04, "power": 0.8, "looks": 2, "episodes": 512}
    flight = Flight(
        "haul", TOPIC, world, budget_s=BUDGET_S, base=dict(BASE), asks=asks, report=True, hand=look, look_s=LOOK_S
    )
    end = fly(flight)
    assert end.refused is None, end.refused
    return {
        "days": end.state.worked_s / DAY_S, "runs": len(end.state.runs), "events": end.state.event_count,
        "MiB by tenths": seen, "grown": max(seen) - seen[0],
        "MiB with the report": process.memory_info().rss / 2**20,
    }  # fmt: skip


def missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the goals that were missed, in words."""
    found = []
    for smaller, larger in zip(figures["ticks"], figures["ticks"][1:], strict=False):
        for what in ("idle tick", "attempt ended"):
            if larger[what] > MOST_GROWTH * smaller[what]:
                found.append(f"{what}: {larger[what] / smaller[what]:.0f} times as long for {larger['runs']:,} runs")
    for row in figures["prefect"]:
        if (attempt_s := row["an attempt, controller"] + row["an attempt, server"]) >= MOST_SHOWN_S:
            found.append(f"Prefect takes {attempt_s:.2f} s an attempt of {row['runs']:,}")
    if (listed_s := figures["list"]["again"]) >= MOST_LIST_S:
        found.append(f"the list takes {listed_s:.2f} s")
    if figures["days"]["grown"] >= MOST_MIB:
        found.append(f"the controller grew by {figures['days']['grown']:.0f} MiB")
    return found


def told(what: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of figures."""
    for row in rows:
        parts = (
            f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print(f"{what}: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
