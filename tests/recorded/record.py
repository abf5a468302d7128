"""Records what this version writes, for later versions to open: `python -m tests.recorded.record [NAME ...]`.

    finished     a study from the command line, real trainings, to its report
    stopped      the same question, stopped by Ctrl-C while runs were going on
    simulated    a home of three flown studies: one of every stage, one with a veto, one whose controller was killed
    rounds       a home of two flown studies of several rounds: one concluded, one killed in its second round
    fake         a swarm server with the fake backend, killed between two steps
    local        a swarm server that trains a tiny model, killed between two steps, and what was exported from it before
    training     the same server, killed while a step was being learned

Each becomes NAME.tar.xz in a folder of the day, and what a reader must find in it a key of expected.json there. All is
written under `SCRATCH`, so that the paths in it are of no machine. README.md says what is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import string
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from simlab.sim_run import DeadlyLog, Desk, Flight, board, fly_in, killed, resume
from simlab.worlds import MainEffect, Planted, Scalar, Slope

from research.controller import interventions
from research.installation.servers import SwarmProcess, find_swarm
from studies import EventLog, StudyLog, StudyState, fold
from swarm.client import NamedTask, SwarmClient
from swarm.client.sync_client import SyncEpisode
from swarm.job import Job, TinyModel
from swarm.wire import ServerState

HERE = Path(__file__).parent / date.today().isoformat()
SCRATCH = Path("/tmp/ajet-recorded")
TOPIC = "group size 4 vs 8 on arith with 3 training steps"
ASKED = (
    "--max-runs", "6", "--effect", "0.3", "--episodes", "64", "--looks", "1", "--sandbox", "process", "--no-prefect",
)  # fmt: skip
LEFT_OUT = ("sandboxes", "models", "server", "wandb", "logs", "exchange", "tracked.json")
"""Names of files and folders of a home that are not kept."""
LEASE = "lease.json"
"""In the folder of `fake`: the lease of the open episode, as its client held it."""
PROBE = [{"role": "user", "content": "What is 3 + 4?"}]
"""What a server is asked before it is killed, without randomness."""
SUMS = ("10 + 7", "21 + 5")
"""What training episodes are asked: one or both, by their task."""
FAKE = Job(backend="fake", steps=6, episodes_per_step=4, group_size=2, checkpoint_every=2)
LOCAL = Job(
    environment="arith", model=TinyModel(hidden_size=16, layers=1, warm_start_steps=0), steps=4, episodes_per_step=4,
    group_size=2, checkpoint_every=2, checkpoints_kept=1, learning_rate=0.01, max_tokens=6, max_context=64,
)  # fmt: skip
TRAINING = LOCAL.model_copy(update={"episodes_per_step": 32, "group_size": 8, "max_tokens": 24})
"""A step of it takes long enough to be killed in."""
KILLED_AT = 32
"""Event, from 0, right after which the controller of `KILLED` was killed: an attempt goes on, another is to begin."""
ROUNDS_KILLED_AT = 92
"""The same of `ROUNDS_KILLED`, in its second round."""
KNOBS: dict[str, tuple[Scalar, ...]] = {"learning_rate": (3e-4, 1e-3, 3e-3), "group_size": (4, 8, 16)}
BASE: dict[str, Scalar] = {"learning_rate": 1e-3}
"""What the simulated trainings' effects are planted around."""


def _world(seed: int, *effects: Slope | MainEffect) -> Planted:
    base: dict[str, Scalar] = {"learning_rate": 1e-3, "group_size": 8}
    return Planted(seed, KNOBS, base, effects, seed_sd=0.02, steps=4)


def _extend(desk: Desk) -> None:
    """Give the study more time and a note, once its design is locked."""
    if desk.state.design is not None and not desk.state.amendments:
        record = StudyLog(desk.log, desk.state.id)
        interventions.add_note(record, "The simulated machine was moved.")
        interventions.change_budget(record, 2 * desk.state.budget_s, "the machine is slower than priced")


def _veto(desk: Desk) -> None:
    """Give the second hypothesis up as soon as a run was collected, and let a violation pass."""
    started = any(run.status == "collected" for run in desk.state.runs_in("confirm"))
    if started and not desk.state.vetoed:
        record = StudyLog(desk.log, desk.state.id)
        interventions.accept_violation(record, "co_tenancy", "a backup ran beside both arms")
        interventions.veto_hypothesis(record, "h2", "it is known to be worse")


STAGED = Flight(
    "staged", "What is the best learning rate and group size on the guessing game?",
    _world(1, Slope("learning_rate", 0.15, 1e-3)), max_runs=36, budget_s=3600.0, hand=_extend, report=True, base=BASE,
)  # fmt: skip
VETOED = Flight(
    "vetoed", "group size 8 vs 16 vs 4 on the guessing game",
    _world(2, MainEffect("group_size", {16: 0.15})), max_runs=30, hand=_veto, report=True, base=BASE,
)  # fmt: skip
KILLED = Flight(
    "killed", "learning rate 1e-3 vs 3e-3 on the guessing game", _world(3, Slope("learning_rate", 0.1, 1e-3)),
    max_runs=16, report=True, base=BASE,
)  # fmt: skip
ROUNDS = Flight(
    "rounds", "learning rate 1e-3 vs 3e-3 on the guessing game", _world(4, MainEffect("learning_rate", {3e-3: 0.2})),
    asks={"rounds": 3}, report=True,
)  # fmt: skip
ROUNDS_KILLED = replace(ROUNDS, name="rounds-killed", world=_world(5, MainEffect("learning_rate", {3e-3: 0.2})))


