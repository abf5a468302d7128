"""Does a study end as if nobody had touched it, when whatever works on it is killed at random all the time?

    python benchmarks/kills.py                24 trainings, twice, sized for half an hour of kills on two quiet cores
    python benchmarks/kills.py --minutes 60   longer trainings, for about so long; below 20 minutes half as many
    python benchmarks/kills.py --quick        6 short trainings, sized for 3 minutes
    python benchmarks/kills.py --seed 7       other kills
    python benchmarks/kills.py --json         also writes benchmarks/results/kills.json
    python benchmarks/kills.py --check        exit code 1 unless the goals below are met

Two installations of their own, each with `ajet up --work` as a real process, Prefect's server and worker, real
trainings of the tiny model and process sandboxes. The first is handed a study by `ajet research --detach` and left in
peace. The second gets the same log up to the locked design, so that arms, seeds and runs are the same, as if its
controller had just died: its worker takes it up, and makes the model and all else anew. While it does, every few
seconds (random) one process gets SIGKILL: a maker of tiny models, an evaluator, a client, a swarm server, an attempt,
its shim, a controller, Prefect's worker, its server, or the supervisor, which the benchmark starts again as an init
system would. A kind that was not met yet comes first; after that kinds are drawn, and then one of the kind.

Killed as often as it can be without using up what the policy grants: a run's last try is spared (it has 3), a model is
killed in its making twice (it is tried 3 times), and a controller lives on where the four before it saw nothing happen.
What died in each start would never serve: so no kind is killed twice within twice the seconds that an installation took
to come up here, controllers and those that bring them back live as long on average, some of them hardly at all, and
while no controller lives one of worker, server and supervisor is killed at most. A run that is given up nevertheless is
a fault.

Goals, all exact: each study is concluded with a report, each run collected once, the budget not overdrawn and no more
charged to it than the time that passed, everything that is stored verifies, each server trained as many steps and
episodes as asked and none twice, no slot is held and no process left after `ajet up --stop`; the disturbed study has
the same runs and verdicts as the other; each kind was met.
A machine that others use makes all of it longer: the quick one took 15 minutes on two cores at a load of 12.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rig.frame import circumstances, concluded, parser
from rig.installations import Ending, Installation, Killer, differences, ending, left, victims

NAME = "kills"
LOOK_S = 0.2
QUICK_STEPS = 10
PAUSES_S = (5.0, 15.0)
"""Seconds between two kills, at the least and the most."""
QUICK_PAUSES_S = (1.0, 5.0)
RESTS = 2.0
"""Times as long as the undisturbed installation took to come up that a kind is left alone after a kill."""
LONG_MINUTES = 20.0
"""From here on an effect is looked for that takes 24 runs to see, before one that takes 12."""
MOST_TIMES = 8.0
"""A disturbed study that takes so many times as long as the other hangs."""
LEAST_LIMIT_S = 1800.0


def main() -> int:
    """Run both studies; return the exit code."""
    options = parser(__doc__, quick="6 short trainings, and kills in quick succession")
    options.add_argument("--minutes", type=float, default=30.0, help="about how long to disturb (default 30)")
    options.add_argument("--seed", type=int, default=0, help="of the kills (default 0)")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-kills-", ignore_cleanup_errors=True) as folder:
        figures = measured(Path(folder), arguments)
    print(table(figures))
    return concluded(NAME, {**figures, **circumstances(arguments)}, figures["missed"], arguments)


def measured(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a study in peace and again under kills; return the figures, with the goals that were missed in words."""
    with Installation(folder / "calm") as calm, Installation(folder / "disturbed") as disturbed:
        up_s = calm.come_up()
        began = time.monotonic()
        study = calm.handed(*asked(arguments))
        while not calm.is_over(study):
            time.sleep(1.0)
        calm_s = time.monotonic() - began
        peaceful = ended(calm, study)
        print(f"undisturbed: {calm_s:.0f} s", flush=True)
        before_s = disturbed.receive(study, calm.events(study), calm.home.study(study))
        pauses = QUICK_PAUSES_S if arguments.quick else PAUSES_S
        killer = Killer(random.Random(arguments.seed), pauses, RESTS * up_s)
        disturbed_s = killed(disturbed, study, killer, max(LEAST_LIMIT_S, MOST_TIMES * calm_s))
        hit = ended(disturbed, study)
    seconds = {"to come up": round(up_s, 1), "undisturbed": round(calm_s, 1), "disturbed": round(disturbed_s, 1)}
    faults = missed(peaceful, hit, killer)
    for which, end, took_s in (("undisturbed", peaceful, calm_s), ("disturbed", hit, before_s + disturbed_s)):
        if (charged := end.state.worked_s) > took_s:
            faults.append(f"{which}: {charged:.0f} s were charged for {took_s:.0f} s")
    account = {"seed": arguments.seed, "seconds": seconds, **told(hit, killer, disturbed.started)}
    return {**account, "verdicts": hit.verdicts, "missed": faults}


