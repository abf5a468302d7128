"""How long does a first study take, from the command to the report, and where does the time go?

    python benchmarks/first_study.py            a study of how much two group sizes solve, whole
    python benchmarks/first_study.py --quick    the same with 4 runs only (2 seeds per arm)
    python benchmarks/first_study.py --json     also writes benchmarks/results/first_study.json
    python benchmarks/first_study.py --check    exit code 1 unless the goals below are met
    python benchmarks/first_study.py --model smollm2-135m    `make research MODEL=...`, of a model that was fetched

It runs `ajet research --rounds 1 --looks 1` (every seed, whatever the first ones say) in an empty folder of its own,
then reads the study's event log and the outcome files of its runs. Clients are plain processes, as on a machine without
an engine, unless AJET_SANDBOX=docker is set; the tiny model is made, unless AJET_MODEL_CACHE=1 is set. With --model it
runs `ajet research "" --model NAME` as it stands; with --json both stand in one file, each with its commit and day.
Then one of its runs is made again, alone, forked and started (`sandboxes/preload.py`), for the seconds of a core that
its processes take.
Goals: the study is concluded within 15 minutes (of a pretrained model: 10), with a first verdict within 4; every
launched run is accounted for; the better arm's hidden success rises by at least 0.3; a run takes 18 s, and 5 s of a
core less where it is forked.

Times are wall clock of one study on this machine and noisy; none is compared with another machine's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from rig.frame import circumstances, concluded, earlier, parser
from rig.training import NAME, missing
from rig.training import folder as model_folder

from research.files import read_json
from research.installation.home import Home
from research.own_process import thread_variables
from research.runs.files import AttemptFolder
from research.runs.launcher import PRELOADED
from sandboxes import Exit, ProcessSandbox, SandboxSpec
from studies import Event, EventLog, StudyState, fold

TOPIC = "Does a larger group size make GRPO solve more of the guessing game?"
LIMIT_S = 15 * 60
PRETRAINED_S = 10 * 60
VERDICT_S = 4 * 60
RUN_S = 18.0
SAVED_S = 5.0
RISE = 0.3
PRETRAINED = "of a pretrained model"


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = parser(__doc__, quick="4 runs instead of all")
    options.add_argument("--model", metavar="NAME", help=f"a pretrained model, not the tiny one ({NAME})")
    arguments = options.parse_args()
    command = [sys.executable, "-m", "research", "research", TOPIC, "--json", "--rounds", "1", "--looks", "1"]
    if arguments.quick:
        command += ["--max-runs", "4", "--effect", "0.3"]
    if arguments.model and (reason := missing(arguments.model)) is not None:
        print(f"expected a model; {reason}")
        return 2
    if arguments.model:
        command = [*command[:4], "", "--json", "--model", arguments.model]
    with tempfile.TemporaryDirectory(prefix="ajet-first-study-") as folder:
        home = Path(folder) / ".ajet"
        if arguments.model:
            shutil.copytree(model_folder(arguments.model), home / "models" / arguments.model)
        began = time.monotonic()
        usual = {"AJET_SANDBOX": "process", "AJET_MODEL_CACHE": "0"}
        environment = {**usual, **os.environ, "AJET_HOME": str(home), "WANDB_MODE": "offline"}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        total = time.monotonic() - began
        own = Home(home, f"sqlite:///{home / 'ajet.db'}")
        figures = {**measure(own, total, again=not arguments.model), **circumstances(arguments)}
        subprocess.run([sys.executable, "-m", "research", "up", "--stop"], env=environment, check=True)
    print(table(figures))
    missed = goals_missed(figures)
    before = earlier("first_study")
    if arguments.model:
        figures = {**before, PRETRAINED: figures}
    elif PRETRAINED in before:
        figures[PRETRAINED] = before[PRETRAINED]
    return concluded("first_study", figures, missed, arguments)


def measure(home: Home, total_s: float, *, again: bool = True) -> dict[str, Any]:
    """Return the figures of the one study in `home`; one of its runs is made `again`."""
    log = EventLog(home.database)
    events = log.read(log.studies()[0])
    state = fold(events)
    stages = _stages(home, state)
    return {
        "topic": TOPIC if again else "",
        "seconds": {
            "command to report": round(total_s, 1),
            **_parts(events, total_s, float(state.model["seconds"] if state.model else 0.0)),
        },
        "seconds per run (mean)": stages,
        "runs": {
            "planned": len(state.runs),
            "collected": _count(state, "collected"),
            "invalid": _count(state, "invalid"),
        },
        "hidden success (mean)": _success(state),
        "captured": _captured(home, state),
        "seconds of a core of a run": {
            "forked": _run_again(home, state, PRELOADED["local"]),
            "started": _run_again(home, state, ()),
        }
        if again
        else {},
        "verdicts": [verdict.model_dump(mode="json", exclude={"inputs_sha256"}) for verdict in state.verdicts],
        "price": state.design.price.model_dump(mode="json") if state.design else None,
    }


def _parts(events: list[Event], total_s: float, model_s: float) -> dict[str, float]:
    def at(type_: str, *, last: bool = False, after: float = 0.0) -> float:
        times = [datetime.fromisoformat(event.ts).timestamp() for event in events if event.type == type_]
        return times[-1] if last else next(moment for moment in times if moment > after)

    verdict = {"of it: to the first verdict": round(at("verdict.computed") - at("study.created"), 1)}
    locked = at("design.locked")
    first = at("attempt.launched", after=locked)
    marks = {
        "plan, run without learning, and lock": locked - at("study.created") - model_s,
        "make the model": model_s,
        "wait for a first run": first - locked,
        "train and evaluate": at("run.collected", last=True) - first,
        "judge and report": at("report.built") - at("run.collected", last=True),
    }
    rest = total_s - sum(marks.values())
    parts = {name: round(seconds, 1) for name, seconds in {"start and end of the command": rest, **marks}.items()}
    return {**verdict, **parts}


def _stages(home: Home, state: StudyState) -> dict[str, float]:
    outcomes = []
    for run in state.runs.values():
        for attempt in run.attempts:
            value = read_json(AttemptFolder(home.attempt(state.id, run.run_id, attempt.number)).outcome)
            if value is not None and value["status"] == "finished":
                outcomes.append(value)
    names = ("boot", "initial", "train", "final", "stop")
    means = {name: sum(outcome["stages"].get(name, 0.0) for outcome in outcomes) / len(outcomes) for name in names}
    whole = sum(outcome["seconds"] for outcome in outcomes) / len(outcomes)
    return {name: round(seconds, 1) for name, seconds in {"whole": whole, **means}.items()}


def _run_again(home: Home, state: StudyState, preloaded: Sequence[str]) -> float:
    """Return the seconds of a core that the processes of a collected run take when it is made again, alone."""
    run = next(run for run in state.runs.values() if run.collected is not None and run.attempts[-1].initial_sha256)
    source = AttemptFolder(home.attempt(state.id, run.run_id, run.attempts[-1].number))
    with tempfile.TemporaryDirectory(prefix="ajet-first-run-") as place:
        folder, sandbox = AttemptFolder(Path(place) / "attempt"), ProcessSandbox(Path(place) / "sandboxes")
        folder.path.mkdir()
        for file in (source.spec, source.evaluation("initial")):
            shutil.copy(file, folder.path)
        variables = {**thread_variables(1), "WANDB_ERROR_REPORTING": "false"}
        if preloaded:
            sandbox.preload(preloaded, variables)
        command = (sys.executable, "-m", "research.runs.attempt", str(folder.path))
        handle = sandbox.run(SandboxSpec("again", command, folder.path, variables, trusted=True))
        shim = json.loads((Path(place) / "sandboxes" / "again" / "started.json").read_text())["shim_pid"]
        seen = dict[int, float]()
        while handle.poll() is None:
            for process in psutil.process_iter():
                with suppress(psutil.Error, ProcessLookupError):
                    if os.getsid(process.pid) == shim:
                        seen[process.pid] = sum(process.cpu_times()[:2])
            time.sleep(0.1)
        assert handle.poll() == Exit("finished", 0), handle.logs()
    return round(sum(seen.values()), 1)


def _success(state: StudyState) -> dict[str, dict[str, float]]:
    assert state.design is not None
    found = {}
    for arm in state.design.arms:
        before = list(state.values(arm.name, "hidden/success/initial").values())
        after = list(state.values(arm.name, "hidden/success").values())
        found[arm.name] = {"before": round(sum(before) / len(before), 3), "after": round(sum(after) / len(after), 3)}
    return found


def _captured(home: Home, state: StudyState) -> dict[str, float]:
    """Sum up over all steps of all runs what the servers logged of their call trees and of their learners."""
    steps = [
        step["metrics"]
        for run in state.runs.values()
        if run.collected is not None
        for step in json.loads((home.study(state.id) / run.collected["snapshot"]["path"]).read_text())["history"]
    ]
    return {
        "continued calls": sum(step["drift/clean"] for step in steps),
        "forked calls": sum(step["drift/fork"] for step in steps),
        "tokens unmerged over merged": round(
            sum(step["merge/unmerged_tokens"] for step in steps) / sum(step["merge/tokens"] for step in steps), 2
        ),
        "largest difference of learner and engine probability": max(
            step["training/rollout_probs_diff_max"] for step in steps
        ),
    }


def _count(state: StudyState, status: str) -> int:
    return sum(run.status == status for run in state.runs.values())


def goals_missed(figures: dict[str, Any]) -> list[str]:
    """Return the goals of the module's docstring that `figures` miss."""
    missed = []
    runs = figures["runs"]
    limit = LIMIT_S if (again := figures["seconds of a core of a run"]) else PRETRAINED_S
    if figures["seconds"]["command to report"] > limit:
        missed.append(f"took {figures['seconds']['command to report']} s, the goal is {limit}")
    if runs["planned"] != runs["collected"] + runs["invalid"]:
        missed.append(f"runs do not add up: {runs}")
    if again and figures["seconds"]["of it: to the first verdict"] > VERDICT_S:
        missed.append(f"a verdict took {figures['seconds']['of it: to the first verdict']} s, the goal is {VERDICT_S}")
    if again and figures["seconds per run (mean)"]["whole"] > RUN_S:
        missed.append(f"a run took {figures['seconds per run (mean)']['whole']} s, the goal is {RUN_S:g}")
    if again and again["started"] - again["forked"] < SAVED_S:
        missed.append(f"a forked run takes {again['forked']} s of a core, a started one {again['started']} s")
    rise = max(arm["after"] - arm["before"] for arm in figures["hidden success (mean)"].values())
    if rise < RISE:
        missed.append(f"the better arm rose by {rise:.2f}, the goal is {RISE}")
    return missed


def table(figures: dict[str, Any]) -> str:
    """Return the figures as text."""
    lines = [f"one study, {figures['runs']['planned']} runs, on {figures['machine']}", ""]
    lines += [f"  {seconds:8.1f} s  {name}" for name, seconds in figures["seconds"].items()]
    lines += ["", "  per run (mean)"]
    lines += [f"  {seconds:8.1f} s  {name}" for name, seconds in figures["seconds per run (mean)"].items()]
    lines += ["", "  of a core, per run"]
    lines += [f"  {seconds:8.1f} s  {name}" for name, seconds in figures["seconds of a core of a run"].items()]
    lines += ["", "  hidden success (mean)"]
    lines += [f"  {arm}: {v['before']:.3f} -> {v['after']:.3f}" for arm, v in figures["hidden success (mean)"].items()]
    lines += ["", "  captured"]
    lines += [f"  {value:12.6g}  {name}" for name, value in figures["captured"].items()]
    lines += [f"  {v['hypothesis']} {v['verdict']}: {v['reason']}" for v in figures["verdicts"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
