"""Installations as real processes: who of them may be killed, who is killed when, and how studies end in them.

A process is the installation's where its command line, working folder or environment names the installation's folder;
so no other process of the machine is ever met, whatever runs beside. Kinds are told by command lines.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
import sqlalchemy as sa

from research.installation.home import Home
from research.installation.tiny_model import MOST_TRIES
from research.orchestration.deployment import MOST_FRUITLESS
from research.orchestration.supervision import WORKER
from research.runs.files import AttemptFolder
from research.scheduler.next_step import MOST_ATTEMPTS, is_done
from rig.studies_at_scale import insert
from studies import Event, EventLog, EventType, RunState, StudyState, fold
from studies.log.event import row_of
from studies.log.event_log import LOCK_FILE
from studies.log.locks import ControllerLeases, Holder, Slots
from studies.proof import Proof, verify
from swarm.job import Job
from swarm.store import reading
from swarm.wire import EpisodeSummary

Command = Sequence[str]
_ATTEMPT: Final = re.compile(r"([0-9a-f]{16})-a(\d+)\b")
_HOMES: Final = ("AJET_HOME", "PREFECT_HOME")


def _runs(module: str, *words: str) -> Callable[[Command], bool]:
    """Tell whether a command is `python -m module`, with these words."""
    return lambda command: command[1:3] == ["-m", module] and all(word in command for word in words)


MAKER: Final = "maker of tiny models"
CONTROLLER: Final = "controller"
BRINGING_BACK: Final = ("Prefect's worker", "Prefect's server", "supervisor")
"""Those without whom a controller that was killed has no successor."""
OF_A_RUN: Final = ("evaluator", "client", "swarm server", "attempt", "shim")
"""Those whose death costs a run one of its tries."""
KINDS: Final[dict[str, Callable[[Command], bool]]] = {
    MAKER: _runs("swarm.backends.local.warm_start"),
    "evaluator": _runs("swarm.environments", "evaluate"),
    "client": _runs("swarm.environments", "play"),
    "swarm server": _runs("swarm.server"),
    "attempt": _runs("research.runs.attempt"),
    "shim": lambda command: any(word.endswith("/sandboxes/shim.py") for word in command),
    CONTROLLER: _runs("prefect.engine"),
    BRINGING_BACK[0]: _runs("research.orchestration.prefect_command", "worker"),
    BRINGING_BACK[1]: _runs("prefect", "server"),
    BRINGING_BACK[2]: _runs("research", "up", "--work"),
}
"""By name, those that live shortest first: how a command line of the kind is told."""


@dataclass(frozen=True)
class Victim:
    """A living process; `run` and `attempt` are what it works on, empty and 0 where it is none's."""

    process: psutil.Process
    kind: str
    run: str = ""
    attempt: int = 0


def victims(home: Path) -> Iterator[Victim]:
    """Yield the processes of an installation that are of a known kind."""
    for process, command, where in _processes_of(home):
        for kind, is_of in KINDS.items():
            if is_of(command):
                found = _ATTEMPT.search(where)
                yield Victim(process, kind, *((found[1], int(found[2])) if found else ()))


def left(home: Path) -> list[str]:
    """Return the command lines of all processes of an installation, of whatever kind."""
    return [" ".join(command) for _, command, _ in _processes_of(home)]


def _processes_of(home: Path) -> Iterator[tuple[psutil.Process, list[str], str]]:
    """Yield each process with its command and where it works, in one text."""
    for process in psutil.process_iter():
        try:
            command = process.cmdline()  # empty for one that has ended and waits for its parent
            where = " ".join([*command, process.cwd()])
            lives = [f"{process.environ().get(name, '')}/" for name in _HOMES] if command else []
            if command and (f"{home}/" in f"{where}/" or any(one.startswith(f"{home}/") for one in lives)):
                yield process, command, where
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


PATIENCE_S = 300.0
"""For commands that take seconds on an idle machine."""
_FOREIGN = ("AJET_", "OPENAI_", "PREFECT_", "WANDB_")


