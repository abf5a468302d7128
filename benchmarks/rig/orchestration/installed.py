"""An installation of a benchmark's own: `ajet up --work` as a real process, started again where it was killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from research.installation.home import Home
from research.orchestration.supervision import WORKER
from research.scheduler.next_step import is_done
from rig.orchestration.long_study import insert
from rig.orchestration.victims import victims
from studies import Event, EventLog, EventType, StudyState, fold
from studies.log.event import row_of
from studies.log.event_log import LOCK_FILE
from studies.log.locks import ControllerLeases, Holder, Slots
from studies.proof import Proof, verify

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
        self._log = EventLog(self.home.database)
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()
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
        return self._log.read(study)

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
        insert(self._log, [row_of(event) for event in events[:upto]])
        ControllerLeases(self._log).take(study, Holder.here(self.home.path)).give_back()
        return self.state(study).worked_s

    def proof(self, study: str) -> Proof:
        """Compute everything that is stored of a study again."""
        return verify(study, [row_of(event) for event in self.events(study)], self.home.study(study))

    def slots_held(self) -> list[str]:
        """Return the attempts that hold a slot, or stand in the line for one."""
        return [row.attempt for row in Slots(self._log, Holder.here(self.home.path).host).rows()]

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
