"""`ajet env check`: play, weigh, warn.

An environment is drawn twice, played by players that learn nothing, and what they earn is weighed. With a model a
server plays it too, and learns two steps: what that costs. Search tasks are played, never hidden ones: what a user sees
here, and changes the environment after, must not be what studies are measured on.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from research.environments import catalog, install
from research.errors import BadEnvironment, NotReady
from research.files import read_json, write_bytes
from research.installation.home import Home
from research.installation.servers import Binding, start_swarm, stop_swarm
from research.installation.tiny_model import Note, prepare_model
from research.own_process import thread_variables
from sandboxes.spec import describe_exit, last_lines
from swarm.client import SwarmClient
from swarm.environments.base import Environment, Split, Task
from swarm.environments.building import SPLITS
from swarm.environments.custom import CODE, CustomEnvironment, to_json
from swarm.environments.measuring import MOST_BYTES
from swarm.job import Job

ORACLE: Final = "oracle"
DEMONSTRATIONS: Final = "demonstrations"
EMPTY: Final = "empty answers"
RANDOM: Final = "random answers"
MOST_EMPTY: Final = 0.6
"""Of the way from the least reward to the oracle's, and of the tasks to be solved: what an empty answer may have."""
MOST_RANDOM: Final = 0.8
"""What random answers may: two choices are right half the time."""
GOOD_ORACLE: Final = 0.9
RARE: Final = 0.05
"""Of demonstrations that succeed: of eight plays that imitate them, mostly none earns anything."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_HUNG: Final = "Timeout ("
"""How the stacks begin that a play which hangs leaves behind."""
GROUP: Final = 8
STEPS: Final = 2
"""Of training; the second one is not waited for by a process that starts."""
TRAINED: Final = 32
RECORDS: Final = 32
"""Episodes whose tokens are looked at."""
BOOT_S: Final = 600.0
FAKE: Final = "fake"
"""The backend that has no model, and the key of what was measured with it."""
_MODULE: Final = "swarm.environments"
_LOOK_S: Final = 0.05
_STATUS_S: Final = 30.0


class Player(BaseModel):
    """What the plays of one player came to: means over its plays."""

    model_config = ConfigDict(frozen=True)

    player: str
    plays: int
    reward: float
    success: float
    calls: float
    characters: float
    seconds: float
    """Of the environment's own code."""


def faults(players: Mapping[str, Player], reward_range: tuple[float, float]) -> Iterator[str]:
    """Yield what makes rewards unfit to be trained on, or success to be measured, a line each."""
    oracle = players.get(ORACLE)
    if oracle is not None:
        for other in players.values():
            if other.reward > oracle.reward:
                yield (
                    f"{other.player} earn {other.reward:.3g}, more than the oracle's {oracle.reward:.3g}: the oracle "
                    "or the reward is wrong"
                )
    least, best = reward_range[0], oracle.reward if oracle is not None else reward_range[1]
    for name, most in ((EMPTY, MOST_EMPTY), (RANDOM, MOST_RANDOM)):
        found = players.get(name)
        if found is not None and (not best > least or (found.reward - least) / (best - least) > most):
            what = "an empty answer earns" if name == EMPTY else "random answers earn"
            yield f"{what} {found.reward:.3g} of {best:.3g}: the reward can be had without solving"
        elif found is not None and found.success > most:
            what = "an empty answer solves" if name == EMPTY else "random answers solve"
            yield f"{what} {found.success:.0%} of the tasks: success can be had without solving"


def remarks(players: Mapping[str, Player], *, oracle: bool, demonstrations: bool) -> Iterator[str]:
    if not oracle:
        yield "no oracle: nobody has shown that its tasks can be solved; give it `oracle`"
    elif ORACLE in players and players[ORACLE].success < GOOD_ORACLE:
        yield f"the oracle solves {players[ORACLE].success:.0%} of its tasks: is there a better answer?"
    if not demonstrations:
        yield "no demonstrations: a tiny model cannot learn it, as it has nothing to imitate"
    elif DEMONSTRATIONS in players and players[DEMONSTRATIONS].success < RARE:
        yield (
            f"demonstrations solve {players[DEMONSTRATIONS].success:.0%} of {players[DEMONSTRATIONS].plays} tasks: a "
            "tiny model that imitates them is hardly ever rewarded, and learns nothing; let the player of `imitate` "
            "succeed more often"
        )
    elif DEMONSTRATIONS in players and players[DEMONSTRATIONS].success > GOOD_ORACLE:
        yield (
            f"demonstrations solve {players[DEMONSTRATIONS].success:.0%}: a tiny model that imitates them has little "
            "left to learn; let the player of `imitate` make mistakes"
        )