def asked(arguments: argparse.Namespace) -> list[str]:
    """Return the command of the study, which says how long it takes."""
    steps = QUICK_STEPS if arguments.quick else round(arguments.minutes * STEPS_A_MINUTE)
    if arguments.quick:
        size = ["--effect", "0.3", "--max-runs", "6", "--episodes", "64"]
    else:
        size = ["--effect", "0.03" if arguments.minutes >= LONG_MINUTES else "0.05"]
    return [
        "research", "--vary", "group_size=4,8" if arguments.quick else RATES, "--set", f"steps={steps}",
        "--env", "arith", "--looks", "1", "--budget", "6h", *size,
    ]  # fmt: skip


RATES = "learning_rate=0.0001,0.001"
"""An effect beyond doubt: with one at a margin two studies left in peace have different verdicts too, as none of their
runs are identical."""
STEPS_A_MINUTE = 6
"""Training steps of each of 24 runs, two at once, for which a disturbed study is reckoned to take a minute."""


def killed(installation: Installation, study: str, killer: Killer, limit_s: float) -> float:
    """Have the worker take a study up, and kill until it is over; return the seconds that it took."""
    began = time.monotonic()
    while not installation.is_over(study) and (now := time.monotonic() - began) < limit_s:
        installation.keep_up()
        victim = killer.look(now, lambda: list(victims(installation.home.path)), installation.state(study))
        if victim is not None:
            print(f"{now:6.0f} s  {victim.kind} {victim.run} {victim.attempt or ''}", flush=True)
        time.sleep(LOOK_S)
    return time.monotonic() - began


def ended(installation: Installation, study: str) -> Ending:
    """End the installation's processes, and return how its study ended."""
    installation.end()
    return ending(installation, study, left(installation.home.path))


def told(hit: Ending, killer: Killer, supervisors: int) -> dict[str, Any]:
    """Return what was killed, and what became of it."""
    attempts = [attempt for run in hit.state.runs.values() for attempt in run.attempts]
    return {
        "killed": len(killer.kills),
        "killed by kind": killer.by_kind(),
        "runs": len(hit.state.runs),
        "attempts": len(attempts),
        "attempts that went on from another": sum(attempt.resumed_at is not None for attempt in attempts),
        "ends of attempts": dict(Counter(attempt.code for attempt in attempts).most_common()),
        "controllers": 1 + hit.state.resumed_count,
        "supervisors": supervisors,
        "given up": sum(run.status == "invalid" for run in hit.state.runs.values()),
        "kills": killer.kills,
    }


def missed(peaceful: Ending, hit: Ending, killer: Killer) -> list[str]:
    """Return the goals of the module's docstring that were missed."""
    found = [f"undisturbed: {fault}" for fault in peaceful.faults()]
    found += [f"disturbed: {fault}" for fault in hit.faults()]
    found += differences(peaceful, hit)
    return found + [f"no {kind} was killed" for kind, times in killer.by_kind().items() if not times]


def table(figures: dict[str, Any]) -> str:
    """Return the figures as text."""
    kinds = ", ".join(f"{times} {kind}" for kind, times in figures["killed by kind"].items())
    ends = ", ".join(f"{times} {code}" for code, times in figures["ends of attempts"].items())
    return "\n".join([
        f"{figures['seconds']['undisturbed']:.0f} s undisturbed, {figures['seconds']['disturbed']:.0f} s disturbed",
        f"killed {figures['killed']}: {kinds}",
        f"{figures['runs']} runs in {figures['attempts']} attempts ({ends}), {figures['given up']} given up; "
        f"{figures['controllers']} controllers, {figures['supervisors']} supervisors",
        *(f"missed: {each}" for each in figures["missed"]),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