class Installation:
    """A folder with a supervisor that is kept alive as an init system would; leaving ends whatever is left."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)},
            "AJET_HOME": str(folder), "AJET_SANDBOX": "process", "WANDB_MODE": "offline",
        }  # fmt: skip
        self.home = Home.locate(self.environment).prepare()
        self.started = 0
        """Times that a supervisor was started."""
        self.log = EventLog(self.home.database)
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close()
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.kill()
        for _ in range(_ROUNDS):  # of a benchmark that was interrupted; else there is none
            for victim in victims(self.home.path):
                with suppress(psutil.NoSuchProcess):
                    victim.process.kill()

    def keep_up(self) -> None:
        """Start the supervisor where none runs."""
        if self._supervisor is None or self._supervisor.poll() is not None:
            with (self.home.path / "up.log").open("ab") as log:
                self._supervisor = subprocess.Popen(
                    [*_AJET, "up", "--work"], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            self.started += 1

    def ajet(self, *words: str) -> str:
        """Return what a command prints; raises CalledProcessError, whose output was shown, where it fails."""
        done = subprocess.run(
            [*_AJET, *words], env=self.environment, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
        )
        return done.stdout

    def handed(self, *words: str) -> str:
        """Hand a study to the worker; return its id."""
        return str(json.loads(self.ajet(*words, "--detach", "--json"))["study"])

    def events(self, study: str) -> list[Event]:
        """Return what its log holds."""
        return self.log.read(study)

    def state(self, study: str) -> StudyState:
        """Return where a study is now."""
        return fold(self.events(study))

    def is_over(self, study: str) -> bool:
        """Return whether a study has nothing left to do, its report included."""
        return is_done(self.state(study))

    def come_up(self) -> float:
        """Start it, wait until studies can be handed over, and return the seconds that it took."""
        self.keep_up()
        began = time.monotonic()
        while not (self.home.prefect / WORKER).exists():
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"no worker within {PATIENCE_S:g} s: {(self.home.path / 'up.log').read_text()}")
            time.sleep(0.1)
        return time.monotonic() - began

    def receive(self, study: str, events: Sequence[Event], folder: Path) -> float:
        """Take a study of another installation, as if its controller had died here when its design was locked.

        `folder` is the study's there. Return the seconds that were charged for it by then.
        """
        upto = next(place for place, event in enumerate(events, 1) if event.type is EventType.DESIGN_LOCKED)
        mine = self.home.study(study)
        mine.mkdir(parents=True)
        shutil.copyfile(folder / LOCK_FILE, mine / LOCK_FILE)
        insert(self.log, [row_of(event) for event in events[:upto]])
        ControllerLeases(self.log).take(study, Holder.here(self.home.path)).give_back()
        return self.state(study).worked_s

    def proof(self, study: str) -> Proof:
        """Compute everything that is stored of a study again."""
        return verify(study, [row_of(event) for event in self.events(study)], self.home.study(study))

    def end(self) -> None:
        """End the worker and the server, as `ajet up --stop` does, and wait until they have."""
        self.ajet("up", "--stop")
        if self._supervisor is not None:
            self._supervisor.wait(PATIENCE_S)
        psutil.wait_procs([victim.process for victim in victims(self.home.path)], timeout=_LINGERING_S)


_AJET = (sys.executable, "-m", "research")
_ROUNDS = 3
"""Looks for processes that others had just started."""
_LINGERING_S = 10.0
"""For processes that were told to end."""


_EVERY = 10_000_000


@dataclass(frozen=True)
class Ending:
    """A study as it ended in an installation that was stopped after it."""

    state: StudyState
    collected: Mapping[str, int]
    """How often each run was collected."""
    drifts: Sequence[str]
    """What `ajet study verify` finds wrong."""
    unbalanced: Sequence[str]
    """What is wrong with the books of the swarm servers."""
    slots: Sequence[str]
    """Attempts that hold a slot, or stand in the line for one."""
    left: Sequence[str] = field(default=())
    """Processes that outlived `ajet up --stop`."""

    @property
    def verdicts(self) -> list[tuple[str, str, str]]:
        """What was claimed of each hypothesis, in which phase."""
        return [(verdict.hypothesis, verdict.phase, verdict.verdict) for verdict in self.state.verdicts]

    def faults(self) -> Iterator[str]:
        """Yield what no study may end with, in words."""
        if self.state.status != "concluded":
            yield f"the study is {self.state.status}"
        if self.state.report is None:
            yield "it has no report of its last state"
        for name, run in self.state.runs.items():
            if self.collected.get(name, 0) != 1:
                yield f"run {name} is {run.status}, and was collected {self.collected.get(name, 0)} times"
        if self.state.worked_s > self.state.budget_s:
            yield f"{self.state.worked_s:.0f} s were charged to a budget of {self.state.budget_s:.0f} s"
        yield from (f"verify: {drift}" for drift in self.drifts)
        yield from self.unbalanced
        yield from (f"{attempt} holds a slot" for attempt in self.slots)
        yield from (f"outlived its installation: {command}" for command in self.left)


def ending(installation: Installation, study: str, left: Sequence[str] = ()) -> Ending:
    """Return how a study ended."""
    state = installation.state(study)
    collected = [event.payload["run_id"] for event in installation.events(study)
                 if event.type is EventType.RUN_COLLECTED]  # fmt: skip
    return Ending(
        state, Counter(collected), [str(drift) for drift in installation.proof(study).drifts],
        [said for run in state.runs.values() if run.collected for said in unbalanced(installation, state, run)],
        [row.attempt for row in Slots(installation.log, Holder.here(installation.home.path).host).rows()], left,
    )  # fmt: skip


def differences(calm: Ending, disturbed: Ending) -> Iterator[str]:
    """Yield in what the disturbed study did not end like the other, in words."""
    if calm.state.design_hash != disturbed.state.design_hash:
        yield "the designs differ"
    specs = [{name: run.spec for name, run in end.state.runs.items()} for end in (calm, disturbed)]
    if specs[0] != specs[1]:
        yield f"{len(calm.state.runs)} runs undisturbed, {len(disturbed.state.runs)} others disturbed"
    if calm.verdicts != disturbed.verdicts:
        yield f"undisturbed {calm.verdicts}, disturbed {disturbed.verdicts}"


def unbalanced(installation: Installation, state: StudyState, run: RunState) -> Iterator[str]:
    """Yield what is wrong with the books of the server that trained a run: each sample once, every step whole."""
    job = Job.from_record(run.spec.job)
    server = AttemptFolder(installation.home.attempt(state.id, run.run_id, run.attempts[-1].number)).server
    trained = [episode for episode in stored_episodes(server) if episode.step is not None]
    sizes = Counter(episode.step for episode in trained)
    if sizes != Counter(dict.fromkeys(range(1, job.steps + 1), job.episodes_per_step)):
        yield f"run {run.run_id}: trained {dict(sizes)}, asked for {job.steps} steps of {job.episodes_per_step}"
    if len({episode.id for episode in trained}) != len(trained):
        yield f"run {run.run_id}: an episode was trained twice"
    if any(episode.state != "consumed" for episode in trained):
        yield f"run {run.run_id}: an episode is in a step and not learned"


def stored_episodes(server: Path) -> Sequence[EpisodeSummary]:
    """Return all episodes of a stopped server's only training."""
    engine = sa.create_engine(f"sqlite:///{server / 'store.sqlite3'}")
    with engine.connect() as connection:
        episodes = reading.episodes(connection, 1, _EVERY).episodes
    engine.dispose()
    return episodes