@dataclass(frozen=True, slots=True)
class PlayBounds:
    """How much is played, and what it may take."""

    plays: int = 64
    play_s: float = 20.0
    answers: int = 200
    """In one play; plays with a model are bounded by its context and the episode's timeout."""
    seconds: float = 600.0
    """For all."""
    memory: int = MOST_BYTES
    """Bytes of address space."""


@dataclass(frozen=True, slots=True)
class Plays:
    """What playing came to."""

    players: Mapping[str, Player]
    faults: tuple[str, ...]
    example: Mapping[str, Any] | None
    """The first play whole: `player`, `task`, `messages`, `tools`, `reward`, `success`, `facts`."""


def play_alone(name: str, home: Home, packages: Sequence[Path], bounds: PlayBounds, note: Note) -> Plays:
    """Play an environment by players that need no model; raises BadEnvironment where its code cannot be loaded."""
    command = [
        sys.executable, "-m", install.MODULE, "measure", "--environment", name,
        "--environments", str(home.environments), "--plays", str(bounds.plays), "--seconds", str(bounds.play_s),
        "--answers", str(bounds.answers), "--memory", str(bounds.memory),
    ]  # fmt: skip
    variables = {**os.environ, **install.python_path_variables(packages), "PYTHONHASHSEED": "0"}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    players: dict[str, Player] = {}
    faults: list[str] = []
    facts: dict[str, Any] = {}  # `example`, `refused`, `whole`, as the process says them once
    last, late = "its code was loaded", threading.Event()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, env=variables, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=errors, text=True,
        ) as process,
    ):  # fmt: skip

        def kill_late() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(bounds.seconds, kill_late)
        timer.start()
        try:
            assert process.stdout is not None
            for message in map(json.loads, process.stdout):
                if "playing" in message:
                    playing = message["playing"]
                    last = f"{playing['player']}, task {playing['task']!r:.80}"
                    note(f"playing: {playing['player']}")
                elif "fault" in message:
                    faults.append(message["fault"])
                elif "player" in message:
                    players[message["player"]] = Player.model_validate(message)
                else:
                    facts |= message
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        errors.seek(0)
        stderr = errors.read()
    if "refused" in facts:
        raise BadEnvironment(facts["refused"])
    if process.returncode and _HUNG in stderr:
        stacks, own = stderr[stderr.rindex(_HUNG) :].splitlines(), home.environments / name / CODE
        frames = [frame for line in stacks if (frame := _FRAME.search(line)) and own in Path(frame[1]).parents]
        where = f" ({Path(frames[0][1]).name}, line {frames[0][2]})" if frames else ""  # the innermost of its code
        faults.append(f"{last}: the play did not end within {bounds.play_s:g} s{where}")
    elif late.is_set():
        faults.append(f"{last}: all plays together did not end within {bounds.seconds:g} s")
    elif process.returncode or not facts.get("whole"):
        ending = f"{describe_exit(process.returncode)}; it last said: {last_lines(stderr, 1, 300) or 'nothing'}"
        faults.append(f"{last}: its code ended its process {ending}")
    return Plays(players, tuple(faults), facts.get("example"))


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """What a check found."""

    environment: Environment
    tasks: Mapping[Split, int]
    kinds: Mapping[str, int]
    """Tasks of training and search by their kind."""
    drawn_twice: bool | None
    """Whether a second drawing gave the same tasks; None for what was not drawn now."""
    players: Mapping[str, Player]
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    measured: catalog.MeasuredEnvironment