def ajet(home: Path, *arguments: str) -> Any:
    """Run a command in a home; return its JSON, with the home's path as HOME."""
    command = [sys.executable, "-m", "research", *arguments, "--json"]
    done = subprocess.run(command, env=_environment(home), check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.replace(str(home), "HOME"))


def _environment(home: Path) -> dict[str, str]:
    foreign = ("AJET_", "OPENAI_", "PREFECT_", "WANDB_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "AJET_HOME": str(home), "WANDB_MODE": "offline"}


def finished() -> Any:
    """Record a real study."""
    home = SCRATCH / "finished"
    ajet(home, "research", TOPIC, *ASKED)
    return _pack_home(home)


def stopped() -> Any:
    """Record a real study that was interrupted when two runs were collected and another went on."""
    home = SCRATCH / "stopped"
    command = [sys.executable, "-m", "research", "research", TOPIC, *ASKED]
    controller = subprocess.Popen(command, env=_environment(home))
    while not _half_done(home):
        assert controller.poll() is None
        time.sleep(0.2)
    controller.send_signal(signal.SIGINT)
    controller.wait()
    return _pack_home(home)


def _half_done(home: Path) -> bool:
    if not (home / "ajet.db").exists():
        return False
    runs = [run for state in _states(home) for run in state.runs.values()]
    return sum(run.status == "collected" for run in runs) >= 2 and any(run.active for run in runs)


def _states(home: Path) -> list[StudyState]:
    with closing(EventLog(f"sqlite:///{home / 'ajet.db'}")) as log:
        return [fold(log.read(study)) for study in log.studies()]


def simulated() -> Any:
    """Record studies of simulated trainings; log, lock, files and reports are written by the shipped code."""
    home = SCRATCH / "simulated"
    for flight in (STAGED, VETOED):
        landed = fly_in(flight, home)
        assert landed.state.status == "concluded", landed.refused
    begun = board(KILLED, home)
    assert killed(lambda: resume(KILLED, begun, lambda url, clock: DeadlyLog(url, clock, KILLED_AT, written=True)))
    return _pack_home(home)


def rounds() -> Any:
    """Record two simulated studies of several rounds; the controller of one was killed once its second was locked."""
    home = SCRATCH / "rounds"
    landed = fly_in(ROUNDS, home)
    assert (landed.state.status, landed.state.round) == ("concluded", 3), (landed.refused, landed.state.round)
    begun = board(ROUNDS_KILLED, home)
    at = ROUNDS_KILLED_AT
    assert killed(lambda: resume(ROUNDS_KILLED, begun, lambda url, clock: DeadlyLog(url, clock, at, written=True)))
    return _pack_home(home)


def fake() -> Any:
    """Record a server that was killed after five steps, with a checkpoint of the fourth."""
    with _serving("fake", FAKE) as (server, client):
        for step in range(1, 6):
            _play_step(client, step)
        for task in "xxy":
            _play(client, task, 1.0)
        open_one = client.begin(NamedTask("y"), wait_s=10)
        open_one.chat(PROBE)
        (server.folder / LEASE).write_text(open_one.lease.model_dump_json())
        told = _told(client)
        os.kill(server.pid, signal.SIGKILL)
    _pack("fake", server.folder)
    return told


def local() -> Any:
    """Record a server that was killed after three steps, with a checkpoint of the second; export before that."""
    with _serving("local", LOCAL) as (server, client):
        untrained = _probe(client)
        for step in range(1, 4):
            _play_step(client, step)
        _play(client, "x", 1.0)
        told = {"untrained": untrained, "probe": _probe(client), **_told(client)}
        ajet(SCRATCH / "local", "swarm", "export", "--all", "--to", str(HERE / "episodes.jsonl"))
        os.kill(server.pid, signal.SIGKILL)
    shutil.copytree(SCRATCH / "local" / "models", server.folder / "models", ignore=shutil.ignore_patterns("*.lock"))
    _pack("local", server.folder)
    return told


def training() -> Any:
    """Record a server that was killed while it learned its third step, whose batch is in the store."""
    with _serving("training", TRAINING) as (server, client):
        for step in range(1, 3):
            _play_step(client, step, TRAINING)
        told = _told(client)
        tasks = [f"c{number}" for number in range(TRAINING.episodes_per_step // TRAINING.group_size)]
        for task in tasks:
            for place in range(TRAINING.group_size):
                _play(client, task, float(place % 2))
        while not client.status().updating:
            pass
        os.kill(server.pid, signal.SIGKILL)
    shutil.copytree(SCRATCH / "training" / "models", server.folder / "models", ignore=shutil.ignore_patterns("*.lock"))
    _pack("training", server.folder)
    return told


@contextmanager
def _serving(name: str, job: Job) -> Iterator[tuple[SwarmProcess, SwarmClient]]:
    """Start a server by `ajet swarm start` and let the block kill it."""
    home = SCRATCH / name
    home.mkdir(parents=True)
    (home / "job.json").write_text(job.canonical())
    ajet(home, "swarm", "start", "--job", str(home / "job.json"), "--port", "0")
    server = find_swarm(home / "swarm")
    assert server is not None
    with SwarmClient(server.url, server.admin_token, owner="record") as client:
        yield server, client
    psutil.Process(server.pid).wait()


def _play_step(client: SwarmClient, step: int, job: Job = LOCAL) -> None:
    names = string.ascii_lowercase[: job.episodes_per_step // job.group_size]
    for task in (f"{name}{step}" for name in names):
        for place in range(job.group_size):
            _play(client, task, float(place % 2))
    while (status := client.status()).step < step or status.updating or status.state != ServerState.ROLLING:
        time.sleep(0.05)


def _play(client: SwarmClient, task: str, reward: float) -> None:
    episode = client.begin(NamedTask(task), wait_s=10)
    for asked in SUMS[: 1 + len(task) % 2]:
        episode.chat([{"role": "user", "content": f"What is {asked}?"}])
    episode.end(reward, success=reward > 0)


def _probe(client: SwarmClient) -> dict[str, Any]:
    """Return what the policy answers without randomness: each token and its log-prob."""
    episode: SyncEpisode = client.begin(NamedTask("probe"), kind="eval", wait_s=10)
    reply = episode.chat(PROBE, temperature=0.0, logprobs=True)
    episode.end(0.0)
    content = reply.raw["choices"][0]["logprobs"]["content"]
    return {"tokens": [one["token"] for one in content], "logprobs": [one["logprob"] for one in content]}


def _told(client: SwarmClient) -> dict[str, Any]:
    """Return where a server says it stands."""
    status = client.status()
    named = ("job_digest", "step", "steps", "policy_version", "collected_episodes", "open_episodes")
    return {
        **{name: getattr(status, name) for name in named},
        "checkpoints": [one.model_dump(mode="json") for one in client.checkpoints().checkpoints],
        "episodes": [one.model_dump(mode="json") for one in client.episodes(1000).episodes],
    }


def _pack_home(home: Path) -> dict[str, Any]:
    """Pack a home without what is left out; return what is said of its studies."""

    def keep(path: Path) -> bool:  # what was collected of an attempt's evaluations lies in `runs/`
        twice = "attempts" in path.parts and path.name.startswith("evaluation-")
        return not set(path.parts) & set(LEFT_OUT) and not twice

    _pack(home.name, home, keep)
    states = {state.id: state for state in _states(home)}
    return {
        "list": ajet(home, "study", "list"),
        "show": {study: ajet(home, "study", "show", study) for study in states},
        "state": {study: facts(state) for study, state in states.items()},
        "calibration": ajet(home, "planner", "calibration"),
    }


def facts(state: StudyState) -> dict[str, Any]:
    """Return what a fold says that no command shows."""
    return {
        "event_count": state.event_count,
        "head_hash": state.head_hash,
        "elapsed_s": state.elapsed_s,
        "budget_s": state.budget_s,
        "phases": {run.run_id: run.spec.phase for run in state.runs.values()},
        "attempts": {run.run_id: [attempt.status for attempt in run.attempts] for run in state.runs.values()},
        "candidates": sorted(state.candidates),
        "kept": list(state.selection.kept) if state.selection else [],
        "decisions": [[decision.hypothesis, decision.look, decision.action] for decision in state.decisions],
        "interim": [verdict.model_dump(mode="json") for verdict in state.interim],
        "replications": [verdict.model_dump(mode="json") for verdict in state.replications],
        "amendments": [entry.amendment.model_dump(mode="json") for entry in state.amendments],
        "vetoed": sorted(state.vetoed),
        "report": dict(state.report) if state.report else None,
    }


def _pack(name: str, folder: Path, keep: Callable[[Path], bool] = lambda path: True) -> None:
    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member if keep(Path(member.name)) else None

    with tarfile.open(HERE / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        archive.add(folder, arcname=".", filter=kept)


RECORDED: dict[str, Callable[[], Any]] = {
    "finished": finished, "stopped": stopped, "simulated": simulated, "rounds": rounds,
    "fake": fake, "local": local, "training": training,
}  # fmt: skip


def main(names: list[str]) -> None:
    """Record these, or all."""
    path = HERE / "expected.json"
    for name in names or RECORDED:
        shutil.rmtree(SCRATCH / name, ignore_errors=True)
        SCRATCH.mkdir(exist_ok=True)
        HERE.mkdir(exist_ok=True)
        told = {name: RECORDED[name]()}
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | told, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