@dataclass
class Killer:
    """Who is killed next, and who was. A kind that was never killed comes first, the shortest-lived before others.

    After that kinds are drawn, those that were killed less often with more weight. A kind is left alone for `rest_s`
    after each kill. What died in every start would never serve: so controllers, and those that bring them back, are
    left alone from their start on for up to twice as long, each for a time of its own; and while there is no controller
    one of the latter is killed at most. Times are seconds from the start.
    """

    chance: random.Random
    pause_s: tuple[float, float]
    rest_s: float
    kills: list[dict[str, Any]] = field(default_factory=list)
    _due_s: float = 0.0
    _since_controller: int = 0
    """Kills of those that bring one back since a controller was seen."""
    _safe_s: dict[int, float] = field(default_factory=dict)
    """Until when each such process is left alone, by its id."""

    def __post_init__(self) -> None:
        self._due_s = self.chance.uniform(*self.pause_s)

    def look(self, now_s: float, alive: Callable[[], Sequence[Victim]], state: StudyState) -> Victim | None:
        """Kill one of those alive if it is time, and there is one that may be; return it."""
        if now_s < self._due_s:
            return None
        living = alive()
        if any(each.kind == CONTROLLER for each in living):
            self._since_controller = 0
        open_to = [each for each in living if not self._spares(each, state, now_s)]
        if not open_to:
            return None
        times, kinds = self.by_kind(), [kind for kind in KINDS if any(each.kind == kind for each in open_to)]
        new = [kind for kind in kinds if not times[kind]]
        (drawn,) = new[:1] or self.chance.choices(kinds, [1 / (1 + times[kind]) for kind in kinds])
        victim = self.chance.choice([each for each in open_to if each.kind == drawn])
        self._since_controller += victim.kind in BRINGING_BACK
        with suppress(psutil.NoSuchProcess):
            victim.process.kill()
        self.kills.append({"after_s": round(now_s, 1), "kind": drawn, "run": victim.run, "attempt": victim.attempt})
        self._due_s = now_s + self.chance.uniform(*self.pause_s)
        return victim

    def by_kind(self) -> dict[str, int]:
        """Return how many of each kind were killed; kinds that were never are there with 0."""
        times = Counter(kill["kind"] for kill in self.kills)
        return {kind: times[kind] for kind in KINDS}

    def _spares(self, victim: Victim, state: StudyState, now_s: float) -> bool:
        """Return whether it rests, or its death could use up what the policy gives a number of tries only."""
        if any(kill["kind"] == victim.kind and now_s - kill["after_s"] < self.rest_s for kill in self.kills):
            return True
        if victim.kind in BRINGING_BACK and self._since_controller:
            return True
        if victim.kind in (CONTROLLER, *BRINGING_BACK):
            safe_s = now_s + self.chance.uniform(0.0, 2 * self.rest_s)  # from when it is first seen
            if now_s < self._safe_s.setdefault(victim.process.pid, safe_s):
                return True
        most = MOST_ATTEMPTS if state.design is None else state.design.max_attempts
        if victim.kind == CONTROLLER:
            return state.fruitless >= MOST_FRUITLESS - 1
        if victim.kind == MAKER:
            return self.by_kind()[victim.kind] >= MOST_TRIES - 1
        times = self.by_kind()  # a try is not spent while another kind of those that work on runs was never met
        kept = victim.kind in OF_A_RUN and times[victim.kind] > 0 and any(not times[kind] for kind in OF_A_RUN)
        return victim.attempt >= most or kept