def check(text: str, reward: str | None, home: Home, bounds: PlayBounds, note: Note) -> EnvironmentCheck:
    """Check what a text refers to; what was measured is kept. Raises BadEnvironment for what cannot be brought."""
    environment = install.load_environment(text, reward, home, note, bounds.play_s)
    here = reward is None and catalog.is_known(text)
    same = None
    if not here:  # bring it once more; what a second drawing alone gave is not kept
        before = {path.name for path in home.environments.iterdir()}
        again = install.install_environment(catalog.read_reference(text, reward), home, lambda _: None, bounds.play_s)
        if again.name not in before:
            install.remove_folder(again.folder, home)
        same = again.name == environment.name
    plays = play_alone(environment.name, home, install.packages_of(environment.name, home, note), bounds, note)
    found = list(plays.faults)
    if same is False:
        found.append("drawn twice, it gave other tasks or demonstrations: use no clock, and no random without a seed")
    if not plays.faults:
        found += faults(plays.players, environment.reward_range)
    players = (plays.players.get(name) for name in (DEMONSTRATIONS, ORACLE, RANDOM, EMPTY))
    typical = next((player for player in players if player is not None), None)
    known = catalog.MeasuredEnvironment(
        environment=environment.name, measured_at=datetime.now(UTC).isoformat(timespec="seconds"), faults=tuple(found),
        calls_per_episode=typical.calls if typical else None,
        environment_seconds_per_episode=typical.seconds if typical else None,
    )  # fmt: skip
    if known.calls_per_episode is not None or found:
        catalog.save_measurement(home, known)
    return EnvironmentCheck(
        environment=environment, tasks={split: len(environment.tasks(split)) for split in SPLITS},
        kinds=Counter(task.kind for split in SPLITS[:2] for task in environment.tasks(split) if task.kind),
        drawn_twice=same, players=plays.players, faults=tuple(found), remarks=tuple(_remarks(environment, plays)),
        measured=known,
    )  # fmt: skip


def _remarks(environment: Environment, plays: Plays) -> Iterator[str]:
    manifest = environment.manifest if isinstance(environment, CustomEnvironment) else None
    if manifest is not None and manifest.left:
        yield manifest.left
    if manifest is not None and not manifest.hidden_apart:
        yield (
            "its code can make its hidden tasks, or holds them, and clients hold it: move records to tasks*.json or "
            "hidden/, or give `generate` (docs/environments.md)"
        )
    if environment.has("agent") if manifest is None else manifest.own_agent:
        yield "it plays by an agent of its own, which needs a model: --tiny or --model"
        return
    oracle, demonstrations = has_parts(environment)
    can_have_one = manifest is None or manifest.source.kind in ("folder", "module")
    yield from remarks(plays.players, oracle=oracle or not can_have_one, demonstrations=demonstrations)


def has_parts(environment: Environment) -> tuple[bool, bool]:
    if isinstance(environment, CustomEnvironment):
        return environment.manifest.oracle, bool(environment.manifest.demonstrations)
    return environment.has("oracle"), environment.has("imitate")


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """What is tried: how much of which environment, with which job."""

    job: Job
    groups: int
    """Search tasks that are played `GROUP` times each."""
    seconds: float
    """For the evaluation, and again for the training."""
    runs_at_once: int = 1
    """Runs among which the machine's cores are shared, as those of a study would be."""


def job_of(base: Job, fields: Mapping[str, Any]) -> Job:
    """Return `base` with few and small steps, unless fields say otherwise; raises ValidationError."""
    small = {"steps": STEPS, "episodes_per_step": TRAINED, "group_size": GROUP, "lr_warmup_steps": 0}
    small["minibatches"] = min(base.minibatches, TRAINED)
    return Job.model_validate({**base.model_dump(mode="json"), **small, **fields})


def try_model(
    trial: ModelTrial, tasks: Sequence[Task], home: Home, packages: Sequence[Path], note: Note
) -> catalog.MeasuredEnvironment:
    """Play `tasks` and learn with the trial's model; return what was measured. Raises NotReady, or ModelFailed."""
    job = trial.job
    prepare_model(job, home.models, note)
    with tempfile.TemporaryDirectory(prefix="check-", dir=home.path, ignore_cleanup_errors=True) as scratch:
        note("starting a swarm server with the model")
        folder, began, variables = Path(scratch), time.monotonic(), thread_variables(trial.runs_at_once)
        place, binding = folder / "server", Binding(backend=job.backend)
        server = start_swarm(place, models=home.models, port=0, idle=True, variables=variables, binding=binding)
        try:
            with SwarmClient(server.url, server.admin_token) as client:
                client.ensure_training(job, timeout_s=BOOT_S)
                startup_s = time.monotonic() - began
                common = (
                    "--server", server.url, "--environment", job.environment, "--environments",
                    str(home.environments), "--concurrency", str(job.max_concurrency),
                )  # fmt: skip
                variables = {**os.environ, **install.python_path_variables(packages), "AJET_TOKEN": server.client_token}
                chosen, out, plays = folder / "tasks.json", folder / "evaluation.json", len(tasks) * GROUP
                write_bytes(chosen, to_json(tasks).encode(), durable=False)
                note(f"playing {plays} episodes of search tasks")
                wanted = ("--tasks", str(chosen), "--episodes", str(plays), "--split", "search", "--out", str(out))
                seconds = _play(("evaluate", *common, *wanted), variables, trial, client, folder)
                episodes = (read_json(out) or {})["episodes"]
                ended = [summary for summary in client.episodes(RECORDS).episodes if summary.reward is not None]
                records = [client.episode(summary.id) for summary in ended]
                note(f"training {job.steps} steps")
                _play(("play", *common), variables, trial, client, folder)
                status = client.status(within_s=_STATUS_S)
        finally:
            stop_swarm(server)
    groups = defaultdict[str, list[float]](list)
    for episode in episodes:
        groups[episode["task_id"]].append(episode["reward"])
    spans = [call for record in records for call in record.record]
    cut = [call.truncated for call in spans if call.truncated is not None]
    plain = Job(environment=job.environment, model=job.model).model_dump(mode="json")
    held = {name: value for name, value in job.model_dump(mode="json").items() if value != plain.get(name)}
    return catalog.MeasuredEnvironment(
        environment=job.environment, model=FAKE if job.backend == FAKE else catalog.model_key(job.model),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"), job={**held, **catalog.conditions_of(job)},
        calls_per_episode=fmean(record.calls for record in records) if records else None,
        prompt_tokens=sum(len(call.context.ids) for call in spans) / len(records) if records else None,
        sampled_tokens=fmean(record.tokens for record in records) if records else None,
        cut_short=fmean(cut) if cut else None, seconds_per_episode=seconds / len(episodes),
        concurrency=job.max_concurrency, runs_at_once=trial.runs_at_once,
        seconds_per_trained_episode=status.metrics["timing_s/step"] / job.episodes_per_step, startup_s=startup_s,
        base_success=fmean(bool(episode["success"]) for episode in episodes), base_success_n=len(episodes),
        equal_groups=fmean(max(rewards) == min(rewards) for rewards in groups.values()), equal_groups_n=len(groups),
        group_size=GROUP,
    )  # fmt: skip


def _play(
    arguments: Sequence[str], variables: Mapping[str, str], trial: ModelTrial, client: SwarmClient, folder: Path
) -> float:
    name = trial.job.environment
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *arguments], cwd=folder, env=variables, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        started, first = time.monotonic(), None
        try:
            while process.poll() is None:
                if first is None and client.status(within_s=_STATUS_S).open_episodes > 0:
                    first = time.monotonic()
                if time.monotonic() - started > trial.seconds:
                    raise NotReady(
                        f"expected the plays of {name} with the model to end within {trial.seconds:g} s; they did not; "
                        "ask for fewer: --groups"
                    )
                time.sleep(_LOOK_S)
            seconds = time.monotonic() - (started if first is None else first)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        if process.returncode:
            raise NotReady(
                f"expected {name} to be played with the model; the process that plays ended with {process.returncode}: "
                f"{last_lines(log.read(), 2, 600) or 'it said nothing'}"
            )
    return seconds
